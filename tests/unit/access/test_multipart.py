"""Form fields beside files."""

from isochrone.access.multipart import PARTS_MAX, form_fields

TYPE = b"multipart/form-data; boundary=XyZ"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--XyZ\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def read(body: bytes, content_type: bytes = TYPE) -> dict[bytes, bytes] | None:
    return form_fields(body, content_type, (b"model", b"stream"))


FILE = part("file", b'\x00\xff--X\r\n\r\nname="model"\r\n' * 1000, '; filename="a.wav"\r\nContent-Type: audio/wav')


def test_fields_before_and_after_a_file() -> None:
    body = part("model", b"whisper") + FILE + part("language", b"de") + part("stream", b"true") + b"--XyZ--\r\n"
    assert read(body) == {b"model": b"whisper", b"stream": b"true"}
    assert read(FILE + part("model", b"whisper") + b"--XyZ--") == {b"model": b"whisper"}


def test_quoted_boundaries_and_unquoted_names() -> None:
    body = b"preamble\r\n--XyZ\r\ncontent-disposition: form-data; name=model\r\n\r\nm\r\n--XyZ--"
    assert read(body, b'multipart/form-data; boundary="XyZ"; charset=utf-8') == {b"model": b"m"}


def test_a_file_called_model_is_no_field() -> None:
    assert read(part("model", b"weights", '; filename="model"') + b"--XyZ--") == {}


def test_the_first_value_of_a_repeated_field_counts() -> None:
    assert read(part("model", b"a") + part("model", b"b") + b"--XyZ--") == {b"model": b"a"}


def test_what_is_no_form_is_told_apart() -> None:
    assert read(b"", TYPE) is None
    assert read(b"--XyZ", b"multipart/form-data") is None
    assert read(b"{}", TYPE) is None


def test_broken_forms_end_quietly() -> None:
    whole = part("language", b"de") + part("model", b"m") + b"--XyZ--"
    for cut in range(len(whole)):
        read(whole[:cut])
    assert read(b"--XyZ\r\n" + b"x" * 20_000 + part("model", b"m")) == {}


def test_lengths_are_bounded() -> None:
    assert read(part("model", b"m" * 5000) + b"--XyZ--") == {}
    assert read(part("x", b"") * PARTS_MAX + part("model", b"m") + b"--XyZ--") == {}
