"""The two ends of the handshake of a connection. Their only input besides messages is a random nonce."""

from __future__ import annotations

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.handshake import NONCE_BYTES, PROOF_BYTES, bookie_proof, client_proof, is_proof, new_nonce
from heliograph.actors.wire.messages import Status


class Greeting:
    """The bookie's end of the handshake."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._nonce = new_nonce()
        self._client_nonce = b""

    def answer(self, body: bytes, bookie_id: str) -> tuple[Status, bytes]:
        """Return status and body of the answer to a HELLO: CHALLENGE, then OK. UNAUTHORIZED ends the connection."""
        if not self._client_nonce:
            if len(body) != NONCE_BYTES:
                return Status.UNAUTHORIZED, b""
            self._client_nonce = body
            return Status.CHALLENGE, self._nonce + bookie_proof(self._secret, body, self._nonce, bookie_id)
        expected = client_proof(self._secret, self._client_nonce, self._nonce, bookie_id)
        return (Status.OK if is_proof(body, expected) else Status.UNAUTHORIZED), b""


class ClientGreeting:
    """The client's end of the handshake. ``nonce`` is the body of its first HELLO."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._is_proved = False
        self.nonce = new_nonce()

    def prove(self, body: bytes, bookie_id: str) -> bytes:
        """Return the body of the second HELLO, which answers a CHALLENGE.

        Raises:
            FrameError: the bookie does not know the secret, or asks twice.
        """
        nonce, proof = body[:NONCE_BYTES], body[NONCE_BYTES:]
        if self._is_proved or len(nonce) != NONCE_BYTES or len(proof) != PROOF_BYTES:
            raise FrameError("its challenge is malformed or comes twice")
        if not is_proof(proof, bookie_proof(self._secret, self.nonce, nonce, bookie_id)):
            raise FrameError("it does not know the cluster's secret")
        self._is_proved = True
        return client_proof(self._secret, self.nonce, nonce, bookie_id)

    def check_welcome(self) -> None:
        """Raise FrameError if the bookie answers OK without a proof that it knows the secret."""
        if not self._is_proved:
            raise FrameError("it asks for no proof of the cluster's secret, so it may not belong to the cluster")
