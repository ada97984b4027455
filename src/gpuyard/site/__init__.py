"""The site as code: ``site.yaml`` in, desired state out (Nova options, flavors, limits). Pure but for reading files."""
