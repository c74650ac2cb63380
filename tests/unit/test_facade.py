"""The public names of ``heliograph``: the lazy facade is consistent, every name loads, nothing loads early."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module

import pytest

import heliograph
from heliograph.base import errors as tree
from tests.rules.source import ROOT

FACADE = ast.parse((ROOT / "heliograph" / "__init__.py").read_text())
TYPED = {  # the imports that type checkers see: name -> module
    alias.asname or alias.name: node.module
    for guard in FACADE.body
    if isinstance(guard, ast.If) and ast.unparse(guard.test) == "TYPE_CHECKING"
    for node in guard.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def loaded_after(program: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after ``program``."""
    shown = f"{program}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, timeout=120)
    return set(ran.stdout.split())


def test_the_types_the_homes_and_the_exports_are_the_same_names() -> None:
    assert {**heliograph._HOMES, "errors": "heliograph.base"} == TYPED
    assert sorted(TYPED) == heliograph.__all__


@pytest.mark.parametrize("name", heliograph.__all__)
def test_every_name_loads(name: str) -> None:
    found = getattr(heliograph, name)
    if name != "errors":
        assert found is getattr(import_module(heliograph._HOMES[name]), name)
        assert found.__name__ == name


def test_a_star_import_and_dir_give_the_same_names() -> None:
    names: dict[str, object] = {}
    exec("from heliograph import *", names)
    assert set(names) - {"__builtins__"} == set(heliograph.__all__)
    assert set(heliograph.__all__) <= set(dir(heliograph))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'heliograph' has no attribute 'Ledger'"):
        _ = heliograph.Ledger


def test_importing_the_package_loads_neither_ray_nor_uvicorn_nor_the_client() -> None:
    loaded = loaded_after("import heliograph")
    unwanted = {name for name in loaded if name.split(".")[0] in ("ray", "uvicorn", "uvloop", "google")}
    assert not unwanted
    assert {name for name in loaded if name.startswith("heliograph")} == {"heliograph"}


def test_the_client_loads_neither_ray_nor_uvicorn_nor_the_server() -> None:
    loaded = loaded_after("import heliograph\nheliograph.connect\nheliograph.Client\nheliograph.AsyncClient")
    assert not {name for name in loaded if name.split(".")[0] in ("ray", "uvicorn", "jwt", "cryptography", "passlib")}
    folders = {name.split(".")[1] for name in loaded if name.startswith("heliograph.")}
    assert folders == {
        "auth",
        "base",
        "client",
        "operations",
        "protocol",
        "ray",
    }  # the last loads nothing of Ray


@pytest.mark.parametrize(
    "program",
    [
        "import heliograph; found = heliograph.errors.NotFoundError",
        "import heliograph.errors; found = heliograph.errors.NotFoundError",
        "from heliograph.errors import NotFoundError as found",
        "from heliograph import errors; found = errors.NotFoundError",
    ],
)
def test_errors_are_reached_as_attribute_and_as_module(program: str) -> None:
    check = "from heliograph.base.errors import NotFoundError\nassert found is NotFoundError"
    subprocess.run([sys.executable, "-c", f"{program}\n{check}"], check=True, timeout=120)


def test_every_error_of_the_base_tree_is_public() -> None:
    defined = {
        name for name, value in vars(tree).items() if isinstance(value, type) and value.__module__ == tree.__name__
    }
    assert defined == set(tree.__all__)
    assert set(tree.__all__) <= set(vars(import_module("heliograph.errors")))


def test_a_start_without_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tree.ResourceError, match=r"needs ray: pip install 'heliograph-ray\[cluster\]'"):
        heliograph.start()
