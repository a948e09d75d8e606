"""An OIDC issuer for tests: its keys, and tokens that it signs."""

import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER = "https://id.example"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())


def jwks(*named: tuple[str, Any, str]) -> dict[str, Any]:
    """The issuer's public document of these keys: (id, key, algorithm)."""
    keys = []
    for name, key, algorithm in named:
        kind = jwt.algorithms.RSAAlgorithm if algorithm.startswith("RS") else jwt.algorithms.ECAlgorithm
        keys.append({**kind.to_jwk(key.public_key(), as_dict=True), "kid": name, "alg": algorithm, "use": "sig"})
    return {"keys": keys}


BOTH = jwks(("r", RSA, "RS256"), ("e", EC, "ES256"))


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "r", **claims: Any) -> bytes:
    """A signed token for tenant acme; a claim of None is left out."""
    now_s = int(time.time())
    body = {"iss": ISSUER, "aud": "gateway", "exp": now_s + 600, "sub": "someone", "tenant": "acme", **claims}
    body = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(body, key, algorithm, headers={"kid": kid} if kid else None).encode()
