"""The console's page, scripts and styles, from the package. They are the same in every installation and hold no data.

``/console/{digest}/...`` has the digest of all files in it, so that browsers keep them and never mix two releases.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import cramjam
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from heliograph.base.errors import NotFoundError
from heliograph.gateway.console.joined import VENDOR, joined
from heliograph.gateway.http.door import CONSOLE

_MEDIA_TYPES = {"js": "text/javascript", "css": "text/css"}  # other files of the folder are not served
_PAGE, _ENTRY = "index.html", "app.js"
# Scripts and styles are files of this gateway; a string becomes neither a script nor HTML, and no page frames this one.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_FOR_EVER = {"Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is, and by the encodings that browsers take, the smallest first."""

    content: bytes
    encoded: dict[str, bytes]
    media_type: str


@router.get("/")
async def page() -> HTMLResponse:
    """Return the console's page."""
    return HTMLResponse(
        await asyncio.to_thread(_page), headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}
    )


@router.get(CONSOLE + "{digest}/{path:path}")
async def asset(request: Request, digest: str, path: str) -> Response:
    """Return a script or a style; 404 for one of another release, whose page is not shown any more."""
    found = (await asyncio.to_thread(assets)).get(path)  # the first time it compresses all of them
    if found is None or digest != digest_of_all():
        raise NotFoundError("the console of this release has no such file: load the page again", field="path")
    taken = {part.partition(";")[0].strip() for part in request.headers.get("accept-encoding", "").split(",")}
    for encoding, content in found.encoded.items():
        if encoding in taken:
            headers = {**_FOR_EVER, "Content-Encoding": encoding}
            return Response(content, media_type=found.media_type, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=_FOR_EVER)


@cache
def assets() -> dict[str, Asset]:
    """Return the scripts and styles by their paths: our modules as one script, the others as they are."""
    found = {path: content for path, content in _contents(_folder(), "") if path.rpartition(".")[2] in _MEDIA_TYPES}
    own = {path for path in found if path.endswith(".js") and not path.startswith(VENDOR)}
    script = joined({path: found[path].decode() for path in own}, _ENTRY)
    served = {path: content for path, content in found.items() if path not in own} | {_ENTRY: script.encode()}
    return {
        path: Asset(content, _encoded(content), _MEDIA_TYPES[path.rpartition(".")[2]])
        for path, content in served.items()
    }


def _encoded(content: bytes) -> dict[str, bytes]:
    """Return the encodings that browsers take: brotli over TLS and from this machine, gzip everywhere."""
    return {"br": bytes(cramjam.brotli.compress(content, level=11)), "gzip": gzip.compress(content, mtime=0)}


@cache
def digest_of_all() -> str:
    """Return a short digest of all scripts and styles with their names."""
    digest = hashlib.sha256()
    for path, found in sorted(assets().items()):
        digest.update(b"%s\0%d\0%s" % (path.encode(), len(found.content), found.content))
    return digest.hexdigest()[:16]


@cache
def _page() -> str:
    text = _folder().joinpath(_PAGE).read_text(encoding="utf-8")
    return text.replace("{assets}", f"{CONSOLE.lstrip('/')}{digest_of_all()}")


def _folder() -> Traversable:
    return files("heliograph.gateway.console").joinpath("static")


def _contents(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for item in folder.iterdir():
        if item.is_dir():
            found += _contents(item, f"{prefix}{item.name}/")
        else:
            found.append((prefix + item.name, item.read_bytes()))
    return found
