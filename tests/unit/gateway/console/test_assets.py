"""The console's files: served whole to anyone, small, unchanged where they are others', and joined to one script."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from graphlib import CycleError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cramjam
import httpx
import pytest

import heliograph.gateway.console as folder
from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.console.assets import POLICY, assets
from heliograph.gateway.console.joined import joined
from tests.unit.gateway.door.test_callers import AUTH
from tests.unit.gateway.world import View

STATIC = Path(folder.__path__[0]) / "static"
SCRIPTS_BYTES_MAX = 40_000  # of all scripts, ours and others', by each encoding that browsers get
ELSEWHERE = re.compile(r"https?://(?!www\.w3\.org/)")


async def test_the_page_names_files_that_anyone_gets_and_that_browsers_keep() -> None:
    nothing: Any = SimpleNamespace()
    app = create_app(nothing, nothing, GatewayConfig(auth=AUTH), View(), nothing, nothing)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8080") as http:
        page = await http.get("/")
        assert page.headers["content-security-policy"] == POLICY
        assert (page.headers["cache-control"], page.headers["x-frame-options"]) == ("no-store", "DENY")
        named = re.findall(r'(?:src|href)="(console/[^"]+)"', page.text)
        assert len(named) == 2
        for path in named:
            found = await http.get(f"/{path}")
            assert found.status_code == 200, path
            assert "immutable" in found.headers["cache-control"]
            assert found.headers["x-content-type-options"] == "nosniff"
            plain = await http.get(f"/{path}", headers={"Accept-Encoding": "identity"})
            for taken, encoding in {"gzip, deflate": "gzip", "gzip, br;q=1.0": "br"}.items():
                found = await http.get(f"/{path}", headers={"Accept-Encoding": taken})
                assert found.headers["content-encoding"] == encoding
                assert encoding == "br" or plain.content == found.content
        prefix = named[0].rpartition("/")[0]
        for other in (f"/{prefix}/index.html", f"/{prefix}/../console.py", "/console/0/app.js", "/console/x"):
            assert (await http.get(other)).status_code in (401, 404), other


def test_all_scripts_together_are_small() -> None:
    for encoding in ("gzip", "br"):
        sizes = {path: len(found.encoded[encoding]) for path, found in assets().items() if path.endswith(".js")}
        assert {"app.js", "vendor/htm-preact.js"} == set(sizes)
        assert sum(sizes.values()) < SCRIPTS_BYTES_MAX, (encoding, sizes)
    for found in assets().values():
        assert gzip.decompress(found.encoded["gzip"]) == found.content
        assert bytes(cramjam.brotli.decompress(found.encoded["br"])) == found.content


def test_files_of_others_are_unchanged_and_have_their_licences() -> None:
    sums = dict(line.split()[::-1] for line in (STATIC / "vendor" / "SHA256SUMS").read_text().splitlines())
    files = {path.name: path for path in (STATIC / "vendor").iterdir() if path.suffix in (".js", ".css")}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == sums
    for name in ("htm", "preact"):
        assert "Licen" in (STATIC / "vendor" / f"{name}.LICENSE").read_text()


def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_code() -> None:
    for path, found in assets().items():
        text = found.content.decode()
        assert not ELSEWHERE.search(text), path
        if not path.startswith("vendor/"):
            assert not re.search(r"innerHTML|dangerously|\beval\b|new Function|insertAdjacent|document\.write", text), (
                path
            )
            assert "localStorage" not in text, path


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
