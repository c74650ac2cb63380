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
FOREIGN = re.compile(r"\bDESIGN\b|(?<![\w/])reference/[\w-]+\.md|\bSTYLE\.md\b|(?<![\w/])shared/")
MARKDOWN = [path.relative_to(ROOT).as_posix() for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]
FOLDERS = ("heliograph", "actors", "gateway", "metadata", "pipelines", "examples", "tests", "tools")


def written() -> list[SourceFile]:
    """Every Python file that a person wrote, and every document; this file names the words and is left out."""
    files = [file for folder in FOLDERS for file in files_below(folder, ".py") if "_pb2" not in file.name]
    documents = [SourceFile(name, (ROOT / name).read_text()) for name in MARKDOWN]
    return [file for file in files + documents if file.name != "tests/rules/test_language.py"]


def docstrings(file: SourceFile) -> list[tuple[int, str]]:
    """Line and text of each docstring of a Python file."""
    found = []
    for node in file.nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                found.append((getattr(node, "lineno", 1), text))
    return found


@for_each(written)
def test_words_are_plain(file: SourceFile) -> None:
    wrong = [
        f"{file.name}:{number}: {match[0]!r} in: {line.strip()}"
        for number, line in enumerate(file.text.splitlines(), 1)
        for match in [*BANNED.finditer(line), *TURNS.finditer(line)]
    ]
    assert not wrong, "\n".join(wrong)


@for_each(written)
def test_only_documents_of_the_repository_are_cited(file: SourceFile) -> None:
    wrong = [
        f"{file.name}:{number}: {line.strip()}"
        for number, line in enumerate(file.text.splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert not wrong, "\n".join(wrong)


@for_each(lambda: [f for f in written() if f.name.endswith(".py")])
def test_docstrings_are_sentences_of_their_own(file: SourceFile) -> None:
    wrong = [
        f"{file.name}:{line}: {text.splitlines()[0]}"
        for line, text in docstrings(file)
        if FRAGMENT.match(text) or SEE_ONLY.fullmatch(text)
    ]
    assert not wrong, "\n".join(wrong)


CITED = re.compile(r"\bdocs/[\w./-]+\.md|\b(?:ARCHITECTURE|CONTRIBUTING|CHANGELOG|README)\.md")


@for_each(written)
def test_cited_documents_exist(file: SourceFile) -> None:
    missing = {name for name in CITED.findall(file.text) if not (ROOT / name).exists()}
    assert not missing, f"{file.name} cites {sorted(missing)}"
