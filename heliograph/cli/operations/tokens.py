"""``helio tokens``: keys and tokens, with the words and file formats of Pulsar's tools."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.base.errors import AuthenticationError, BadRequestError
from heliograph.cli.context import CommandContext, command, group

app = group("Make and check keys and tokens of clients.")

Algorithm = Annotated[str | None, typer.Option("--signature-algorithm", "-a", help="Such as HS256, RS256 or ES256.")]
SecretKey = Annotated[
    str | None, typer.Option("--secret-key", "-sk", help="file:///path, a path, data:;base64,... or base64.")
]
Token = Annotated[str | None, typer.Argument(help="The token. [default: --token-file, or standard input]")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", "-f", help="File with the token.")]


@command(app)
def create_secret_key(
    context: CommandContext,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write. [default: print]")] = None,
    as_base64: Annotated[bool, typer.Option("--base64", "-b", help="Write base64 instead of bytes.")] = False,
    signature_algorithm: Algorithm = None,
) -> None:
    """Make a secret key, which signs and checks tokens."""
    from heliograph.auth.issuing import new_secret_key, write_private

    key = new_secret_key(signature_algorithm or "HS256")
    text = base64.b64encode(key).decode()
    if output is None:
        context.output.result({"secret_key": text})
        _print(context, text)
        return
    write_private(output, text.encode() if as_base64 else key)
    context.report({"output": str(output)}, f"the secret key is in {output}")


@command(app)
def create_key_pair(
    context: CommandContext,
    output_private_key: Annotated[Path, typer.Option(help="File to write the private key to, which signs tokens.")],
    output_public_key: Annotated[Path, typer.Option(help="File to write the public key to, which brokers check by.")],
    signature_algorithm: Algorithm = None,
) -> None:
    """Make a private key and its public key. The private one signs tokens, the public one checks them."""
    from heliograph.auth.issuing import new_key_pair, write_private

    private, public = new_key_pair(signature_algorithm or "RS256")
    write_private(output_private_key, private)
    write_private(output_public_key, public)
    files = {"private_key": str(output_private_key), "public_key": str(output_public_key)}
    context.report(files, f"the private key is in {output_private_key}", f"the public key is in {output_public_key}")


@command(app)
def create(
    context: CommandContext,
    subject: Annotated[str, typer.Option("--subject", "-s", help="The role.")],
    expiry: Annotated[
        str | None, typer.Option("--expiry", "--expiry-time", "-e", help="Such as 1h, 3d or 1y. [default: no end]")
    ] = None,
    secret: SecretKey = None,
    private: Annotated[str | None, typer.Option("--private-key", "-pk", help="In the forms of --secret-key.")] = None,
    signature_algorithm: Algorithm = None,
) -> None:
    """Print a token for a role. Without a key, the cluster's own signs it."""
    from heliograph.auth.issuing import new_token, private_key, seconds_of
    from heliograph.auth.keys import content_of, secret_keys

    seconds = None if expiry is None else seconds_of(expiry)
    if secret is not None and private is not None:
        raise BadRequestError("give a secret key or a private key", field="secret_key,private_key")
    key: Any
    if private is not None:
        key, algorithm = private_key(content_of(private, "private_key")), signature_algorithm or "RS256"
    else:
        key = secret_keys(content_of(secret or _own_key(context), "secret_key"))[0].key
        algorithm = signature_algorithm or "HS256"
    made = new_token(subject, key, algorithm, seconds=seconds)
    context.output.result({"token": made})
    _print(context, made)


@command(app)
def rotate(
    context: CommandContext,
    retire: Annotated[
        bool, typer.Option("--retire", help="Only forget all keys but the newest: other tokens end.")
    ] = False,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="File of the keys. [default: the cluster's own]")
    ] = None,
) -> None:
    """Make a new secret key. Tokens of the old keys stay valid until --retire. Parts read the file within seconds."""
    from heliograph.auth.issuing import renew_admin_token, retire_secret_keys, rotate_secret_key

    own = Path(_own_key(context)) if key_file is None else None
    path = own or key_file
    assert path is not None, "one of them is"
    retired = retire_secret_keys(path) if retire else 0
    count = 1 if retire else rotate_secret_key(path)
    if own is not None:
        from heliograph.cluster.config import ClusterConfig

        renew_admin_token(context.home, ClusterConfig(home=context.home).auth_config(), context.output.progress)
    text = f"{retired} old keys were retired" if retire else "a new key signs tokens from now on"
    context.report({"key_file": str(path), "keys": count, "retired": retired}, f"{text}: {path} has {count} keys")


