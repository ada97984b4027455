"""The documentation as a site: `make docs-site` builds it, and a warning is an error."""

from __future__ import annotations

import gpuyard

project = "gpuyard"
copyright = "the gpuyard developers"
version = release = gpuyard.installed_version()

extensions = ["myst_parser"]
exclude_patterns = ["_build", "_templates", "_static"]
myst_heading_anchors = 4  # links to headings work here as they do on the pages of the repository

templates_path = ["_templates"]
html_theme = "furo"
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/portal.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_title = f"gpuyard {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_sourcelink = False
html_favicon = "../src/gpuyard/web/static/favicon.svg"
