"""Any order of news: no change outside the table, no more than one trial, no trap."""

from hypothesis import given
from hypothesis import strategies as st

from isochrone.instances.lifecycle import CHANGES, REST_HEARTBEATS_MAX, Life
from isochrone.nouns.instance import State
from isochrone.nouns.settings import Settings

NEWS = [
    "answer", "miss", "miss though alive", "refused", "dispatch", "success", "failure", "late failure", "end",
    "drain", "undrain", "withdraw",
]  # fmt: skip
settings_of = st.builds(
    Settings,
    heartbeat_suspect_misses=st.integers(1, 3),
    heartbeat_eject_misses=st.integers(1, 4),
    heartbeat_ready_answers=st.integers(1, 3),
    failures_suspect=st.integers(1, 3),
    failures_eject=st.integers(1, 5),
)


class Teller:
    """Tells a life its news, keeps the attempts in flight, and checks each step."""

    def __init__(self, settings: Settings) -> None:
        self.life = Life()
        self.settings = settings
        self.in_flight: list[int] = []
        self.next_attempt = 1
        self.trials: set[int] = set()

    def tell(self, news: str) -> None:
        life, before, open_before = self.life, self.life.state, self.life.placeable
        result = self._told(news)
        assert life.state is before or life.state in CHANGES[before]
        assert result is None or result is life.state
        if life.state is not before or life.placeable != open_before:
            assert result is life.state, "whoever places requests must hear of it"
        if life.state is not before:
            self.trials.clear()
        assert len(self.trials) <= 1
        if life.state in (State.JOINING, State.EJECTED, State.DRAINING, State.GONE):
            assert not life.placeable
            assert not life.last_resort

    def _told(self, news: str) -> State | None:
        life, settings = self.life, self.settings
        if news == "answer":
            return life.probed(True, settings)
        if news in ("miss", "miss though alive", "refused"):
            return life.probed(False, settings, alive=news == "miss though alive", refused=news == "refused")
        if news == "drain":
            return life.drain()
        if news == "undrain":
            return life.undrain()
        if news == "withdraw":
            return life.withdraw()
        if news == "dispatch":
            return self._dispatch()
        if news == "late failure":
            return life.attempt_failed(settings, 0)
        attempt = self.in_flight.pop(0) if self.in_flight else 0
        self.trials.discard(attempt)
        if news == "success":
            return life.attempt_succeeded(attempt)
        return life.attempt_failed(settings, attempt) if news == "failure" else life.attempt_ended(attempt)

    def _dispatch(self) -> State | None:
        if not (self.life.placeable or self.life.last_resort):
            return None
        attempt, self.next_attempt = self.next_attempt, self.next_attempt + 1
        self.in_flight.append(attempt)
        result = self.life.dispatched(attempt)
        if result is not None:
            self.trials.add(attempt)
        return result


@given(settings_of, st.lists(st.sampled_from(NEWS), max_size=60))
def test_the_table_is_total_and_holds_no_trap(settings: Settings, story: list[str]) -> None:
    teller = Teller(settings)
    for news in story:
        teller.tell(news)
    life = teller.life
    if life.state is State.GONE:
        return
    if life.state is State.DRAINING:
        teller.tell("undrain")
    # From here on the instance is well: its heartbeats are answered, and each request that it gets succeeds.
    for _ in range(REST_HEARTBEATS_MAX + settings.heartbeat_ready_answers + 2):
        teller.tell("answer")
        while teller.in_flight:
            teller.tell("success")
        if life.placeable:
            teller.tell("dispatch")
            teller.tell("success")
    assert life.state is State.READY
    assert life.placeable


@given(settings_of, st.lists(st.sampled_from(["answer", "dispatch", "dispatch", "failure"]), max_size=200))
def test_an_ejected_instance_that_fails_every_request_gets_few(settings: Settings, story: list[str]) -> None:
    """No more trials than there were good heartbeats since it was put out by failing requests."""
    teller = Teller(settings)
    teller.tell("answer")
    for _ in range(settings.failures_eject):
        teller.tell("failure")
    assert teller.life.state is State.EJECTED
    for news in story:
        teller.tell(news)
        assert teller.next_attempt - 1 <= story.count("answer")
    assert teller.life.state in (State.EJECTED, State.PROBING)


def test_each_state_is_reached_and_left_as_the_table_says() -> None:
    assert set(CHANGES) == set(State)
    assert {state for changes in CHANGES.values() for state in changes} == set(State)
    assert [state for state, changes in CHANGES.items() if not changes] == [State.GONE]
