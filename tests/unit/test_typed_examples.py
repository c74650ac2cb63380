"""The examples of README.md and docs/python.md are right to mypy and pyright, and both refuse those that are wrong."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.source import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "python.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
README = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
WRONG = re.findall(
    r"^\| `(.+?)` \| .+ \|$", PAGE.partition("| both checkers refuse |")[2].partition("\n\n")[0], re.MULTILINE
)
PYRIGHT = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
SECONDS = 300
UNTYPED = "# mypy: allow-untyped-defs, allow-untyped-calls\n"  # a reader's program need not be strict

# What the examples of the page have in common, which each of them uses as if it stood there.
CLIENT = "import heliograph\ncluster = heliograph.local()\nclient = cluster.connect()\n"


def definitions(example: str) -> str:
    """Return the imports and classes of an example, which later examples use."""
    body = ast.parse(example).body
    return "\n".join(ast.unparse(each) for each in body if isinstance(each, ast.Import | ast.ImportFrom | ast.ClassDef))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a program of each example, and one with the wrong lines below the example that they use."""
    folder = tmp_path_factory.mktemp("examples")
    earlier = CLIENT
    for number, example in enumerate(EXAMPLES):
        name = "wrong" if "orders = client.producer" in example else f"page_{number}"
        text = UNTYPED + earlier + example
        (folder / f"page_{number}.py").write_text(text)
        if name == "wrong":
            (folder / "wrong.py").write_text("\n".join([text, *WRONG, ""]))
        earlier += definitions(example) + "\n"
    for number, example in enumerate(README):
        (folder / f"readme_{number}.py").write_text(UNTYPED + example)
    return folder


def expected(programs: Path) -> set[tuple[str, int]]:
    """Return file and line of each wrong example."""
    lines = (programs / "wrong.py").read_text().splitlines()
    found = {("wrong.py", number) for number, line in enumerate(lines, 1) if line in WRONG}
    assert len(found) == len(WRONG) >= 8
    return found


def test_mypy_finds_what_is_wrong_and_nothing_else(programs: Path) -> None:
    options = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(programs / "cache"),
        "--no-error-summary",
    ]
    files = [str(each) for each in sorted(programs.glob("*.py"))]
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    found = re.findall(r"([^/\n]+\.py):(\d+): error: ", ran.stdout)
    assert {(name, int(line)) for name, line in found} == expected(programs), ran.stdout + ran.stderr


@pytest.mark.skipif(PYRIGHT is None, reason="basedpyright is not in this environment: `make setup`")
def test_pyright_finds_what_is_wrong_and_nothing_else(programs: Path) -> None:
    assert PYRIGHT is not None
    settings = {
        "include": ["*.py"],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "reportMissingImports": False,  # of packages that only an extra installs
    }
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [PYRIGHT, "--outputjson", "--pythonpath", sys.executable, "-p", str(programs)]
    ran = subprocess.run(command, cwd=programs, capture_output=True, text=True, timeout=SECONDS)
    found = json.loads(ran.stdout)["generalDiagnostics"]
    errors = {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found if each["severity"] == "error"
    }
    assert errors == expected(programs), ran.stdout
