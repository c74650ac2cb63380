"""The certificate of one node, signed by the authority of the cluster, whose key is on another machine.

The key of the node is made on the node and stays there. It sends a request with its names, which the authority signs.
"""

from __future__ import annotations

import datetime
import fcntl
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from heliograph.base.errors import ResourceError
from heliograph.base.home import make_private, replace_private
from heliograph.base.tls.authority import ALWAYS_NAMED, CertificateAuthority, is_ending, key_bytes, request_of

Sign = Callable[[bytes], tuple[bytes, bytes]]  # a request to the certificate and the authority's own, all in PEM


def ensure_node_certificate(directory: Path, hosts: Iterable[str], sign: Sign) -> bool:
    """Make the certificate of this node if it is missing, about to end, or without one of its names.

    Where the authority itself is in the directory, it adds the names to the certificate there.

    Args:
        directory: has ``parts.pem``, ``parts.key`` and ``ca.pem`` afterwards.
        hosts: names and addresses by which others reach the node.
        sign: asks the authority.

    Returns:
        whether it was made.

    Raises:
        ResourceError: a file cannot be read or written; names the directory.
        HeliographError: as ``sign`` raises it.
    """
    authority = CertificateAuthority(directory)
    try:
        make_private(directory)
        with _alone(directory):
            if authority.file("ca.key").exists():
                return bool(authority.ensure(hosts))
            wanted = {*ALWAYS_NAMED, socket.gethostname(), *hosts} - {"", "0.0.0.0", "::"}
            found = authority.facts_of("parts.pem")
            if found is not None and wanted <= {*found.names} and not is_ending(found):
                return False
            key = ec.generate_private_key(ec.SECP256R1())
            certificate, ca = sign(request_of(key, wanted | {*(found.names if found else ())}))
            replace_private(authority.file("ca.pem"), ca)
            replace_private(authority.file("parts.key"), key_bytes(key))
            replace_private(authority.file("parts.pem"), certificate)
            return True
    except (OSError, ValueError) as error:
        raise ResourceError(f"the certificate of this node in {directory} cannot be used: {error}") from error


def has_certificate(directory: Path, hosts: Iterable[str]) -> bool:
    """Return whether the node has a certificate of these names that has not ended, however soon it does."""
    try:
        found = CertificateAuthority(directory).facts_of("parts.pem")
    except (OSError, ValueError):
        return False
    return found is not None and {*hosts} <= {*found.names} and datetime.datetime.now(datetime.UTC) < found.ends


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other parts that start on this node out for the length of the block."""
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
