"""Keys of tokens that an issuer publishes by https, as a JSON Web Key Set (RFC 7517)."""

from __future__ import annotations

import http.client
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from heliograph.auth.keys import KEY_FILE_BYTES_MAX, TokenKey, key_set
from heliograph.base.errors import InvalidConfigError

SETTING = "auth.token_jwks_url"
ANSWER_SECONDS = 5.0
REFRESH_SECONDS = 300.0  # between two regular fetches, in which the issuer's new keys and removals become known
UNKNOWN_SECONDS = 10.0  # between two fetches because of tokens whose key is not known, which strangers can make # I15

log = logging.getLogger(__name__)


class RemoteKeySet:
    """The keys of one address by their ids, fetched again now and then. What was fetched stays if a later fetch fails.

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
        self._fetching = threading.Lock()
        self._fetched_at = -REFRESH_SECONDS
        self.fetch()

    def reload_if_changed(self) -> None:
        """Begin to fetch the set on a thread, if the last fetch is old."""
        if self._clock() - self._fetched_at >= REFRESH_SECONDS and not self._fetching.locked():
            threading.Thread(target=self.fetch, name="token-keys", daemon=True).start()

    def lacks(self, kid: Any) -> bool:
        """Return whether a fetch could find the key of a token, and is due."""
        return isinstance(kid, str) and kid not in self.value and self._clock() - self._fetched_at >= UNKNOWN_SECONDS

    def fetch(self) -> None:
        """Fetch the set, unless another thread does. Blocks for some seconds at most; a failure is logged."""
        if not self._fetching.acquire(blocking=False):
            return
        try:
            self._fetched_at = self._clock()
            opener = urllib.request.build_opener(
                urllib.request.HTTPSHandler(context=ssl.create_default_context()), _NoRedirect()
            )
            with opener.open(self._url, timeout=ANSWER_SECONDS) as answer:
                content = answer.read(KEY_FILE_BYTES_MAX + 1)
            if len(content) > KEY_FILE_BYTES_MAX:
                raise InvalidConfigError(f"it is above {KEY_FILE_BYTES_MAX} bytes", field=SETTING)
            found = key_set(content)
            if any(isinstance(one.key, bytes) for one in found.values()):
                raise InvalidConfigError("it holds secret keys, which are not published", field=SETTING)
            self.value = found
        except (OSError, ValueError, http.client.HTTPException, InvalidConfigError) as error:
            log.error("the keys of tokens at %s cannot be fetched, %d known ones stay: %s", self._url, len(self.value),
                      error)  # fmt: skip
        finally:
            self._fetching.release()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could lead away from https."""

    @override
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise urllib.error.HTTPError(req.full_url, code, "redirects are not followed", headers, fp)
