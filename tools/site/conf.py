"""Sphinx reads this file. The pages are what ``tools.site.pages`` has assembled from the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from heliograph.base.version import heliograph_version

_HERE = Path(__file__).parent

project = "Heliograph"
release = heliograph_version()
html_title = f"Heliograph {release}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
exclude_patterns: list[str] = []

myst_heading_anchors = 4  # the anchors of GitHub: a link to one that does not exist is a warning, and so an error
myst_links_external_new_tab = False

highlight_language = "none"  # of blocks that do not say theirs
autodoc_typehints_format = "short"
autodoc_member_order = "alphabetical"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 200
napoleon_numpy_docstring = False

html_theme = "alabaster"  # part of Sphinx; loads nothing from other hosts
html_theme_options = {
    "page_width": "1200px",
    "sidebar_width": "260px",
    "fixed_sidebar": False,
    "show_powered_by": False,
    "description": "Durable, ordered, replicated messaging in Ray",
    "font_family": "system-ui, -apple-system, 'Segoe UI', sans-serif",
    "head_font_family": "system-ui, -apple-system, 'Segoe UI', sans-serif",
}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_additional_pages = {"index": "redirect.html"}
html_static_path = [str(_HERE / "static")]
html_css_files = ["site.css"]
templates_path = [str(_HERE / "static")]
html_search_scorer = str(_HERE / "static" / "scorer.js")
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False


def _show_code(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Mark the indented examples of a module's docstring as code, which reStructuredText does by two colons."""
    if what == "module":
        for number in range(len(lines) - 1, 0, -1):
            is_first = lines[number].startswith("    ") and not lines[number - 1].strip()
            if is_first and not next((each for each in reversed(lines[:number]) if each.strip()), "").startswith(" "):
                lines[number:number] = ["::", ""]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _show_code)
