"""What scheduling needs to know of a body."""

import json
import time

import pytest

from isochrone.access import members
from isochrone.access.paths import Kind, Paths, Route
from isochrone.access.scan import BadRequest, Scan, scan
from isochrone.kv.hashing import chain, ids_salt, text_salt
from isochrone.nouns.errors import ApiError
from isochrone.nouns.request import PromptSize


def route(path: str) -> Route:
    found = Paths().find(b"POST", path.encode())
    assert isinstance(found, Route)
    return found


CHAT = route("/v1/chat/completions")
COMPLETIONS = route("/v1/completions")
RESPONSES = route("/v1/responses")
MESSAGES = route("/v1/messages")
EMBEDDINGS = route("/v1/embeddings")
TOKENIZE = route("/tokenize")
TRANSCRIPTIONS = route("/v1/audio/transcriptions")


def read(value: object, at: Route = CHAT) -> Scan:
    return scan(at, json.dumps(value).encode())


def chat(*messages: object, **more: object) -> Scan:
    return read({"model": "m", "messages": list(messages), **more})


def completion(prompt: object) -> Scan:
    return read({"model": "m", "prompt": prompt}, COMPLETIONS)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def refused(body: bytes, at: Route = CHAT, content_type: bytes = b"application/json") -> ApiError:
    with pytest.raises(BadRequest) as caught:
        scan(at, body, content_type)
    return caught.value.error


# What is read.


def test_a_plain_chat() -> None:
    scanned = chat(user("hello"), stream=True, max_tokens=7, n=3, temperature=0.5)
    assert scanned == Scan(
        model="m", stream=True, max_tokens=7, choices=3, size=PromptSize(5, 0, 0, 0, 1),
        hashed_bytes=len("\nuser\nhello"), session="", rest=scanned.rest,
    )  # fmt: skip
    assert json.loads(scanned.rest)["temperature"] == 0.5


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_output_tokens": 8}, 8),
        ({"max_tokens": 0}, 1),
        ({"max_tokens": -4}, 1),
        ({"max_tokens": 2**63 + 1}, 2**31 - 1),
        ({"max_tokens": "12"}, 12),
        ({"max_tokens": [1]}, None),
    ],
)
def test_bound_on_output(fields: dict[str, object], bound: int | None) -> None:
    assert chat(user("x"), **fields).max_tokens == bound


def test_nulls_are_as_good_as_absent() -> None:
    """Case A-14: guidellm sends stop null, ignore_eos, and both token bounds."""
    scanned = chat(
        user("x"), stop=None, ignore_eos=True, max_tokens=9, max_completion_tokens=9, n=None, user=None, tools=None,
        stream=None, session_id=None,
    )  # fmt: skip
    assert (scanned.max_tokens, scanned.choices, scanned.stream, scanned.session) == (9, 1, False, "")
    assert scanned.size.messages == 1


def test_odd_types_of_other_fields_are_the_engines_business() -> None:
    scanned = chat(user("hi"), stream=1, n={}, user=7, cache_salt=[], max_tokens=3.5)
    assert (scanned.stream, scanned.choices, scanned.max_tokens, scanned.session) == (True, 1, None, "")
    assert scanned.size == PromptSize(2, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"user": "u"}, "u"),
        ({"user": "u", "prompt_cache_key": "k"}, "k"),
        ({"prompt_cache_key": "k", "session_id": "s"}, "s"),
        ({"session_id": "", "user": "u"}, "u"),
        ({"user": "x" * 1000}, "x" * 256),
    ],
)
def test_session_hint(fields: dict[str, object], session: str) -> None:
    assert chat(user("x"), **fields).session == session


def test_stream_options_are_kept_as_text() -> None:
    body = b'{"model":"m","messages":[],"stream":true,"stream_options": { "include_usage" : false }}'
    assert scan(CHAT, body).stream_options == b'{ "include_usage" : false }'


# Forms of prompts (case A-02).


@pytest.mark.parametrize(
    ("prompt", "size", "choices"),
    [
        ("abc", PromptSize(3, 0, 0, 0, 1), 2),
        (["abc", "de"], PromptSize(5, 0, 0, 0, 2), 4),
        ([1, 2, 3], PromptSize(token_ids=3), 2),
        ([[1, 2], [3]], PromptSize(token_ids=3), 4),
        ("", PromptSize(messages=1), 2),
        ([], PromptSize(), 2),
    ],
)
def test_forms_of_a_prompt(prompt: object, size: PromptSize, choices: int) -> None:
    scanned = read({"model": "m", "prompt": prompt, "n": 2}, COMPLETIONS)
    assert (scanned.size, scanned.choices) == (size, choices)


