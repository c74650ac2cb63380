"""The rules that cores do no I/O, and that one folder has what Linux alone has.

Time and randomness are passed to cores (ARCHITECTURE.md, "Layers").

There is no list of cores. A module whose docstring says ``Pure`` or ``No I/O`` is one, and so is each module in a
folder whose ``__init__`` says so; a module of such a folder that is none says ``Not a core``.
"""

from __future__ import annotations

import ast
import re

import pytest

from tests.rules.source import SourceFile, for_each, product_files

CLAIM = re.compile(r"\bpure\b|\bno I/O\b", re.IGNORECASE)
EXCEPTION = "Not a core"
BANNED_MODULES = {"time", "asyncio", "socket", "ray", "threading", "subprocess", "selectors", "uvloop", "secrets", "os"}
BANNED_CALLS = {"open", "print", "input", "exec", "eval"}
BANNED_RANDOM = {"random", "randint", "choice", "choices", "shuffle", "sample", "uniform", "randrange", "seed"}
LINUX = re.compile(
    r"\"/proc/|\bos\.(fdatasync|RWF_DSYNC|O_DIRECT|posix_fallocate|posix_fadvise|pidfd_open|sched_getaffinity|eventfd)\b"
    r"|\btime\.pthread_getcpuclockid\b|\bprctl\(|\bsocket\.SO_PEERCRED\b"
)
MUST_BE_CORES = (
    "actors/ledger/",
    "actors/ledger/placement/",
    "actors/ledger/repair/",
    "heliograph/protocol/",
)  # folders


def docstring(file: SourceFile) -> str:
    return ast.get_docstring(file.tree) or ""


def cores() -> list[SourceFile]:
    files = product_files()
    folders = {
        file.name.removesuffix("__init__.py") for file in files if file.is_package and CLAIM.search(docstring(file))
    }
    return [
        file
        for file in files
        if not file.is_package
        and EXCEPTION not in docstring(file)
        and (CLAIM.search(docstring(file)) or file.name.rpartition("/")[0] + "/" in folders)
    ]


@pytest.mark.parametrize("folder", MUST_BE_CORES)
def test_the_replication_protocol_and_the_codec_are_cores(folder: str) -> None:
    assert any(file.name == folder + "__init__.py" and CLAIM.search(docstring(file)) for file in product_files())


@for_each(cores)
def test_core_imports_nothing_that_does_io(file: SourceFile) -> None:
    wrong = {name for name in file.imports() if name.split(".")[0] in BANNED_MODULES}
    assert not wrong, f"{file.name} is a core and imports {sorted(wrong)}"


@for_each(cores)
def test_core_calls_nothing_that_does_io(file: SourceFile) -> None:
    for node in file.nodes:
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name):
            assert node.func.id not in BANNED_CALLS, f"{file.name}:{node.lineno} calls {node.func.id}()"
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            called = (node.func.value.id, node.func.attr)
            assert not (called[0] == "random" and called[1] in BANNED_RANDOM), f"{file.name}:{node.lineno} {called}"


def test_names_of_linux_stand_behind_the_interface_of_the_system() -> None:
    """Those that stay elsewhere ask first whether they are there."""
    allowed = {
        "heliograph/base/guard/die_with_parent.py",  # it imports nothing of ours
        "heliograph/base/guard/local_socket.py",
    }
    found = {
        file.name: sorted({match[0] for match in LINUX.finditer(file.text)})
        for file in product_files()
        if not file.name.startswith("heliograph/base/system/") and LINUX.search(file.text)
    }
    assert {name: names for name, names in found.items() if name not in allowed} == {}
