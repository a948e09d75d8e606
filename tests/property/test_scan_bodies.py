"""Any bytes at all: a Scan or a BadRequest, never anything else."""

import json

from hypothesis import given
from hypothesis import strategies as st

from isochrone.access.members import members
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import BadRequest, Scan, scan
from isochrone.kv.hashing import block_end
from isochrone.nouns.errors import ApiError

KEYS = [
    "model",
    "messages",
    "prompt",
    "input",
    "tools",
    "stream",
    "max_tokens",
    "n",
    "user",
    "system",
    "role",
    "content",
    "x",
]
ROUTES = [
    Route("/v1/messages", Kind.MESSAGES),
    Route("/v1/completions", Kind.COMPLETIONS),
    Route("/x", Kind.PASS, False),
]

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
names = st.sampled_from(KEYS) | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)
routes = st.sampled_from(ROUTES)


def outcome(route: Route, body: bytes, content_type: bytes = b"") -> Scan | ApiError:
    try:
        return scan(route, body, content_type)
    except BadRequest as refusal:
        return refusal.error


@given(routes, st.binary(max_size=200), st.sampled_from([b"", b"application/json", b"multipart/form-data; boundary=x"]))
def test_random_bytes(route: Route, body: bytes, content_type: bytes) -> None:
    found = outcome(route, body, content_type)
    assert isinstance(found, Scan) or found.status in (400, 415)


@given(routes, st.dictionaries(st.sampled_from(KEYS), values), st.booleans())
def test_every_json_object_is_read_or_refused_for_its_model(
    route: Route, fields: dict[str, object], ascii_only: bool
) -> None:
    body = json.dumps(fields, ensure_ascii=ascii_only)
    scanned = outcome(route, body.encode(errors="surrogatepass"))
    if isinstance(scanned, ApiError):
        assert scanned.status == 400
        assert not isinstance(fields.get("model"), str) or not fields["model"] or has_surrogate(body)
        return
    assert scanned.model == (fields.get("model") or "")
    assert scanned.size.text_bytes >= 0
    assert scanned.size.text_bytes + scanned.size.cjk_bytes <= max(scanned.hashed_bytes, len(body.encode()))
    if scanned.blocks:
        assert block_end(len(scanned.blocks) - 1) <= scanned.hashed_bytes


def has_surrogate(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)


@given(
    st.lists(st.tuples(st.sampled_from(["model", "n", "user", "stop", "é", '"', "\\"]), values), max_size=6),
    st.booleans(),
)
def test_repeated_keys_are_found_exactly(pairs: list[tuple[str, object]], escaped: bool) -> None:
    """Against the plain truth: the list that the body was made from."""

    def key_text(key: str) -> str:
        return '"' + "".join(f"\\u{ord(sign):04x}" for sign in key) + '"' if escaped else json.dumps(key)

    pairs = [("model", "m"), *pairs]
    body = ("{" + ",".join(f"{key_text(key)}:{json.dumps(value)}" for key, value in pairs) + "}").encode()
    assert [member.key for member in members(body)] == [key for key, _ in pairs]
    keys = [key for key, _ in pairs if key in ("model", "n", "user")]
    found = outcome(ROUTES[1], body)
    if isinstance(found, ApiError) and found.code == "invalid_type":
        return  # a second model that is no string
    refused = isinstance(found, ApiError) and found.code == "duplicate_key"
    assert refused == (len(keys) != len(set(keys)))
