"""Swagger's page at ``/docs``, with its script and style from this process, so that it works without internet."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Heliograph API</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon-32x32.png">
</head>
<body>
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
# A script of its own, because the policy runs no script that stands in the page. A user's credentials are
# forgotten with the page: persistAuthorization would keep them in localStorage.
_START = """"use strict";
SwaggerUIBundle({
  url: "openapi.json", dom_id: "#page", deepLinking: true, filter: true, tryItOutEnabled: true,
  displayRequestDuration: true, persistAuthorization: false, validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""
_MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
_DAY = {"Cache-Control": "max-age=86400"}

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs() -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    """Return the script that shows this gateway's OpenAPI document in the page."""
    return Response(_START, media_type="text/javascript")


def _add(name: str, media_type: str) -> None:
    async def resource() -> Response:
        return Response(_resource(name), media_type=media_type, headers=_DAY)

    router.add_api_route(f"/docs/{name}", resource, methods=["GET"])


for _name, _media_type in _MEDIA_TYPES.items():
    _add(_name, _media_type)


@cache
def _resource(name: str) -> bytes:
    return files("fastapi_swagger.resources").joinpath(name).read_bytes()
