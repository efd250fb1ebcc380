"""Sphinx configuration. `make docs` builds the site and treats every warning as an error."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from tables import write_tables  # noqa: E402

from dda import __version__  # noqa: E402

project = "dda"
author = "dda developers"
project_copyright = "2026, dda developers"
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "generated"]
html_theme = "furo"
html_title = "dda"
autodoc_typehints = "description"
autodoc_member_order = "bysource"

write_tables(HERE / "generated")
