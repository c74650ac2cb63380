"""Modules of the console as one script: what runs first, what is kept, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from graphlib import CycleError
from pathlib import Path

import pytest

from heliograph.gateway.console.joined import joined

MODULES = {
    "app.js": '// The entry.\nimport { add, html } from "./lib.js";\nimport * as page from "./pages/one.js";\n'
    "console.log(add(1, 2), page.default(3), page.route.path, html);\n",
    "lib.js": 'import { base } from "./vendor/base.js";\nconst html = `a\n  b`;\nexport { html };\n'
    "export const add = (a, b) => {\n  // adds\n\n  return a + b + base; // a sum\n};\nexport const url = 'a // b';\n",
    "pages/one.js": 'import { add } from "../lib.js";\nexport const route = { path: "one" };\n'
    "export default function One(n) {\n  return add(n, n);\n}\n",
}


def test_the_joined_script_does_what_the_modules_do(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: make servers installs it")
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "base.js").write_text("export const base = 10;\n")
    (tmp_path / "vendor" / "package.json").write_text('{"type": "module"}')
    (tmp_path / "app.mjs").write_text(joined(MODULES, "app.js"))
    ran = subprocess.run([node, str(tmp_path / "app.mjs")], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["13", "16", "one", "a", "b"]


def test_comments_and_empty_lines_are_left_out_and_texts_are_not() -> None:
    script = joined(MODULES, "app.js")
    assert "a // b" in script
    assert not [word for word in ("The entry", "adds", "a sum", "\n\n") if word in script]


def test_what_is_not_understood_is_refused_and_names_the_module() -> None:
    for line in ('import {\n  add } from "./lib.js";\n', "export default 3;\n", "import('./lib.js');\n"):
        with pytest.raises(ValueError, match=r"app\.js: .(import|export)"):
            joined({"app.js": line}, "app.js")
    with pytest.raises(ValueError, match=r"no module pages/none\.js"):
        joined({"app.js": 'import { x } from "./pages/none.js";\n'}, "app.js")
    circle = {"app.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./app.js";\n'}
    with pytest.raises(CycleError):
        joined(circle, "app.js")
