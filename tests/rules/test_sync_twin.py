"""The sync handles and the stub of the administration are what their generators make: same names, arguments, texts."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import heliograph
from tests.rules.source import ROOT, files_below, product_files
from tools import blocking_admin
from tools.sync_handles import TWINS, Twin, files

GENERATED = files() | blocking_admin.files()


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_the_file_is_what_the_generator_makes(path: Path) -> None:
    name = path.relative_to(ROOT)
    assert path.read_text() == GENERATED[path], f"{name} differs from its async twin: run `make handles`"


def test_every_generated_file_says_so_and_stands_where_the_folder_says() -> None:
    folder = "heliograph/client/sync/"
    found = {file.name for file in product_files() if file.is_generated}
    assert found == {path.relative_to(ROOT).as_posix() for path in files()}
    assert found == {file.name for file in files_below(folder, ".py")} - {f"{folder}__init__.py", f"{folder}handle.py"}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_the_async_class_has_no_public_member_that_the_sync_one_lacks(twin: Twin) -> None:
    ours, theirs = getattr(heliograph, twin.name), getattr(heliograph, f"Async{twin.name}")
    public = {name for name in dir(theirs) if not name.startswith("_")} - {"is_open"}
    assert public - set(dir(ours)) == {name for name in twin.left_out if not name.startswith("_")}


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_every_shared_method_takes_the_same_arguments(twin: Twin) -> None:
    ours, theirs = getattr(heliograph, twin.name), getattr(heliograph, f"Async{twin.name}")
    for name, method in inspect.getmembers(ours, inspect.isfunction):
        if not name.startswith("_") and hasattr(theirs, name):
            expected = inspect.signature(getattr(theirs, name)).parameters
            assert list(inspect.signature(method).parameters.values()) == list(expected.values()), name
