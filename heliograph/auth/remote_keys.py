"""Keys of tokens that an issuer publishes by https, as a JSON Web Key Set (RFC 7517)."""

from __future__ import annotations

import asyncio
import http.client
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from typing_extensions import override

from heliograph.auth.keys import KEY_FILE_BYTES_MAX, TokenKey, key_set
from heliograph.base.errors import InvalidConfigError

SETTING = "auth.token_jwks_url"
ANSWER_SECONDS = 5.0  # for each part of an answer, and for all of its body
LOGIN_SECONDS = 5.0  # that a log-in waits for a fetch; then the known keys decide
REFRESH_SECONDS = 300.0  # between two regular fetches, in which the issuer's new keys and removals become known
UNKNOWN_SECONDS = 10.0  # between two fetches because of tokens whose key is not known, which strangers can make # I15

log = logging.getLogger(__name__)


class RemoteKeySet:
    """The keys of one address by their ids, fetched again now and then. Fetched keys stay if a later fetch fails.

    The first fetch begins at once, and each runs on a thread, one at a time. All calls on one event loop.

    Args:
        url: of the set, https.
        clock: monotonic seconds.

    Attributes:
        value: the keys; none before a fetch succeeded.

    Raises:
        InvalidConfigError: the address is not https.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        if not url.startswith("https://"):
            raise InvalidConfigError(f"{url!r} is not of the form https://...", field=SETTING)
        self.value: dict[str, TokenKey] = {}
        self._url = url
        self._clock = clock
        self._began = clock()
        self._fetched = self._begin()

    def reload_if_changed(self) -> None:
        """Begin to fetch the set, if the last fetch is old."""
        if self._fetched.done() and self._clock() - self._began >= REFRESH_SECONDS:
            self._fetched = self._begin()

    async def look_for_more(self) -> None:
        """Wait for the fetch that runs or is due, for a token whose key is not known; LOGIN_SECONDS at most."""
        if self._fetched.done():
            if self._clock() - self._began < UNKNOWN_SECONDS:
                return
            self._fetched = self._begin()
        await asyncio.wait([asyncio.wrap_future(self._fetched)], timeout=LOGIN_SECONDS)

    def _begin(self) -> Future[None]:
        self._began = self._clock()
        fetched: Future[None] = Future()

        def work() -> None:
            try:
                self._fetch()
            finally:
                fetched.set_result(None)

        threading.Thread(target=work, name="token-keys", daemon=True).start()
        return fetched

    def _fetch(self) -> None:
        end = self._clock() + ANSWER_SECONDS
        try:
            opener = urllib.request.build_opener(
                urllib.request.HTTPSHandler(context=ssl.create_default_context()), _NoRedirect()
            )
            with opener.open(self._url, timeout=ANSWER_SECONDS) as answer:
                content = b""
                while len(content) <= KEY_FILE_BYTES_MAX and (part := answer.read1(1 << 16)):
                    content += part
                    if self._clock() > end:
                        raise TimeoutError(f"the answer takes more than {ANSWER_SECONDS:g} s")
            if len(content) > KEY_FILE_BYTES_MAX:
                raise InvalidConfigError(f"it is above {KEY_FILE_BYTES_MAX} bytes", field=SETTING)
            found = key_set(content)
            if any(isinstance(one.key, bytes) for one in found.values()):
                raise InvalidConfigError("it holds secret keys, which are not published", field=SETTING)
            self.value = found
        except (OSError, ValueError, http.client.HTTPException, InvalidConfigError) as error:
            log.error("the keys of tokens at %s cannot be fetched, %d known ones stay: %s", self._url, len(self.value),
                      error)  # fmt: skip


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could lead away from https."""

    @override
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise urllib.error.HTTPError(req.full_url, code, "redirects are not followed", headers, fp)
