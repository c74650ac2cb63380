"""The blocks of code of a page, and how they are run beside a cluster of the page's own.

- ``python`` blocks run in the order of the page, in one namespace. A later block uses the names of an earlier one.
- ``sh`` blocks run in a shell that stops at the first failure, with ``helio`` on its path.
- ``js`` blocks run in Node, where there is one.

``heliograph.connect()``, ``helio`` and the address of the gateway reach a ``helio dev`` that the page has to itself. A
block behind ``<!-- not run: why -->`` does not run; it is compiled, if it is Python.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rules.source import ROOT

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^```(?P<kind>[\w{}-]*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
_READY_SECONDS = 60.0
_SECONDS = 120.0
GATEWAY, BROKER = "http://127.0.0.1:8080", "pulsar://127.0.0.1:6650"  # the addresses that pages name
NODE = shutil.which("node")


@dataclass(frozen=True)
class Snippet:
    """A block of code of a page."""

    kind: str
    code: str
    line: int  # of the page, of the first line of the code
    reason: str | None  # why it is not run


def snippets(page: Path) -> list[Snippet]:
    """Return the blocks of a page in their order."""
    text = page.read_text()
    return [
        Snippet(each["kind"], each["code"], text.count("\n", 0, each.start("code")) + 1, each["reason"])
        for each in _BLOCK.finditer(text)
    ]


def pages_with_code() -> list[str]:
    """Return the names of the pages that have a block to run."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [str(page.relative_to(ROOT)) for page in pages if any(runs(each) for each in snippets(page))]


def runs(snippet: Snippet) -> bool:
    """Return whether a block is run."""
    return snippet.kind in ("python", "sh", "js") and snippet.reason is None


@dataclass(frozen=True)
class Addresses:
    """Where the cluster of a page listens."""

    broker: str
    gateway: str

    def put_into(self, code: str) -> str:
        """Return code with the addresses of the cluster in the place of the usual ones."""
        return (
            code.replace(BROKER, self.broker).replace(GATEWAY, self.gateway).replace("127.0.0.1:8080", self.gateway[7:])
        )


@contextlib.contextmanager
def development_cluster(state: Path) -> Iterator[Addresses]:
    """Run ``helio dev`` in a process, so that programs of this state directory find it, until the end of the block."""
    command = [_helio(), "dev", "--port", "0", "--http-port", "0"]
    log = (state / "dev.txt").open("w+")
    environment = {**os.environ, "HELIOGRAPH_STATE_ROOT": str(state), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        begun = time.monotonic()
        while True:
            shown = (state / "dev.txt").read_text()
            broker, gateway = re.search(r"pulsar://[\w.:]+", shown), re.search(r"http://[\w.:]+", shown)
            if broker and gateway:
                break
            assert process.poll() is None, shown
            assert time.monotonic() - begun < _READY_SECONDS, shown
            time.sleep(0.05)
        yield Addresses(broker[0], gateway[0])
    finally:
        process.terminate()
        process.wait(_SECONDS)
        log.close()


def run_page(page: Path, state: Path) -> None:
    """Run the blocks of a page. Programs of the page run in ``state`` as their working directory."""
    found = snippets(page)
    has_own = any("heliograph.local(" in each.code for each in found)
    names: dict[str, Any] = {"__name__": "page"}
    with contextlib.ExitStack() as stack:
        addresses = Addresses(BROKER, GATEWAY) if has_own else stack.enter_context(development_cluster(state))
        stack.callback(_close, names)
        for snippet in found:
            code = addresses.put_into(snippet.code)
            if snippet.kind == "python":
                numbered = "\n" * (snippet.line - 1) + code  # tracebacks show the line of the page
                compiled = compile(numbered, str(page), "exec")
                if runs(snippet):
                    exec(compiled, names)
            elif runs(snippet) and snippet.kind == "sh":
                _program(["bash", "-euo", "pipefail", "-c", code], state, page, snippet)
            elif runs(snippet) and NODE is not None:
                _program([NODE, "--input-type=module", "-e", code], state, page, snippet)


def _program(command: list[str], state: Path, page: Path, snippet: Snippet) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "HELIOGRAPH_STATE_ROOT": str(state), "PATH": path}
    ran = subprocess.run(
        command, cwd=state, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert ran.returncode == 0, f"{page.name}:{snippet.line}:\n{snippet.code}\n{ran.stdout}{ran.stderr}"


def _close(names: dict[str, Any]) -> None:
    """Close the clients of a page, and then its clusters."""
    for end in ("close", "stop"):
        for value in names.values():
            if type(value).__module__.startswith("heliograph.") and hasattr(value, end) and not isinstance(value, type):
                getattr(value, end)()


def _helio() -> str:
    return str(Path(sys.executable).with_name("helio"))


if __name__ == "__main__":
    run_page(*map(Path, sys.argv[1:]))
