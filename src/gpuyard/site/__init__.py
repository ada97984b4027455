"""The site as code: ``site.yaml`` in, wanted state out (Nova options, flavors, limits). Pure but for reading files."""
