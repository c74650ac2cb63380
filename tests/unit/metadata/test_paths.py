"""Names of users in paths: each has a node of its own, and comes back as it was."""

from __future__ import annotations

import pytest

from heliograph.metadata import paths
from heliograph.metadata.znode import check_path


@pytest.mark.parametrize("name", [".", "..", "...", "a/b", "%2E", "a.b", "ä\n", " "])
def test_any_name_has_a_node(name: str) -> None:
    path = paths.cursor("/topics/public/default/a", name)
    check_path(path)
    assert path.count("/") == 5
    assert paths.last_part(path) == name
