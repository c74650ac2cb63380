"""The pages of the site: copies of the repository's documents, with links, navigation and a generated reference.

The documents stay plain Markdown that any viewer shows. What only the site needs is added to the copies:

- a document that is named in backquotes, as `docs/tasks.md`, becomes a link;
- ``docs/index.md`` and ``docs/operations/README.md`` get a navigation of the pages that they link to, by heading. A
  page that is in no navigation is an error of Sphinx, so a new page has to be linked from one of them;
- a line ``<!-- words: dead letter, dlq -->`` below a heading has the search show that section first for these
  words: they become entries of the index;
- pages about modules and commands are made by ``tools.site.reference``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.site.reference import reference_pages

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
INDEXES = ("docs/index.md", "docs/operations/README.md")
_FENCE = re.compile(r"^( *)(```|~~~)")
_NAMED = re.compile(r"(?<!\[)`((?:[\w.-]+/)*[\w-]+\.md)`")
_HEADING = re.compile(r"^## (.+)$")
_WORDS = re.compile(r"^<!-- words: (.+) -->$")
LINK = re.compile(r"\]\(([\w./-]+\.md)\)")


def assemble(target: Path) -> None:
    """Write the sources of the site into an empty directory."""
    shutil.copytree(ROOT / "docs", target / "docs")
    shutil.copytree(ROOT / "examples", target / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for name in TOP:
        shutil.copy(ROOT / name, target / name)
    for name, text in reference_pages().items():
        page = target / "docs" / "api" / name
        page.write_text(text)
        _list(target / "docs" / "api" / "index.md", [page])
    decisions = sorted((target / "docs" / "decisions").glob("[0-9]*.md"))
    _list(target / "docs" / "decisions" / "index.md", decisions)
    for page in [*target.glob("*.md"), *(target / "docs").rglob("*.md")]:
        page.write_text(with_links(page.read_text(), page, target))
    for name in (*INDEXES, "docs/api/index.md", "docs/decisions/index.md"):
        page = target / name
        page.write_text(page.read_text() + navigation(page.read_text()))


def with_links(text: str, page: Path, root: Path) -> str:
    """Return a page with links at the backquoted names of documents, its words in the index, and diagrams as text."""

    def linked(match: re.Match[str]) -> str:
        for found in (root / match[1], page.parent / match[1]):
            if found.exists() and found != page:
                return f"[`{match[1]}`]({os.path.relpath(found, page.parent)})"
        return match[0]

    lines, fence = [], ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if opened and not fence:
            fence = opened[2]
            line = line.replace("```mermaid", "```text")
        elif opened and line.strip() == fence:
            fence = ""
        elif not fence and (words := _WORDS.match(line)):
            main = ", ".join(f"! {word}" for word in words[1].split(", "))  # the search shows other entries last
            line = f"```{{index}} {main}\n```"
        elif not fence and not line.startswith("    "):
            line = _NAMED.sub(linked, line)
        lines.append(line)
    return "\n".join(lines) + "\n"


def navigation(text: str) -> str:
    """Return what adds the pages that an index links to to the navigation, with its headings as captions."""
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        found = _HEADING.match(line)
        heading = found[1] if found else heading
        sections.setdefault(heading, []).extend(LINK.findall(line))
    parts, seen = [], set[str]()
    for heading, links in sections.items():
        fresh = [each for each in dict.fromkeys(links) if each not in seen]
        seen.update(fresh)
        if fresh:
            caption = [f":caption: {heading}"] if heading else []
            parts.append("\n".join(["", "```{toctree}", ":hidden:", *caption, "", *fresh, "```", ""]))
    return "".join(parts)


def _list(index: Path, pages: Sequence[Path]) -> None:
    """Add links to pages to the end of their index."""
    links = [f"- [{page.read_text().partition(chr(10))[0].lstrip('# ')}]({page.name})" for page in pages]
    with index.open("a") as file:
        file.write("\n".join(["", *links, ""]))
