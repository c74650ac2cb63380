"""The method ``tls``: the role is the common name of the certificate that the client presented."""

from __future__ import annotations

from typing_extensions import override

from heliograph.auth.principal import METHOD_TLS, Credentials, Principal
from heliograph.auth.provider import AuthenticationProvider
from heliograph.base.errors import AuthenticationError


class TlsProvider(AuthenticationProvider):
    """Takes the role from a certificate that TLS has verified; data of the client is not read."""

    method = METHOD_TLS

    @override
    async def authenticate(self, credentials: Credentials) -> Principal:
        if not credentials.certificate:
            raise AuthenticationError("the client presented no certificate that was verified")
        names = [
            value
            for part in credentials.certificate.get("subject", ())
            for name, value in part
            if name == "commonName" and value.strip()
        ]
        if len(names) != 1:
            raise AuthenticationError(f"the certificate has {len(names)} common names, it must have one")
        return Principal(names[0], method=METHOD_TLS)
