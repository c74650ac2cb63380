"""The queue has every method of Ray's queue."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from heliograph.queue import Queue


def test_it_has_every_public_method_of_rays_queue_with_its_arguments() -> None:
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        pytest.skip("Ray is not installed")
    tree = ast.parse((Path(found.origin).parent / "util" / "queue.py").read_text())
    theirs = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Queue")
    methods = [node for node in theirs.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert len(methods) > 10
    for method in methods:
        ours = getattr(Queue, method.name).__code__
        names = [each.arg for each in method.args.args]
        assert list(ours.co_varnames[: len(names)]) == names, method.name
