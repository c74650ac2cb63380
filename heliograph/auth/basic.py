"""The method ``basic``: users and passwords of an htpasswd file."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from passlib.apache import HtpasswdFile
from passlib.context import CryptContext
from typing_extensions import override

from heliograph.auth.config import AuthConfig
from heliograph.auth.keys import Source
from heliograph.auth.principal import METHOD_BASIC, Credentials, Principal
from heliograph.auth.provider import AuthenticationProvider
from heliograph.base.errors import AuthenticationError, InvalidConfigError

DATA_BYTES_MAX = 1_024  # user, colon and password # I15
CACHED_MAX = 1_000  # users whose password was right # I15
WAITING_MAX = 256  # checks that wait for a thread # I15
THREADS = 2

# The formats that htpasswd writes, without plain text.
_CONTEXT = CryptContext(schemes=["bcrypt", "sha256_crypt", "sha512_crypt", "apr_md5_crypt", "ldap_sha1", "des_crypt"])


class BasicProvider(AuthenticationProvider):
    """Checks passwords on threads of its own, because their hashes are slow on purpose.

    A password that was right is remembered, as a keyed hash, until the file changes.

    Raises:
        InvalidConfigError: the file cannot be read.
    """

    method = METHOD_BASIC

    def __init__(self, config: AuthConfig) -> None:
        self._file = Source(config.basic_file, "auth.basic_file", _users)
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, str] = OrderedDict()  # keyed hash of user and password -> hash in the file
        self._waiting = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="heliograph-basic")
        self._unknown = str(_CONTEXT.handler("apr_md5_crypt").hash(secrets.token_hex(16)))

    @override
    async def authenticate(self, credentials: Credentials) -> Principal:
        data = credentials.data
        if len(data) > DATA_BYTES_MAX:
            raise AuthenticationError(f"user and password have {len(data)} bytes, the limit is {DATA_BYTES_MAX}")
        user, colon, password = data.partition(b":")
        if not colon or not user or not password or b"\0" in data:
            raise AuthenticationError("user and password are missing or malformed")
        known = self._file.value.get(user)
        digest = hmac.new(self._key, data, hashlib.sha256).digest()
        if known is not None and hmac.compare_digest(self._right.get(digest, ""), known):
            self._right.move_to_end(digest)
        elif await self._is_right(password, known or self._example()) and known is not None:
            self._right[digest] = known
            while len(self._right) > CACHED_MAX:
                self._right.popitem(last=False)
        else:
            raise AuthenticationError("unknown user or wrong password")
        try:
            return Principal(user.decode(), method=METHOD_BASIC)
        except UnicodeDecodeError:
            raise AuthenticationError("the user's name is not UTF-8") from None

    @override
    def reload_if_changed(self) -> None:
        if self._file.reload_if_changed():
            self._right.clear()

    @override
    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _is_right(self, password: bytes, known: str) -> bool:
        if self._waiting >= WAITING_MAX:
            raise AuthenticationError(f"{self._waiting} checks of passwords wait already")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _matches, password, known)
        finally:
            self._waiting -= 1

    def _example(self) -> str:
        """Return a hash for the password of an unknown user, whose check takes as long as a known user's."""
        return next(iter(self._file.value.values()), self._unknown)


def _matches(password: bytes, known: str) -> bool:
    try:
        return bool(_CONTEXT.verify(password, known))
    except (ValueError, TypeError):  # longer than the scheme allows
        return False


def _users(content: bytes) -> dict[bytes, str]:
    try:
        file = HtpasswdFile.from_string(content)
        users = {os.fsencode(user): file.get_hash(user).decode("ascii") for user in file.users()}
    except (ValueError, TypeError, AttributeError):
        raise InvalidConfigError("basic_file is no htpasswd file", field="auth.basic_file") from None
    for user, known in users.items():
        if _CONTEXT.identify(known) is None:
            raise InvalidConfigError(
                f"basic_file: the password of {user!r} is kept in a form that is not supported: use htpasswd -B",
                field="auth.basic_file",
            )
    return users
