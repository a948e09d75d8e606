"""Tokens of an issuer: which are believed, how long, and what a key that changes does."""

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from isochrone.access.keys import digest_of
from isochrone.access.tenants import Tenant, Tenants
from isochrone.config.driver import TokenPlan
from isochrone.gateway.doorkeeper import Identity
from isochrone.gateway.jwks import JwksError, read_jwks
from isochrone.gateway.oidc import TokenVerifier
from isochrone.nouns.errors import ApiError
from tests.support.issuer import BOTH, EC, ISSUER, RSA, jwks, token

OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
TENANTS = Tenants({"acme": Tenant(name="acme")})


def verifier(tmp_path: Path, document: object = None, **plan: Any) -> TokenVerifier:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(BOTH if document is None else document))
    return TokenVerifier(TokenPlan(ISSUER, "gateway", f"file:{path}", **plan), TENANTS)


def verdicts(checked: TokenVerifier, *tokens: bytes) -> list[Identity | ApiError]:
    async def test() -> list[Identity | ApiError]:
        await checked.start()
        try:
            return [checked.identify(digest_of(one), one) for one in tokens]
        finally:
            await checked.close()

    return asyncio.run(test())


GOOD = Identity("acme", "jwt")


def test_good_tokens(tmp_path: Path) -> None:
    tokens = token(), token(EC, "ES256", "e"), token(aud=["other", "gateway"]), token(exp=int(time.time()) - 20)
    assert verdicts(verifier(tmp_path), *tokens) == [GOOD] * 4


def test_a_single_key_needs_no_name(tmp_path: Path) -> None:
    assert verdicts(verifier(tmp_path, jwks(("r", RSA, "RS256"))), token(kid=None)) == [GOOD]


def unsigned(algorithm: str, secret: bytes | None = None) -> bytes:
    """A token made by hand: without a signature, or with a shared secret."""

    def part(value: object) -> bytes:
        return urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {"iss": ISSUER, "aud": "gateway", "exp": int(time.time()) + 600, "tenant": "acme"}
    signed = part({"alg": algorithm, "typ": "JWT", "kid": "r"}) + b"." + part(claims)
    signature = b"" if secret is None else hmac.digest(secret, signed, "sha256")
    return signed + b"." + urlsafe_b64encode(signature).rstrip(b"=")


PUBLIC_PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "bad",
    [
        token(OTHER_RSA),
        token(kid="unknown"),
        token(kid=None),
        token(iss="https://evil.example"),
        token(aud="another-service"),
        token(aud=None),
        token(exp=None),
        token(exp=int(time.time()) - 600),
        token(nbf=int(time.time()) + 600),
        token(EC, "ES256", "r"),
        unsigned("none"),
        unsigned("HS256", PUBLIC_PEM),  # the public key, which everybody has, used as a shared secret
        unsigned("RS256", PUBLIC_PEM),
        urlsafe_b64encode(b"[" * 5000) + b".e30.AAAA",
        urlsafe_b64encode(b'{"alg": ["RS256"], "kid": {"r": 1}}') + b".e30.AAAA",
        token(exp="soon"),
        b"a.b.c",
        b"..",
        b"\xff.\xfe.\xfd",
        token()[:-3] + b"AAA",
    ],
)
def test_bad_tokens_get_the_same_401(tmp_path: Path, bad: bytes) -> None:
    first, second = verdicts(verifier(tmp_path), bad, bad)
    assert isinstance(first, ApiError)
    assert (first.status, first.code, first.message) == (401, "invalid_api_key", "The API key is not valid.")
    assert second == first


def test_tenants_of_tokens(tmp_path: Path) -> None:
    unknown, none, odd = verdicts(verifier(tmp_path), token(tenant="evil"), token(tenant=None), token(tenant=["acme"]))
    for error in (unknown, none, odd):
        assert isinstance(error, ApiError)
        assert (error.status, error.code) == (403, "unknown_tenant")
    by_default = verdicts(verifier(tmp_path, tenant="guests"), token(tenant=None), token())
    assert by_default == [Identity("guests", "jwt"), GOOD]
    assert verdicts(verifier(tmp_path, tenant_claim="org"), token(tenant=None, org="acme")) == [GOOD]