@pytest.mark.parametrize("prompt", [{"a": 1}, 5, True, [1, "a"], [1, -1], [2**40], [[1, "x"]], [None], [1.5], None])
def test_an_unknown_form_has_a_size_and_no_key(prompt: object) -> None:
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    scanned = scan(COMPLETIONS, body)
    assert (scanned.blocks, scanned.hashed_bytes, scanned.size) == ((), 0, PromptSize(text_bytes=len(body)))


def test_an_unknown_form_does_not_count_base64() -> None:
    scanned = chat({"role": "user", "content": {"data": "A" * 1_000_000}})
    assert scanned.size.text_bytes < 100


def test_equal_prefixes_give_equal_blocks_in_every_form() -> None:
    text = "The same beginning. " * 100
    longer_and_shorter = [
        (completion(text + "A" * 600), completion(text)),
        (completion([*range(900)]), completion([*range(500)])),
        (chat(user(text), user("B" * 600)), chat(user(text))),
        (chat(user(text), {"role": "assistant", "content": "C" * 900}), chat(user([{"type": "text", "text": text}]))),
    ]
    for first, second in longer_and_shorter:
        assert len(second.blocks) >= 3
        assert len(first.blocks) > len(second.blocks)
        assert first.blocks[: len(second.blocks)] == second.blocks


def test_ids_are_hashed_as_four_bytes_each_and_never_meet_text() -> None:
    ids = list(range(128))
    packed = b"".join(token.to_bytes(4, "little") for token in ids)
    scanned = read({"model": "m", "prompt": ids}, COMPLETIONS)
    assert scanned.blocks == chain(ids_salt("m"), packed)
    assert scanned.hashed_bytes == 512
    assert not set(scanned.blocks) & set(chain(text_salt("m"), packed))


def test_models_and_cache_salts_have_their_own_blocks() -> None:
    text = "x" * 600
    salts = [{}, {"model": "other"}, {"cache_salt": "a"}, {"cache_salt": "b"}]
    blocks = [read({"model": "m", "prompt": text, **salt}, COMPLETIONS).blocks for salt in salts]
    assert len(set(blocks)) == len(salts)


# Content of messages.


def test_tools_come_before_messages_wherever_they_stand() -> None:
    tools = [{"type": "function", "function": {"name": "f" * 600}}]
    early = read({"model": "m", "tools": tools, "messages": [user("hi")]})
    late = read({"model": "m", "messages": [user("hi")], "tools": tools})
    assert early.blocks == late.blocks
    assert early.blocks
    assert early.size.text_bytes == len(json.dumps(tools)) + 2


def test_images_are_counted_and_tell_prompts_apart_without_being_text() -> None:
    def with_image(url: str) -> Scan:
        return chat(
            user([{"type": "text", "text": "t" * 495}, {"type": "image_url", "image_url": {"url": url}}]),
            user("q" * 600),
        )

    one = with_image("data:image/png;base64," + "A" * 5_000_000)
    two = with_image("data:image/png;base64," + "A" * 4_999_999 + "B")
    assert one.size == two.size == PromptSize(495 + 600, 0, 1, 0, 2)
    assert one.blocks[0] != two.blocks[0]
    assert with_image("https://a/1.png").blocks == with_image("https://a/1.png").blocks


def test_tool_calls_with_null_content() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    scanned = chat(
        user("hi"), {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "42"}
    )
    assert scanned.size == PromptSize(2 + len(json.dumps([call])) + 2, 0, 0, 0, 3)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "https://x/v.mp4"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "file", "file": {"file_data": "AAAA"}},
    ],
)
def test_other_media(part: dict[str, object]) -> None:
    assert chat(user([part])).size == PromptSize(0, 0, 1, 0, 1)


def test_anthropic_messages() -> None:
    value = {
        "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "sys"}],
        "messages": [
            user([{"type": "text", "text": "abc"}]),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "ok"}]}]),
        ],
    }  # fmt: skip
    scanned = read(value, MESSAGES)
    assert scanned.size == PromptSize(3 + 3 + len('{"a": 1}') + 2, 0, 0, 0, 3)
    assert scanned.max_tokens == 5
    assert read({**value, "system": "sys"}, MESSAGES).hashed_bytes == scanned.hashed_bytes


