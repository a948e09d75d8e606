"""Where a stream can be continued."""

from isochrone.access.dialect import inside
from isochrone.access.transcript import Point, Transcript


def written(*events: tuple[str, bytes], stops: tuple[str, ...] = (), held: int = 0) -> Transcript:
    transcript = Transcript(stops, held)
    for text, ids in events:
        transcript.log += inside(text) + b"\n" + ids + b"\n"
    return transcript


def test_after_one_token_with_text() -> None:
    transcript = written(("a", b"1"), ('\n"\\', b"2"), ("漢", b"3"))
    assert transcript.point(True) == transcript.point(False) == Point('a\n"\\漢', b"1,2,3", "")
    assert transcript.tokens() == 3


def test_nothing_yet() -> None:
    assert written().point(False) == Point("", b"", "")


def test_what_is_no_json_is_no_point() -> None:
    transcript = Transcript()
    transcript.log += b"\x01\n1\n"
    assert transcript.point(True) is None


def test_half_a_character_is_generated_again() -> None:
    transcript = written(("a", b"1"), ("", b"2"), ("", b"3"))
    assert transcript.point(False) == Point("a", b"1", "")


def test_of_several_tokens_the_last_may_be_half_a_character() -> None:
    transcript = written(("a", b"1"), ("bc", b"2,3,4"))
    assert transcript.point(True) == Point("a", b"1", "bc")
    assert transcript.point(False) is None, "another sample would say something else than bc"


def test_a_replacement_character_may_still_change() -> None:
    assert written(("a", b"1"), ("�", b"2")).point(True) == Point("a", b"1", "�")


def test_what_stop_strings_hold_back_is_generated_again() -> None:
    """`END`: two characters are held back. After the third event the engine has said "hello E" or so."""
    transcript = written(("", b"1"), ("hel", b"2"), ("lo ", b"3"), ("E", b"4"), stops=("END",), held=2)
    assert transcript.point(True) == Point("hello", b"1,2", " E")


def test_no_point_where_a_stop_string_may_have_begun() -> None:
    """The next instance looks for `abc` in its own output only."""
    events = (("x", b"1"), ("a", b"2"), ("b", b"3"))
    assert written(*events, stops=("abc",)).point(True) == Point("x", b"1", "ab")
    assert written(*events, stops=("bca", "q")).point(True) == Point("xa", b"1,2", "b")


def test_it_goes_on_from_a_point() -> None:
    transcript = written(("a", b"1"), ("bc", b"2,3"))
    point = transcript.point(True)
    assert point is not None
    transcript.begin_at(point)
    assert transcript.point(True) == point, "lost again before anything was said: the client still has bc"
    transcript.log += b"b\n2\n"
    assert transcript.point(True) == Point("ab", b"1,2", "c")
    transcript.log += b"cd\n3\n"
    assert transcript.point(True) == Point("abcd", b"1,2,3", "")
    assert transcript.tokens() == 3
