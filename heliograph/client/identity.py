"""Credentials that a client shows brokers: a token, or user and password, read again for each connection."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypedDict

from heliograph.auth.principal import METHOD_BASIC, METHOD_NONE, METHOD_TLS, METHOD_TOKEN, Credentials
from heliograph.base.errors import AuthenticationError, InvalidConfigError

TOKEN_VARIABLE = "HELIOGRAPH_TOKEN"
TOKEN_FILE_VARIABLE = "HELIOGRAPH_TOKEN_FILE"
USER_VARIABLE = "HELIOGRAPH_USER"
PASSWORD_VARIABLE = "HELIOGRAPH_PASSWORD"

TokenSupplier = Callable[[], str]


class IdentityOptions(TypedDict, total=False):
    """The options by which a caller says who it is; those of ``Identity``."""

    token: str | TokenSupplier | None
    token_file: str | None
    user: str | None
    password: str | None


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that a client claims. It can be pickled if its supplier can, and shows no secret when it is printed.

    Attributes:
        token: a JWT, or a function that returns one; it runs on a thread, and is asked at each new connection and when
            a broker asks for credentials again.
        token_file: path of a file with a token, read as often.
        user, password: for the method ``basic``.
        original_principal: the role that a proxy speaks for.

    Raises:
        InvalidConfigError: more than one of token, file and user is given, or a user without a password.
    """

    token: str | TokenSupplier | None = field(default=None, repr=False)
    token_file: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    original_principal: str | None = None

    def __post_init__(self) -> None:
        if (self.token, self.token_file, self.user).count(None) < 2:
            raise InvalidConfigError("give one of token, token_file and user", field="token,token_file,user")
        if (self.user is None) != (self.password is None):
            raise InvalidConfigError("a user needs a password: give user and password together", field="user,password")

    @classmethod
    def from_environment(cls) -> Self:
        """Return the identity that the environment names; an empty one if it names none.

        The first that is set counts: HELIOGRAPH_TOKEN, HELIOGRAPH_TOKEN_FILE, HELIOGRAPH_USER with HELIOGRAPH_PASSWORD.

        Raises:
            InvalidConfigError: there is a user without a password.
        """
        if token := os.environ.get(TOKEN_VARIABLE):
            return cls(token=token)
        if file := os.environ.get(TOKEN_FILE_VARIABLE):
            return cls(token_file=file)
        if user := os.environ.get(USER_VARIABLE):
            return cls(user=user, password=os.environ.get(PASSWORD_VARIABLE) or None)
        return cls()

    @classmethod
    def of(cls, options: IdentityOptions) -> Self:
        """Return the identity that a caller gives, or else that of the environment.

        Raises:
            InvalidConfigError: more than one of token, file and user is given, or a user without a password.
        """
        given = cls(**options)
        return cls.from_environment() if given.is_empty and given.password is None else given

    @property
    def options(self) -> IdentityOptions:
        """The arguments of ``connect`` that show this identity."""
        return {"token": self.token, "token_file": self.token_file, "user": self.user, "password": self.password}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is shown."""
        return self.token is None and self.token_file is None and self.user is None

    @property
    def blocks(self) -> bool:
        """Whether ``present`` reads a file or calls a function, and belongs on a thread."""
        return self.token_file is not None or callable(self.token)

    def present(self, *, has_certificate: bool = False) -> Credentials:
        """Return what a broker is shown now.

        Args:
            has_certificate: whether TLS shows the broker a certificate, which is the identity if there is no other.

        Raises:
            AuthenticationError: the file cannot be read, or the supplier failed or returned no text.
        """
        if self.user is not None:
            return Credentials(METHOD_BASIC, f"{self.user}:{self.password}".encode())
        if self.is_empty:
            return Credentials(METHOD_TLS if has_certificate else METHOD_NONE)
        return Credentials(METHOD_TOKEN, self._token().strip().encode())

    def _token(self) -> str:
        try:
            if self.token_file is not None:
                return Path(self.token_file).expanduser().read_text()
            found = self.token() if callable(self.token) else self.token
        except Exception as error:
            if self.token_file is not None:
                reason = getattr(error, "strerror", None) or type(error).__name__
                raise AuthenticationError(f"the token file {self.token_file} cannot be read: {reason}") from error
            raise AuthenticationError(f"there is no token: its supplier failed with {type(error).__name__}") from error
        if not isinstance(found, str):
            raise AuthenticationError("there is no token: its supplier returned no text")
        return found
