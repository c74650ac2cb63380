"""Ray's own view of actors and nodes, read from its dashboard over HTTP: no job is registered, Ray is not loaded."""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from heliograph.base.errors import ServiceNotReadyError

ANSWER_TIMEOUT_SECONDS = 2.0  # of one request
ANSWER_BYTES_MAX = 16 << 20  # I15
LISTED_MAX = 10_000  # actors or nodes; Ray's own limit
Json = dict[str, Any]


class RayDashboard:
    """The dashboard of a Ray cluster. Each call is one request; it blocks for 2 s at most.

    Every method raises ServiceNotReadyError when the dashboard does not answer, or with something else than a list.
    """

    def __init__(self, url: str, auth_mode: str) -> None:
        """
        Args:
            url: ``http://host:port``.
            auth_mode: that of Ray; with ``token``, this user's token of Ray is shown.
        """
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._headers = {"Authorization": f"Bearer {token}"} if auth_mode == "token" and (token := ray_token()) else {}

    def actors(self, namespace: str) -> list[Json]:
        """Return the named actors of a Ray namespace, dead ones included, with Ray's own names of the fields."""
        wanted = f"filter_keys=ray_namespace&filter_predicates={quote('=')}&filter_values={quote(namespace)}"
        return [actor for actor in self._listed(f"/api/v0/actors?detail=1&limit={LISTED_MAX}&{wanted}") if
                actor.get("ray_namespace") == namespace and actor.get("name")]  # fmt: skip

    def nodes(self) -> list[Json]:
        """Return the nodes, dead ones included, with Ray's own names of the fields."""
        return self._listed(f"/api/v0/nodes?detail=1&limit={LISTED_MAX}")

    def _listed(self, path: str) -> list[Json]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_TIMEOUT_SECONDS)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            data = answer.read(ANSWER_BYTES_MAX + 1)
            if answer.status != http.HTTPStatus.OK or len(data) > ANSWER_BYTES_MAX:
                raise ServiceNotReadyError(f"Ray's dashboard answers {answer.status} with {len(data)} bytes")
            found = json.loads(data)["data"]["result"]["result"]
            if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
                raise ServiceNotReadyError("Ray's dashboard does not answer with a list")
            return found
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServiceNotReadyError(f"Ray's dashboard does not answer: {error}") from error
        finally:
            connection.close()


def ray_token() -> str:
    """Return this user's token of Ray; empty if there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    try:
        return Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