def test_a_verdict_lasts_until_the_token_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        checked = verifier(tmp_path, leeway_s=0)
        await checked.start()
        one = token(exp=int(time.time()) + 100)
        assert checked.identify(digest_of(one), one) == GOOD
        monkeypatch.setattr(checked, "_check", None)  # known now: not checked again
        assert checked.identify(digest_of(one), one) == GOOD
        monkeypatch.undo()
        later = time.time() + 101
        monkeypatch.setattr("isochrone.gateway.clock.wall_s", lambda: later)
        checks = []
        monkeypatch.setattr(checked, "_check", lambda seen, now_s: (checks.append(seen), (GOOD, now_s + 1))[1])
        checked.identify(digest_of(one), one)
        assert checks == [one]
        await checked.close()

    asyncio.run(test())


def test_verdicts_are_bounded(tmp_path: Path) -> None:
    checked = verifier(tmp_path, verdicts_max=5)
    verdicts(checked, *(b"a.b.%d" % number for number in range(50)))
    assert len(checked._verdicts) == 5


@contextmanager
def issuer_of(documents: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """An HTTP server with these documents; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = documents.get(self.path, (404, b""))
            self.send_response(status)
            if status == 302:
                self.send_header("location", body.decode())
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_keys_are_found_through_the_issuer_and_followed() -> None:
    documents: dict[str, tuple[int, bytes]] = {}
    with issuer_of(documents) as url:
        documents["/.well-known/openid-configuration"] = (
            200, json.dumps({"issuer": url, "jwks_uri": url + "/keys"}).encode(),
        )  # fmt: skip

        async def test() -> None:
            checked = TokenVerifier(TokenPlan(url, "gateway", refresh_s=0.01), TENANTS)
            await checked.start()  # the issuer has no keys yet: not fatal
            one, two = token(iss=url), token(EC, "ES256", "e", iss=url)
            early = checked.identify(digest_of(one), one)
            assert isinstance(early, ApiError)
            assert (early.status, early.code, early.retry_after_s) == (503, "issuer_unavailable", 5)
            documents["/keys"] = (200, json.dumps(jwks(("r", RSA, "RS256"))).encode())
            while checked.identify(digest_of(one), one) != GOOD:
                await asyncio.sleep(0.005)
            assert isinstance(checked.identify(digest_of(two), two), ApiError)
            documents["/keys"] = (200, json.dumps(jwks(("e", EC, "ES256"))).encode())  # rotated: r is taken back
            while checked.identify(digest_of(two), two) != GOOD:
                await asyncio.sleep(0.005)
            assert isinstance(checked.identify(digest_of(one), one), ApiError)
            documents["/keys"] = (500, b"")
            await asyncio.sleep(0.03)
            assert checked.identify(digest_of(two), two) == GOOD
            await checked.close()

        asyncio.run(test())


def test_where_keys_are_not_taken_from(tmp_path: Path) -> None:
    good = json.dumps(BOTH).encode()
    with issuer_of({"/keys": (200, good)}) as url:
        assert read_jwks(ISSUER, url + "/keys").keys() == {"r", "e"}
        documents = {
            "/moved": (302, url.encode() + b"/keys"),
            "/text": (200, b"no json"),
            "/list": (200, b"[]"),
            "/none": (200, b'{"keys": [{"kty": "oct"}, 5, {"kty": "new"}]}'),
            "/long": (200, b" " * 1_100_000),
            "/.well-known/openid-configuration": (200, b'{"issuer": "https://other"}'),
        }
        with issuer_of(documents) as bad:
            for path in ("/moved", "/text", "/list", "/none", "/long", "/gone"):
                with pytest.raises(JwksError):
                    read_jwks(ISSUER, bad + path)
            with pytest.raises(JwksError, match="another issuer"):
                read_jwks(bad, None)
    for source in (f"file:{tmp_path}/nowhere", "ftp://a/keys", "file:///dev/null"):
        with pytest.raises(JwksError):
            read_jwks(ISSUER, source)


def test_a_file_that_cannot_be_used_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(JwksError, match="holds no key"):
        verdicts(verifier(tmp_path, {"keys": []}))