@command(app)
def validate(
    context: CommandContext,
    token: Token = None,
    token_file: TokenFile = None,
    secret: SecretKey = None,
    public: Annotated[str | None, typer.Option("--public-key", "-pk", help="In the forms of --secret-key.")] = None,
    signature_algorithm: Algorithm = None,
) -> None:
    """Check a token by a key, and print its claims. Without a key, the cluster's own checks it."""
    import jwt

    from heliograph.auth.config import AuthConfig
    from heliograph.auth.tokens import TokenProvider

    given = _given(token, token_file)
    if public is None:
        config = AuthConfig(enabled=True, token_secret_key=secret or _own_key(context))
    else:
        algorithm = signature_algorithm or "RS256"
        config = AuthConfig(enabled=True, token_public_key=public, token_public_alg=algorithm)
    TokenProvider(config).check(given.encode())
    _show(context, {"claims": jwt.decode(given, options={"verify_signature": False})})


@command(app)
def show(context: CommandContext, token: Token = None, token_file: TokenFile = None) -> None:
    """Print the claims of a token, without checking it."""
    _show(context, _unchecked(_given(token, token_file)))


@command(app)
def revoke(
    context: CommandContext,
    token: Token = None,
    token_file: TokenFile = None,
    token_id: Annotated[str | None, typer.Option("--id", help="Claim jti of the token, instead of the token.")] = None,
) -> None:
    """Revoke a token at once, at every door. This needs a superuser."""
    expires_ms = None
    if token_id is not None and (token or token_file):
        raise BadRequestError("give a token, or its --id, not both", field="token")
    if token_id is None:
        claims = _unchecked(_given(token, token_file))["claims"]
        token_id = claims.get("jti")
        if not isinstance(token_id, str) or not token_id:
            raise BadRequestError(
                "the token has no id (jti), by which it could be revoked: change the key that signed it, helio tokens "
                "rotate",
                field="token",
            )
        expires_ms = int(claims["exp"]) * 1_000 if isinstance(claims.get("exp"), int | float) else None

    context.admin.permissions.revoke_token(token_id, expires_ms)
    context.report({"token_id": token_id, "revoked": True}, f"the token {token_id} is revoked")


@command(app)
def revoked(context: CommandContext) -> None:
    """List the revoked tokens that have not ended."""
    from heliograph.base.clock import iso_time

    found = context.admin.permissions.revoked_tokens()
    damaged = [row["damaged"] for row in found if "damaged" in row]
    listed = [row for row in found if "damaged" not in row]
    context.show(
        {"revoked": listed, "damaged": damaged},
        ("token_id", "revoked", "ends"),
        [
            (row["token_id"], iso_time(row["revoked_ms"]), iso_time(row["expires_ms"]) if row["expires_ms"] else "")
            for row in listed
        ],
    )
    if damaged:
        context.output.warn(
            f"{len(damaged)} records are damaged, their tokens stay revoked: revoke again those whose ids have the "
            f"SHA-256 {', '.join(damaged)}"
        )


def _unchecked(token: str) -> dict[str, Any]:
    """Return the header and the claims of a token that nobody has checked."""
    import jwt

    try:
        return {
            "header": jwt.get_unverified_header(token),
            "claims": jwt.decode(token, options={"verify_signature": False}),
        }
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise AuthenticationError("this is no token: one is three parts of base64 with dots between them") from None


def _show(context: CommandContext, parts: dict[str, Any]) -> None:
    context.output.result(parts)
    _print(context, "\n---\n".join(json.dumps(part) for part in parts.values()))


def _print(context: CommandContext, text: str) -> None:
    for line in text.split("\n"):
        context.output.progress(line)


def _given(token: str | None, file: Path | None) -> str:
    if token is not None:
        return token.strip()
    if file is None:
        return sys.stdin.read().strip()
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{file} cannot be read ({type(error).__name__})", field="token_file") from error


def _own_key(context: CommandContext) -> str:
    from heliograph.auth.issuing import SECRET_KEY_FILE

    path = context.home / SECRET_KEY_FILE
    if not path.exists():
        raise BadRequestError(f"give a key: the cluster has none in {path}", field="secret_key")
    return str(path)
