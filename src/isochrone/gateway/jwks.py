"""An issuer's public keys (JWKS), from a file or over HTTP. Blocks: called in a thread."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt

READ_S_MAX = 5.0
"""How long one reading may take to connect, and between two pieces."""
DOCUMENT_BYTES_MAX = 1024 * 1024
"""A longer answer or file is not read."""


class JwksError(Exception):
    """The keys cannot be had; the message says why."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address that the operator has not named is not asked."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def read_jwks(issuer: str, source: str | None) -> dict[str | None, jwt.PyJWK]:
    """The keys by id. `source`: a URL or `file:PATH`; None: as the issuer's discovery document says."""
    if source is None:
        found = _fetch(issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise JwksError(f"the discovery document is of another issuer: {str(found.get('issuer'))[:200]!r}")
        source = str(found.get("jwks_uri"))
    document = _read(source.removeprefix("file:")) if source.startswith("file:") else _fetch(source)
    keys: dict[str | None, jwt.PyJWK] = {}
    entries = document.get("keys")
    for entry in entries if isinstance(entries, list) else []:
        try:
            key = jwt.PyJWK(entry)
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError, LookupError):
            continue  # of a kind that is not known here, as RFC 7517 section 5 has it
        if key.public_key_use in (None, "sig"):
            keys[key.key_id] = key
    if not keys:
        raise JwksError(f"{source} holds no key that can be used")
    return keys


def _read(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            return _object(path, file.read(DOCUMENT_BYTES_MAX + 1))
    except OSError as error:
        raise JwksError(f"{path}: {error.strerror or error}") from None


def _fetch(url: str) -> dict[str, Any]:
    if urlsplit(url).scheme not in ("http", "https"):
        raise JwksError(f"{url[:200]!r} is no http or https URL")
    try:
        with _opener.open(url, timeout=READ_S_MAX) as answer:
            return _object(url, answer.read(DOCUMENT_BYTES_MAX + 1))
    except (OSError, ValueError) as error:  # URLError and time-outs among them
        raise JwksError(f"{url}: {error}") from None


def _object(where: str, text: bytes) -> dict[str, Any]:
    if len(text) > DOCUMENT_BYTES_MAX:
        raise JwksError(f"{where}: longer than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = json.loads(text)
    except ValueError:
        raise JwksError(f"{where}: not JSON") from None
    if not isinstance(found, dict):
        raise JwksError(f"{where}: not a JSON object")
    return found
