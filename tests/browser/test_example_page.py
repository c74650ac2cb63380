"""examples/page: a page of another origin follows a topic, publishes to it, and asks a responder."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect

import heliograph
from tests.browser.conftest import HOSTILE, ROOT, apart

PAGE = ROOT / "examples" / "page"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve a folder at a port of its own, and yield the origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(directory)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_page_follows_publishes_and_asks(browser: Browser, tmp_path: Path) -> None:
    with (
        served(PAGE) as origin,
        heliograph.local(tmp_path, gateway={"allowed_origins": (origin,)}) as cluster,
        browser.new_context() as context,
    ):
        client = apart(cluster.connect)
        producer = client.producer("flights")
        apart(lambda: producer.send_many([HOSTILE, *(f"flight {number}" for number in range(25))]))
        responder = apart(lambda: client.respond("flights-asked", bytes.upper))
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{origin}/?topic=flights&gateway={cluster.http_url}")
        items = page.locator("#messages li")
        expect(page.locator("#state")).to_have_text("following")
        expect(items).to_have_count(20)
        expect(items.last).to_have_text("flight 24")
        page.fill("input", HOSTILE)
        page.click("button[name=publish]")
        expect(items.last).to_have_text(HOSTILE)
        page.fill("input", "hello")
        page.click("button[name=ask]")
        expect(page.locator("#reply")).to_have_text("HELLO")
        apart(responder.close)
        apart(client.close)
        assert not errors
