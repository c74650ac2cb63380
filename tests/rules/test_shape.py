"""The limits on files and functions; packages whose ``__init__`` only exports; errors in one tree."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest

from tests.rules.source import LINKED, ROOT, SourceFile, files_of_tests, for_each, product_files

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
CLASS_FILE_LINES_MAX = 600  # of a file that one class fills: splitting it would follow no noun
CLASS_SHARE_LEAST = 0.6
FILE_LINES_LEAST = 40
SMALL = {  # files that stay below it, with the reason why their content stands in no neighbour
    "actors/bookie/memory_bounds.py": "as its twin of the broker, which is above the line",
    "actors/broker/broker_context.py": "of admin and protocol, which broker.py imports",
    "actors/broker/limits/answers.py": "of admin and memory_bounds, on one floor",
    "actors/broker/limits/rates.py": "of producers, subscriptions, topics and metrics",
    "actors/broker/namespaces/session_guard.py": "of fourteen files on four floors",
    "actors/broker/topic/state.py": "states stand in state.py",
    "gateway/http/listening.py": "loads no framework, server.py does",
    "heliograph/base/guard/die_with_parent.py": "a program that imports nothing of ours",
    "heliograph/base/lifecycle.py": "of every object with states",
    "heliograph/cli/start.py": "runs before the imports of app.py",
    "heliograph/client/types.py": "below schemas and options, which use it",
    "heliograph/cluster/doctor/finding.py": "of all checks, which examination.py imports",
    "heliograph/cluster/versions/formats.py": "of hosting.py, and of the doctor, which runs without Ray",
    "heliograph/cluster/head/worker_environment.py": "deployment.py is full",
    "heliograph/cluster/logs/config.py": "settings stand in config.py",
    "heliograph/cluster/naming.py": "names of actors, on every floor of the cluster",
    "heliograph/cluster/settings/pickling.py": "pickles of older releases name it",
    "heliograph/errors.py": "public names",
    "heliograph/metrics/table.py": "imports its neighbours",
    "heliograph/protocol/hashing.py": "of brokers, clients and pipelines",
    "heliograph/ray_data.py": "public names",
    "heliograph/spark.py": "public names",
    "heliograph/transfer_queue.py": "public names",
    "heliograph/tracing/config.py": "settings stand in config.py",
    "metadata/backends/etcd/wire/limits.py": "bounds stand in limits.py",
    "metadata/recipes/restored_mark.py": "of bookies and brokers, which load no backup",
    "metadata/session/limits.py": "bounds stand in limits.py",
    "pipelines/data_source/registration.py": "checks Spark before datasource.py imports it",
}
RULER = re.compile(r"\s*# ?[-=*#]{2,}")
SECTION = re.compile(r"\s*# -- \S")


def most_lines(file: SourceFile) -> int:
    """Return how many lines the file may have: more if one class is most of it."""
    largest = max((length_of(each) for each in file.classes()), default=0)
    is_one_class = largest >= CLASS_SHARE_LEAST * file.text.count("\n")
    return CLASS_FILE_LINES_MAX if is_one_class else FILE_LINES_MAX


def length_of(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


@for_each(product_files)
def test_sizes(file: SourceFile) -> None:
    lines = file.text.count("\n")
    assert lines <= most_lines(file), f"{file.name} has {lines} lines: split it by noun"
    for function in file.functions():
        length = length_of(function)
        assert length <= FUNCTION_LINES_MAX, f"{file.name}: {function.name} has {length} lines"


def test_small_files_join_their_noun() -> None:
    """A file below 40 lines is joined with the file whose noun it shares, or ``SMALL`` says why not."""
    small = {file.name for file in product_files() if not file.is_package and file.text.count("\n") < FILE_LINES_LEAST}
    assert not small - set(SMALL), "join them with a neighbour, or name the reason"
    assert not set(SMALL) - small, "these are not small, or are gone"


FACADE = "heliograph/__init__.py"  # loads its public names at first use


@for_each(lambda: [f for f in product_files() if f.is_package and f.name != FACADE])
def test_packages_only_export(file: SourceFile) -> None:
    for node in file.tree.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_all = isinstance(node, ast.Assign) and all(
            isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets
        )
        is_guard = isinstance(node, ast.If) and file.name in {f"{folder}/__init__.py" for folder in LINKED}
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        assert is_docstring or is_all or is_guard or is_import, f"{file.name}:{node.lineno}"


@pytest.mark.parametrize("folder", LINKED)
def test_a_folder_imported_under_its_short_name_names_the_right_import(folder: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 1
    assert ran.stderr.rstrip().endswith(
        f"ImportError: '{folder}' is a folder of Heliograph: import heliograph.{folder} instead"
    )


@pytest.mark.parametrize("folder", LINKED)
def test_the_folders_stand_in_the_package_as_links(folder: str) -> None:
    link = ROOT / "heliograph" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"


def test_class_names_are_unique_in_the_program() -> None:
    homes: dict[str, list[str]] = {}
    for file in product_files():
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(file.name)
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert not twice


@for_each(product_files)
def test_loggers_and_rulers_have_one_idiom(file: SourceFile) -> None:
    """``log = logging.getLogger(__name__)``; a section of a long class begins with ``# -- its title``."""
    for node in file.of_kind(ast.Assign):
        if ast.unparse(node.value) == "logging.getLogger(__name__)":
            assert [ast.unparse(target) for target in node.targets] == ["log"], f"{file.name}:{node.lineno}"
    wrong = [line for line in file.text.splitlines() if RULER.match(line) and not SECTION.match(line)]
    assert not wrong, f"{file.name}: {wrong}"


def patches_of_the_clock(text: str) -> list[str]:
    return re.findall(r"""setattr\(\s*(?:time,|"time\.)""", text)


@for_each(files_of_tests)
def test_no_test_changes_the_clock_of_other_threads(file: SourceFile) -> None:
    """A test replaces ``time`` in the module that it tests: threads of earlier tests look at the clock, too."""
    assert not patches_of_the_clock(file.text), file.name


@pytest.mark.parametrize("text", ['patch.setattr(time, "sleep", rest)', 'patch.setattr("time.sleep", rest)'])
def test_the_rule_sees_a_changed_clock(text: str) -> None:
    assert patches_of_the_clock(text)
    assert not patches_of_the_clock(text.replace("time", "calls", 1).replace("calls.sleep", "calls.time.sleep"))


@for_each(product_files)
def test_every_module_says_what_it_is(file: SourceFile) -> None:
    assert ast.get_docstring(file.tree), f"{file.name} has no docstring"


def test_errors_form_one_tree() -> None:
    known = {"HeliographError"}
    classes = {
        node.name: {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases}
        for file in product_files()
        for node in file.classes()
    }
    while True:
        more = {name for name, bases in classes.items() if bases & known} - known
        if not more:
            break
        known |= more
    strays = [name for name in classes if name.endswith("Error") and name not in known]
    assert not strays, f"these errors are outside the tree of heliograph/base/errors.py: {strays}"