def test_responses_input() -> None:
    items = [
        user([{"type": "input_text", "text": "abc"}]),
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
    ]
    scanned = read({"model": "m", "instructions": "be", "input": items, "max_output_tokens": 4}, RESPONSES)
    assert scanned.size == PromptSize(2 + 3 + 2 + 2, 0, 0, 0, 3)
    assert read({"model": "m", "input": "abc", "stream": True}, RESPONSES).stream


def test_embeddings_are_sized_and_not_hashed() -> None:
    scanned = read({"model": "m", "input": ["x" * 600, "y"], "stream": True}, EMBEDDINGS)
    assert (scanned.size.text_bytes, scanned.blocks, scanned.stream) == (601, (), False)


@pytest.mark.parametrize(
    ("text", "cjk", "other"),
    [
        ("hello", 0, 5), ("привет", 0, 12), ("مرحبا", 0, 10), ("漢字", 6, 0), ("かな、カナ", 15, 0), ("한국어", 9, 0),
        ("ＡＢ，", 9, 0), ("hi 漢", 3, 3), ("é😀", 0, 6), ("“—”", 0, 9),
    ],
)  # fmt: skip
def test_cjk_text_is_counted_apart(text: str, cjk: int, other: int) -> None:
    for body in (json.dumps({"model": "m", "messages": [user(text)]}, ensure_ascii=ascii) for ascii in (True, False)):
        size = scan(CHAT, body.encode()).size
        assert (size.cjk_bytes, size.text_bytes) == (cjk, other)


# What is refused.


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "empty_body"),
        (b" \n", "empty_body"),
        (b'{"model":"m","messages":[', "invalid_json"),
        (b"[]", "invalid_body"),
        (b'"x"', "invalid_body"),
        (b'{"model":5}', "invalid_type"),
        (b'{"model":["m"]}', "invalid_type"),
        (b"{}", "missing_model"),
        (b'{"model":null}', "missing_model"),
        (b'{"model":""}', "missing_model"),
        (b'{"model":"m","x":"\xff"}', "invalid_json"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\x80"}]}', "invalid_json"),
        (b'{"model":"m","x":NaN}', "invalid_json"),
        (b'{"model":"m","x":Infinity}', "invalid_json"),
        (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"model":"m","messages":' + b'[{"a":' * 100_000, "invalid_json"),
        (b'{"model":"m"} {}', "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
    ],
    ids=range(18),
)
def test_malformed_bodies_are_the_clients_mistake(body: bytes, code: str) -> None:
    """Case A-07."""
    start = time.process_time()
    error = refused(body)
    assert time.process_time() - start < 0.05
    assert (error.status, error.code) == (400, code)


@pytest.mark.parametrize(
    ("body", "offset"), [(b'{"model": x}', 10), (b'{"model":"m"', 12), (b'{"a":"\xff"}', 6), (b'{"a":1,}', 7)]
)
def test_malformed_json_is_answered_with_the_offset(body: bytes, offset: int) -> None:
    assert f"(byte {offset})" in refused(body).message


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"model":"a","messages":[],"messages":[{"role":"user","content":"x"}]}', "messages"),
        (b'{"model":"a","messages":[],"messages":[]}', "messages"),
        (b'{"model":"a" , "stream":null,"stream" : true}', "stream"),
        (b'{"model":"a","m\\u006fdel":"b"}', "model"),
        (b'{"\\u006dax_tokens":1,"model":"a","max_tokens":2}', "max_tokens"),
        (b'{"model":"a","x":"\\"","n":1,"y":{"n":2},"n":1}', "n"),
        (b'{"model":"a","prompt":"' + b"x" * 2000 + b'","model":"b"}', "model"),
        (b'{"prompt":"' + b"x" * 2000 + b'","model":"a","prompt":"' + b"x" * 2000 + b'"}', "prompt"),
        (b'{"prompt":"' + b"x" * 2000 + b'","model":"a","prompt":"' + b"y" * 2000 + b'"}', "prompt"),
    ],
)
def test_a_repeated_key_that_is_read_is_refused(body: bytes, key: str) -> None:
    error = refused(body, COMPLETIONS)
    assert (error.status, error.code, error.param) == (400, "duplicate_key", key)
    assert repr(key) in error.message


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","x":1,"x":2}',
        b'{"model":"m","x":{"model":1,"model":2}}',
        b'{"model":"m","messages":[{"role":"user","content":"\\"model\\": \\"model\\":"}],"x":"\\u00e4"}',
        b'{"model":"model","user":"model","stop":["model","user"]}',
        b'{"model":"m","messages":[{"role":"user","content":"' + b"x" * 2000 + b'","n":1,"n":1}]}',
        b'{"model" : "m" , "messages" : [ {"model":1},{"model":2} ] , "x":"' + b"x" * 2000 + b'"}',
    ],
)
def test_what_only_looks_like_a_repeated_key_passes(body: bytes) -> None:
    assert scan(CHAT, body).model in ("m", "model")


