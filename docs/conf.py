"""The documentation as a site: `make docs` writes it to build/site, to be read from disk or a server.

Nothing is loaded from another host: the theme has its fonts and scripts with it, and formulas are MathML.
The Markdown files are read as they are on GitHub; what is generated is put in by the modules in docs/hooks.
"""

import sys
from pathlib import Path

from interbasis.base.version import VERSION

sys.path.insert(0, str(Path(__file__).parent))
from hooks.live import add_missing

project = "interbasis"
author = "The interbasis developers"
version = release = VERSION

extensions = [
    "myst_parser",
    "hooks.formulas",
    "hooks.pictures",
    "hooks.navigation",
    "hooks.notebooks",
    "hooks.commands",
    "hooks.reference",
    "hooks.families",
]
myst_enable_extensions = ["attrs_inline", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_double_inline = True
exclude_patterns = ["hooks/*", "styles/*", "results/README.md"]
highlight_language = "text"
smartquotes = False
html_math_renderer = "mathml"

html_title = "interbasis"
html_theme = "pydata_sphinx_theme"
html_static_path = ["styles"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
add_missing(Path(__file__).parent / "live")
html_extra_path = ["live"]  # the pages of the gallery, copied as they are
html_copy_source = False
html_show_search_summary = False  # summaries are fetched, which a browser refuses for pages from disk
html_sidebars: dict[str, list[str]] = {"**": ["sidebar-nav-bs"]}
html_sidebars |= {page: [] for page in ("index", "cli", "api", "evidence", "search")}  # nothing is below them
html_theme_options = {
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_nav_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
copyright = "the interbasis developers, MIT licence"
