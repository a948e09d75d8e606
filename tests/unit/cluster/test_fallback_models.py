"""Fallback models at the cluster's door: e0 serves `big`, e1 serves `small`."""

from isochrone.nouns.commands import Dispatch, Record
from isochrone.nouns.events import Outcome, Withdrawn
from isochrone.nouns.request import PromptSize
from isochrone.nouns.settings import Settings
from tests.support.fleet_door import Door


def door_of_two(settings: Settings | None = None) -> Door:
    door = Door(settings, instances=0)
    door.join("e0", ("big",))
    door.join("e1", ("small",))
    return door


def ask(door: Door, **fields: object) -> str:
    return door.ask(model="big", fallbacks=("small",), **fields)


def sent(door: Door) -> list[tuple[str, str]]:
    return [(one.instance, one.model) for one in door.told(Dispatch) if isinstance(one, Dispatch)]


def test_while_its_own_model_answers_nothing_changes() -> None:
    door = door_of_two()
    ask(door)
    assert sent(door) == [("e0", "")]
    door.check_over()


def test_a_request_whose_model_has_no_instance_goes_to_the_fallback_and_the_record_says_so() -> None:
    door = door_of_two()
    door.feed(Withdrawn("e0", keep=True))
    request = ask(door)
    assert sent(door) == [("e1", "small")]
    decision = door.cluster.decision(request)
    assert decision is not None
    assert (decision.model, decision.fallback_from) == ("small", "big")
    door.check_over()


def test_a_request_that_its_instance_fails_goes_to_the_fallback_once() -> None:
    door = door_of_two()
    for outcome, status in ((Outcome.FAILED, 500), (Outcome.BUSY, 503), (Outcome.UNREACHABLE, 0)):
        before = len(door.told(Dispatch))
        ask(door)
        door.end(max(door.on), outcome, status)
        assert sent(door)[before:] == [("e0", ""), ("e1", "small")]
        door.end(max(door.on), Outcome.FAILED, 500)
        assert not door.on, "each model is asked once"
        assert len(door.told(Dispatch)) == before + 2
    door.check_over()


def test_a_full_queue_falls_back_too() -> None:
    """One request a slot, and one may wait."""
    door = Door(Settings(samples_warm=0, queue_requests_max=1), instances=0)
    for name in ("e0", "e1"):
        door.join(name, ("big",))
    door.join("e2", ("small",))
    for _ in range(40):
        ask(door, prompt_tokens=20_000)
    assert ("e2", "small") in sent(door)
    door.check_over()


def test_what_the_client_did_wrong_and_what_was_delivered_do_not_fall_back() -> None:
    door = door_of_two()
    door.resumable = False
    ask(door)
    door.end(max(door.on), Outcome.REJECTED, 400)
    ask(door)
    door.pass_(1.0)
    door.end(max(door.on), Outcome.LOST)
    assert {name for name, _ in sent(door)} == {"e0"}
    door.check_over()


def test_a_prompt_that_is_too_long_for_the_fallback_is_not_sent_there() -> None:
    door = door_of_two()
    door.feed(Withdrawn("e0", keep=True))
    ask(door, size=PromptSize(token_ids=300_000))
    assert sent(door) == []
    assert len(door.failed()) == 1
    door.check_over()


def test_the_fallback_may_lose_its_instance_as_well_and_go_on_at_another_one_of_its_own() -> None:
    door = door_of_two()
    door.join("e2", ("small",))
    door.feed(Withdrawn("e0", keep=True))
    ask(door)
    door.pass_(1.0)
    door.end(max(door.on), Outcome.LOST)
    assert sorted(sent(door)) == [("e1", "small"), ("e2", "small")]
    door.check_over()
    records = [one.decision for one in door.told(Record) if isinstance(one, Record)]
    assert [record.outcome for record in records] == ["done"]