def test_a_body_too_tangled_to_check_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "TOKENS_MAX", 50)
    body = b'{"x":' + json.dumps([{"n": 1}] * 40).encode() + b',"n":1,"model":"m"}'
    assert refused(body).code == "body_too_complex"


def test_lone_surrogate_escapes_pass() -> None:
    """Case A-01: JSON allows them; the engine gets them as they came."""
    body = rb'{"model":"m","x":"\ud800","user":"\udfff","messages":[{"role":"user","content":"\uDC00 ok"}]}'
    scanned = scan(CHAT, body)
    assert scanned.size.messages == 1
    assert scan(COMPLETIONS, rb'{"model":"m","prompt":["\ud83d\ude00","\ud800"]}').choices == 2


def test_surrogate_pairs_and_escaped_backslashes_are_left_alone() -> None:
    """Seen: a pair in `model` was replaced too when another field was of an odd type."""
    assert scan(CHAT, rb'{"model":"\ud83d\ude00","n":[]}').model == "😀"
    assert scan(CHAT, rb'{"model":"\\\ud800\\ud800","n":[]}').model == "\\\ufffd\\ud800"
    assert scan(CHAT, rb'{"model":"\\ud83d\ude00"}').model == "\\ud83d\ufffd"
    assert scan(CHAT, rb'{"model":"\ud83d\ud83d\ude00\ude00"}').model == "\ufffd😀\ufffd"
    assert refused(b'{"model":"a\0\0","x":"\\ud800"}').code == "invalid_json"


@pytest.mark.parametrize(
    "prompt",
    [
        b'"messages":[' + b"{}," * 700_000 + b"{}]",
        b'"prompt":[' + b"1," * 2_000_000 + b"1]",
        b'"messages":[{"content":[' + b'"",' * 1_500_000 + b'""]}]',
        b'"n":1,' * 700_000 + b'"stream":true',
        b'"prompt":["' + b"\\ud800" * 1_000_000 + b'"]',
    ],
    ids=["messages", "ids", "parts", "keys", "surrogates"],
)
def test_bodies_made_to_be_slow_are_not(prompt: bytes) -> None:
    start = time.process_time()
    try:
        assert scan(CHAT, b'{"model":"m",' + prompt + b"}").blocks == ()
    except BadRequest as refusal:
        assert refusal.error.status == 400  # noqa: PT017  # either is right; the time is what counts
    assert time.process_time() - start < 0.5


def test_routes_without_a_model() -> None:
    assert read({"prompt": "x"}, TOKENIZE).model == ""
    assert read({"model": None, "prompt": "x"}, TOKENIZE).model == ""
    assert refused(b'{"model":7}', TOKENIZE).code == "invalid_type"


# Bodies that are not JSON.


def test_a_form_names_its_model() -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--B--\r\n'
    scanned = scan(TRANSCRIPTIONS, body, b"Multipart/Form-Data; boundary=B")
    assert (scanned.model, scanned.size) == ("whisper", PromptSize(images=1))


def test_a_form_without_its_boundary_is_refused() -> None:
    assert refused(b"{}", TRANSCRIPTIONS, b"multipart/form-data").code == "invalid_multipart"
    empty = b"--B\r\n\r\n\r\n--B--"
    assert scan(TRANSCRIPTIONS, empty, b"multipart/form-data; boundary=B").model == ""
    assert refused(empty, CHAT, b"multipart/form-data; boundary=B").code == "missing_model"


def test_other_content_types() -> None:
    assert refused(b"model=m", CHAT, b"application/x-www-form-urlencoded").status == 415
    assert refused(b"model=m", CHAT, b"").status == 400
    assert scan(CHAT, b'{"model":"m"}', b"text/plain").model == "m", "what curl -d sends is read; the engine decides"


def test_every_json_kind_is_read_alike() -> None:
    for kind in (Kind.CHAT, Kind.COMPLETIONS, Kind.RESPONSES, Kind.MESSAGES):
        assert scan(Route("/x", kind), b'{"model":"m","stream":true}').stream


def test_json_that_curl_calls_a_form_is_told_where_it_breaks():
    with pytest.raises(BadRequest) as refused:
        scan(CHAT, b'{"model":"m","messages":[}', b"application/x-www-form-urlencoded")
    assert refused.value.error.status == 400
    assert "byte" in refused.value.error.message
