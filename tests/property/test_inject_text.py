"""Case A-01: only the spliced field differs; every other value keeps its exact text."""

import json

from hypothesis import given
from hypothesis import strategies as st

from isochrone.access.inject import with_usage
from isochrone.access.members import members
from isochrone.access.paths import Kind, Route
from isochrone.access.scan import scan

CHAT = Route("/v1/chat/completions", Kind.CHAT)
ODD = [
    "9223372036854775809", "1e-7", "1.0", "-0", "1E+400", "null", '"\\ud800"', '"\\u0000\\/"', '"}"', '"é漢😀"', "{}",
    "[]", "[ ]", '{"a":1,"a":2}', '{"stream_options":{"include_usage":false}}', '[{"}":"{"}]', '"\\\\\\"}"',
    '"include_usage"',
]  # fmt: skip
NAMES = ["x", "temperature", "stop", "extra_body", "é", "\\u0061", "chat_template_kwargs", '\\"']
OPTIONS = [
    "{}",
    "null",
    '{"include_usage":false}',
    '{"x":[1.0,{"include_usage":1}] }',
    '{"include_usage" :null, "y":1e-7}',
]

space = st.sampled_from(["", " ", "\n\t", "  "])
unknown = st.tuples(st.sampled_from(NAMES), st.sampled_from(ODD))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    pairs = [("model", '"m"'), ("stream", "true"), *draw(st.lists(unknown, max_size=10))]
    if draw(st.booleans()):
        pairs.append(("stream_options", draw(st.sampled_from(OPTIONS))))
    pairs = draw(st.permutations(pairs))
    text = ",".join(f'{draw(space)}"{key}"{draw(space)}:{draw(space)}{value}{draw(space)}' for key, value in pairs)
    return f"{draw(space)}{{{text}}}{draw(space)}".encode()


def texts(body: bytes) -> list[tuple[str, bytes]]:
    return [(member.key, body[member.start : member.end]) for member in members(body)]


@given(bodies())
def test_everything_else_keeps_its_text(body: bytes) -> None:
    changed = with_usage(CHAT, scan(CHAT, body), body)
    assert changed is not None
    before, after = texts(body), texts(changed)
    other = [pair for pair in before if pair[0] != "stream_options"]
    assert [pair for pair in after if pair[0] != "stream_options"] == other
    assert json.loads(changed)["stream_options"]["include_usage"] is True
    assert [key for key, _ in after].count("stream_options") == 1
    common = 0
    while body[common] == changed[common]:
        common += 1
    tail = len(body) - common
    cut = next(n for n in range(tail, -1, -1) if changed.endswith(body[len(body) - n :]) or n == 0)
    assert len(body) - common - cut <= len(b"false"), "at most one literal was replaced"
