"""The token without which nothing is answered off this machine, and what counts as this machine."""

import ipaddress
import secrets
from pathlib import Path

from ops.config import RunConfig
from store.errors import VergeError

_LEAST = 16
"""Characters of a token."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_for(config: RunConfig) -> tuple[str, Path] | None:
    """The token and the file that has it; None on loopback, where none is asked for.

    Raises:
        VergeError: the file cannot be read or written, or what it holds is too short.
    """
    if is_loopback(config.serve.host):
        return None
    path = config.serve.token_file or config.run_folder / "serve" / "token"
    try:
        if config.serve.token_file is None and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            path.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise VergeError(f"serve.token_file {path}: {getattr(error, 'strerror', None) or error}") from None
    token = lines[0].strip() if lines else ""
    if len(token) < _LEAST or not token.isascii():
        raise VergeError(
            f"serve.token_file {path} holds a token of {len(token)} characters but must have ≥ {_LEAST}, all of ASCII; "
            "`openssl rand -base64 32` makes one"
        )
    return token, path
