"""The documentation site: `make docs` builds it offline, with warnings as errors."""

import sys
from pathlib import Path

import scoremh

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project, author, copyright = "scoremh", "the scoremh authors", "the scoremh authors, MIT licence"
version = release = scoremh.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "markdown_docstrings",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["results", "_extensions"]
smartquotes = False  # x' is the proposed point

# notebooks are executed once, and again when they change; an error in one fails the build
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode, nb_execution_raise_on_error, nb_execution_timeout = "cache", True, 300
nb_merge_streams = nb_execution_in_temp = True  # what a notebook writes is not left in docs/

# every reference within the project is checked; nothing outside it is asked for
nitpicky = True
_in_signatures_only = (
    "Comparison|Distance|ExactSampler|Kind|MatchedLoss|ProposalProbe|RandomFunction|Record|Regression|Rotated|HasMap"
    "|Processes"
)
nitpick_ignore_regex = [
    ("py:.*", r"(?!scoremh\.).*"),
    ("py:.*", r"scoremh\._shared\..*"),
    ("py:.*", rf"scoremh\..*\.({_in_signatures_only})"),
]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}

html_theme, html_title = "furo", f"scoremh {release}"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_show_sphinx = html_copy_source = False
