"""Sabotage: a function of the product with some text of its source replaced, for as long as a context is entered."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

FILE_NAME = "<sabotage of "  # which the names of files begin with in tracebacks from sabotaged functions


@contextmanager
def sabotaged(target: str, old: str, new: str) -> Iterator[None]:
    """Replace ``old`` by ``new`` in the source of a function.

    Args:
        target: ``module:function`` or ``module:Class.method``; of a function that another module imports by its name,
            that module.
        old: text that stands in it exactly once, so that a sabotage cannot outlive the code that it is about.
    """
    module_name, _, path = target.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    real = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(real))
    assert source.count(old) == 1, f"{target} has {source.count(old)} times {old!r}"
    made: dict[str, Any] = {}
    body = textwrap.indent(source.replace(old, new), "    ")
    code = f"def make():\n{body}\n    return {name}\n"
    code = "from __future__ import annotations\n" + code
    exec(compile(code, f"{FILE_NAME}{target}>", "exec"), real.__globals__, made)
    with patch.object(owner, name, made["make"]()):
        yield
