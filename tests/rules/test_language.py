"""Prose that strangers read: plain words, whole sentences, and no document that a reader cannot open."""

from __future__ import annotations

import ast
import re

from tests.rules.source import ROOT, SourceFile, files_below, for_each

# Literary, archaic or personifying words, for each of which the field has a plain one.
BANNED = re.compile(
    r"\b(by and by|anew|whoever|whomever|himself|herself|for want of|somebody|everybody|thereby|thereof|whereof|therein"
    r"|thither|as it were|wants? to be|whom|lest|albeit|henceforth|nought|aught|unto|forthwith|likewise|behold)\b",
    re.IGNORECASE,
)
# Turns of phrase that stopped readers; each has a plain one: authentication is disabled, no topic is given, including.
TURNS = re.compile(
    r"\bsay who (they are|he is|it is)\b|\blet strangers in\b|\bit is not said\b|\bup to and with\b", re.IGNORECASE
)
# A docstring that goes on where the function's name stopped is not a sentence: "Of this process."
FRAGMENT = re.compile(
    r"^(Of|Whose|Who|Whom|Likewise|And|But|Or|To|In|By|With|At|As|On|Behind|Until|Than|So|Also|Too|Not)\b"
)
SEE_ONLY = re.compile(r"See [`A-Z][^\n]*")
# A clause in the place of a noun at the head of a sentence: "What it did not acknowledge comes again."
HEADLESS = re.compile(r"(?:^|[.:]\s+)(?:What|One that|One who|Those that|Those who|Those of) [^\n]{,60}")
HEADLESS_IN = ("heliograph/", "actors/", "gateway/", "metadata/", "pipelines/")
FOREIGN = re.compile(r"\bDESIGN\b|(?<![\w/])reference/[\w-]+\.md|\bSTYLE\.md\b|(?<![\w/])shared/")
FOREIGN_WORDS = (
    "DESIGN",
    "reference/",
    "STYLE.md",
    "shared/",
)  # one of which is in every match: found ten times as fast
MARKDOWN = [path.relative_to(ROOT).as_posix() for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]
FOLDERS = ("heliograph", "actors", "gateway", "metadata", "pipelines", "examples", "tests", "tools")


def written() -> list[SourceFile]:
    """Every Python file that a person wrote, and every document; this file names the words and is left out."""
    files = [file for folder in FOLDERS for file in files_below(folder, ".py") if "_pb2" not in file.name]
    documents = [SourceFile(name, (ROOT / name).read_text()) for name in MARKDOWN]
    return [file for file in files + documents if file.name != "tests/rules/test_language.py"]


def docstrings(file: SourceFile) -> list[tuple[int, str]]:
    """Line and text of each docstring of a Python file; its further lines are indented as they are there."""
    nodes = [file.tree, *file.classes(), *file.functions()]
    texts = [(getattr(node, "lineno", 1), ast.get_docstring(node, clean=False)) for node in nodes]
    return [(line, text.strip()) for line, text in texts if text and not text.isspace()]


@for_each(written)
def test_words_are_plain(file: SourceFile) -> None:
    wrong = [match for pattern in (BANNED, TURNS) for match in pattern.finditer(file.text)]
    assert not wrong, "\n".join(f"{_place(file, match)}: {match[0]!r}" for match in wrong)


def _place(file: SourceFile, match: re.Match[str]) -> str:
    return f"{file.name}:{file.text.count(chr(10), 0, match.start()) + 1}"


@for_each(written)
def test_only_documents_of_the_repository_are_cited(file: SourceFile) -> None:
    if not any(word in file.text for word in FOREIGN_WORDS):
        return
    wrong = [f"{_place(file, match)}: {match[0]}" for match in FOREIGN.finditer(file.text)]
    assert not wrong, "\n".join(wrong)


@for_each(lambda: [f for f in written() if f.name.endswith(".py")])
def test_docstrings_are_sentences_of_their_own(file: SourceFile) -> None:
    wrong = [
        f"{file.name}:{line}: {text.splitlines()[0]}"
        for line, text in docstrings(file)
        if FRAGMENT.match(text) or SEE_ONLY.fullmatch(text)
    ]
    assert not wrong, "\n".join(wrong)


@for_each(lambda: [f for f in written() if f.name.endswith(".py") and f.name.startswith(HEADLESS_IN)])
def test_sentences_of_docstrings_begin_with_a_noun(file: SourceFile) -> None:
    """The thing that a sentence is about has a name: the unacknowledged messages, and not what was not acknowledged."""
    wrong = [
        f"{file.name}:{line}: {match[0].strip()!r}"
        for line, text in docstrings(file)
        for match in HEADLESS.finditer(text)
    ]
    assert not wrong, "\n".join(wrong)


CITED = re.compile(r"\bdocs/[\w./-]+\.md|\b(?:ARCHITECTURE|CONTRIBUTING|CHANGELOG|README)\.md")


@for_each(written)
def test_cited_documents_exist(file: SourceFile) -> None:
    missing = {name for name in CITED.findall(file.text) if not (ROOT / name).exists()}
    assert not missing, f"{file.name} cites {sorted(missing)}"
