"""The greeting of a connection with a bookie: versions, and the handshake (``heliograph/base/guard/handshake.py``)."""

from __future__ import annotations

from heliograph.actors.errors import BookieVersionError, FrameError
from heliograph.actors.wire.grant import ReadGrant, verified_grant
from heliograph.actors.wire.messages import PROTOCOL_VERSION, REVISION, Answer, BookieOp, BookieRequest, Status
from heliograph.base.clock import wall_ms
from heliograph.base.errors import AuthenticationError, VersionMismatchError
from heliograph.base.guard.handshake import BOOKIE, NONCE_BYTES, ClientHandshake, ServerHandshake, secrets_of
from heliograph.base.version import own_release, release_numbered, require_meeting


def hello() -> BookieRequest:
    return BookieRequest(BookieOp.HELLO, 0, ledger_id=PROTOCOL_VERSION, entry_id=REVISION, limit=own_release().number)


def revision_of(hello_request: BookieRequest) -> int:
    """Return the revision of the protocol that both ends of a HELLO know."""
    return min(max(hello_request.entry_id, 0), REVISION)


def revision_in(welcome: bytes) -> int:
    """Return the revision that both ends know, from the body of the OK answer to a HELLO."""
    return min(welcome[0], REVISION) if welcome else 0


def hello_fault(request: BookieRequest, bookie_id: str) -> str:
    """Return why a bookie does not talk with the client of a HELLO; empty if it does."""
    if request.ledger_id != PROTOCOL_VERSION:
        return f"protocol {request.ledger_id}; this bookie speaks {PROTOCOL_VERSION}"
    try:
        require_meeting(release_numbered(request.limit), f"the client of {bookie_id}")
    except VersionMismatchError as error:
        return str(error)
    return ""


def check_answer(answer: Answer, bookie_id: str, address: str) -> None:
    """Check the answer to a HELLO.

    Raises:
        BookieVersionError: the versions of both ends are too far apart; names both.
        FrameError: the bookie refuses the client, or another one answers.
    """
    if answer.status is Status.UNAUTHORIZED:
        raise FrameError("it does not accept this client's secret, or this client has none")
    if answer.status is Status.BAD_VERSION:
        raise BookieVersionError(f"bookie {bookie_id} refuses this client: {answer.text}")
    if answer.status not in {Status.OK, Status.CHALLENGE}:
        raise FrameError(f"it refuses the greeting: {answer.text}")
    if answer.text and answer.text != bookie_id:
        raise FrameError(f"another bookie, {answer.text}, answers at {address}")
    try:
        require_meeting(release_numbered(answer.last_add_confirmed), f"bookie {bookie_id}")
    except VersionMismatchError as error:
        raise BookieVersionError(str(error)) from error


class Greeting:
    """The bookie's end of the handshake. ``grant`` says what the client may read; None: everything."""

    def __init__(self, secret: str) -> None:
        """
        Args:
            secret: the valid secrets, one a line.
        """
        self.grant: ReadGrant | None = None
        self._secret = secret
        self._handshake: ServerHandshake | None = None

    def answer(self, body: bytes, bookie_id: str) -> tuple[Status, bytes]:
        """Return status and body of the answer to a HELLO: CHALLENGE, then OK. UNAUTHORIZED ends the connection."""
        if self._handshake is not None:
            return (Status.OK if self._handshake.accepts(body) else Status.UNAUTHORIZED), b""
        nonce, claims = body[:NONCE_BYTES], body[NONCE_BYTES:]
        if claims:
            try:
                self.grant = verified_grant(claims, secrets_of(self._secret), wall_ms())
            except AuthenticationError:
                return Status.UNAUTHORIZED, b""
        known = self._secret if self.grant is None else self.grant.key
        self._handshake = ServerHandshake(known, BOOKIE, bookie_id)
        challenge = self._handshake.challenge(nonce)
        return (Status.CHALLENGE if challenge else Status.UNAUTHORIZED), challenge


class ClientGreeting:
    """The client's end of the handshake. ``hello`` is the body of its first HELLO.

    Args:
        proven: the cluster's secrets, one a line, or a grant.
    """

    def __init__(self, proven: str | ReadGrant) -> None:
        secret, claims = (proven, b"") if isinstance(proven, str) else (proven.key, proven.claims)
        self._handshake = ClientHandshake(secret, BOOKIE)
        self.nonce = self._handshake.nonce
        self.hello = self.nonce + claims

    def prove(self, body: bytes, bookie_id: str) -> bytes:
        """Return the body of the second HELLO, which answers a CHALLENGE.

        Raises:
            FrameError: the bookie does not know the secret, or asks twice.
        """
        try:
            return self._handshake.prove(body, bookie_id)
        except AuthenticationError as error:
            raise FrameError(str(error)) from error

    def check_welcome(self) -> None:
        """Raise FrameError if the bookie answers OK without a proof that it knows the secret."""
        if not self._handshake.is_proved:
            raise FrameError("it asks for no proof of the cluster's secret, so it may not belong to the cluster")
