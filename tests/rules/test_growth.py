"""What each change does to the size and to the history: the budget of lines, and the subjects of commits."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from tests.rules.source import FOLDERS, ROOT, product_files

BUDGET = "tests/rules/budget.txt"
GRAIN = 100  # lines; the budget is in hundreds, so that a small change leaves it as it is
# The rules about commits hold for those after this one.
BASE = "14e20a98154ef4b712bc6b6292e60a5f16d0e882"
SUBJECT_CHARACTERS_MAX = 72
SUBJECT = re.compile(r"[a-z][\w ,./-]*: \S.*[^.\s]")
REASON = re.compile(r"^budget: \S+( \S+){2,}", re.MULTILINE)


@dataclass(frozen=True)
class Commit:
    """One commit, with the budget before it and after it."""

    name: str
    subject: str
    body: str
    before: Mapping[str, int]
    after: Mapping[str, int]


def read_budget(text: str) -> dict[str, int]:
    """Return the lines that each folder may have; ``#`` begins a comment."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {folder: int(lines) for folder, lines in rows}


def counted() -> dict[str, int]:
    lines: Counter[str] = Counter()
    for file in product_files():
        if file.is_generated:
            continue
        lines[file.name.partition("/")[0]] += file.text.count("\n")
    return dict(lines)


def rounded(lines: int) -> int:
    return -(-lines // GRAIN) * GRAIN


def wrong_subject(subject: str) -> str:
    """Return what is wrong with the subject of a commit; empty if nothing is."""
    if len(subject) > SUBJECT_CHARACTERS_MAX:
        return f"has {len(subject)} characters, {SUBJECT_CHARACTERS_MAX} at most"
    return "" if SUBJECT.fullmatch(subject) else "is not `part: verb what`, without a period"


def unpaid(commit: Commit) -> str:
    """Return what is wrong with a commit that raises the budget; empty if nothing is, or if it does not raise it."""
    raised = [folder for folder, lines in commit.after.items() if lines > commit.before.get(folder, lines)]
    if not raised or REASON.search(commit.body):
        return ""
    return f"raises the budget of {', '.join(raised)}, and its body has no line `budget: ` that says what pays for it"


def git(*arguments: str) -> str:
    """Return what git says, without the last newline; the test is skipped if there is no git or it fails."""
    try:
        ran = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this tree has no history of git that reaches {BASE[:7]}: {error}")
    return ran.stdout.rstrip("\n")


@cache
def commits() -> tuple[Commit, ...]:
    """Return the commits after ``BASE``, without merges; the test is skipped if the history does not reach it."""
    if git("rev-parse", "--show-prefix"):
        pytest.skip("this tree is a folder of another repository")
    git("merge-base", "--is-ancestor", BASE, "HEAD")
    touching = git("log", "--format=%H", f"{BASE}..HEAD", "--", BUDGET).split()
    found = []
    for record in git("log", "--no-merges", "--format=%H%n%s%n%b%x00", f"{BASE}..HEAD").split("\0"):
        if record.strip():
            name, subject, body = (record.strip("\n") + "\n\n").split("\n", 2)
            budgets = [budget_at(f"{name}^"), budget_at(name)] if name in touching else [{}, {}]
            found.append(Commit(name[:9], subject, body, *budgets))
    return tuple(found)


def budget_at(commit: str) -> dict[str, int]:
    is_there = git("ls-tree", "--name-only", commit, "--", BUDGET)
    return read_budget(git("show", f"{commit}:{BUDGET}")) if is_there else {}


def test_the_product_is_within_its_budget_which_falls_with_it() -> None:
    allowed, lines = read_budget((ROOT / BUDGET).read_text()), counted()
    assert set(allowed) == set(lines) == set(FOLDERS)
    expected = {folder: rounded(count) for folder, count in lines.items()}
    over = {
        folder: f"{lines[folder]} lines of {allowed[folder]}" for folder in lines if expected[folder] > allowed[folder]
    }
    assert not over, f"{over}: unify or delete something, or raise {BUDGET} and say in the commit what pays for it"
    under = {folder: expected[folder] for folder in lines if expected[folder] < allowed[folder] - GRAIN}
    assert not under, f"lower {BUDGET} to {under}: what was deleted is not there to be spent"


def test_commits_say_part_verb_what() -> None:
    wrong = [f"{each.name} {each.subject!r} {why}" for each in commits() if (why := wrong_subject(each.subject))]
    assert not wrong, "\n".join(wrong)


def test_a_commit_that_raises_the_budget_says_what_pays_for_it() -> None:
    wrong = [f"{each.name} {each.subject!r} {why}" for each in commits() if (why := unpaid(each))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "subject",
    ["bookie: reserve block 0 of a batch", "keeping, memory: remove what is not used", "tests/rules: read files once"],
)
def test_good_subjects_pass(subject: str) -> None:
    assert not wrong_subject(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "What large entries cost now",
        "Bookie: reserve block 0",
        "bookie:reserve",
        "bookie: ",
        "bookie: reserve.",
        "x: " + "y" * 70,
    ],
)
def test_other_subjects_do_not(subject: str) -> None:
    assert wrong_subject(subject)


@pytest.mark.parametrize(
    ("before", "after", "body", "is_unpaid"),
    [
        (100, 200, "The promise is kept where two machines are lost.", True),
        (100, 200, "budget: yes", True),
        (100, 200, "Why.\n\nbudget: the codec of 90 lines went away", False),
        (200, 100, "", False),
        (100, 100, "", False),
    ],
)
def test_a_raised_budget_needs_a_reason(before: int, after: int, body: str, is_unpaid: bool) -> None:
    commit = Commit("c", "a: b", body, {"actors": before, "gateway": 5}, {"actors": after, "gateway": 5})
    assert bool(unpaid(commit)) is is_unpaid


def test_lines_are_counted_in_hundreds() -> None:
    assert [rounded(lines) for lines in (0, 1, 100, 101)] == [0, 100, 100, 200]
    assert read_budget("# a comment\n\nactors 200\n") == {"actors": 200}
