"""Attempts that run since before the cluster began: counted where they run, ended like any other."""

from random import Random

import msgspec
import pytest

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Dispatch, Fail, Record
from isochrone.nouns.events import (
    Adopted,
    Arrived,
    Ended,
    FirstToken,
    Found,
    ModelsSeen,
    Outcome,
    Probed,
    Progress,
    Verdict,
    attempt_id,
)
from isochrone.nouns.instance import InstanceSpec, ModelCard
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import PromptSize, Request, Slo, Usage
from isochrone.nouns.settings import Settings

OLD = attempt_id(2, 7, 1)


def cluster(*instances: str, models: bool = True) -> Cluster:
    made = Cluster(Settings(policy="round-robin"), Random(1))
    for name in instances:
        made.handle(SECOND, Found(InstanceSpec(id=name, url=f"http://{name}")))
        if models:
            made.handle(SECOND, ModelsSeen(name, (ModelCard("m", 4096),)))
            made.handle(SECOND, Probed(name, Verdict.OK))
    return made


def request(name: str = "r", tenant: str = "t") -> Request:
    return Request(
        id=name, model="m", path="/v1/chat/completions", stream=True, size=PromptSize(text_bytes=400, messages=1),
        blocks=(1, 2), hashed_bytes=400, max_tokens=100, tenant=tenant,
    )  # fmt: skip


def adopted(**changes: object) -> Adopted:
    fields: dict[str, object] = {
        "request": request(), "attempt": OLD, "instance": "a", "ordinal": 1, "relay": 2, "epoch": 8,
        "arrived_at": 2 * SECOND, "dispatched_at": 3 * SECOND,
    }  # fmt: skip
    return Adopted(**{**fields, **changes})  # type: ignore[arg-type]


def assert_empty(made: Cluster) -> None:
    assert made.in_flight() == 0
    for view in made.instances():
        assert (view.in_flight, view.waiting, view.decoding, view.pending_prefill_tokens, view.kv_tokens) == (0,) * 5


@pytest.mark.parametrize("first_token_at", [None, 4 * SECOND])
def test_it_is_counted_where_it_runs_and_taken_out_at_its_end(first_token_at: int | None) -> None:
    made = cluster("a", "b")
    assert made.handle(10 * SECOND, adopted(first_token_at=first_token_at, output_tokens=12)) == []
    views = {view.id: view for view in made.instances()}
    assert (views["a"].in_flight, views["b"].in_flight) == (1, 0)
    assert views["a"].decoding == (0 if first_token_at is None else 1)
    if first_token_at is None:
        made.handle(11 * SECOND, FirstToken(OLD))
    made.handle(12 * SECOND, Progress(OLD, 40))
    (record,) = made.handle(13 * SECOND, Ended(OLD, Outcome.DONE, True, 200, Usage(100, 50), 50))
    assert isinstance(record, Record)
    decision = record.decision
    assert (decision.outcome, decision.prompt_tokens, decision.output_tokens) == ("done", 100, 50)
    assert (decision.arrived_at, decision.tries[0].dispatched_at) == (2 * SECOND, 3 * SECOND)
    assert decision.first_token_at == (first_token_at or 11 * SECOND)
    assert_empty(made)


def test_one_that_fails_is_tried_elsewhere() -> None:
    made = cluster("a", "b")
    made.handle(10 * SECOND, adopted())
    (again,) = made.handle(11 * SECOND, Ended(OLD, Outcome.LOST, why="gone"))
    assert isinstance(again, Dispatch)
    assert (again.instance, again.ordinal, again.attempt >> 40) == ("b", 2, (2 << 12) | 8)
    made.handle(12 * SECOND, Ended(again.attempt, Outcome.DONE, True, 200))
    assert_empty(made)


def test_a_stream_goes_on_elsewhere_with_what_was_said() -> None:
    made = cluster("a", "b")
    made.handle(10 * SECOND, adopted(ordinal=2, said_tokens=20, first_token_at=9 * SECOND, output_tokens=5))
    (again,) = made.handle(11 * SECOND, Ended(OLD, Outcome.LOST, True, output_tokens=25, resumable=True))
    assert isinstance(again, Dispatch)
    assert (again.instance, again.continues, again.ordinal) == ("b", True, 3)
    made.handle(12 * SECOND, Ended(again.attempt, Outcome.DONE, True, 200, Usage(100, 40), 40))
    assert_empty(made)


@pytest.mark.parametrize(("said_tokens", "due"), [(None, 3 * SECOND), (20, 0)])
def test_an_answer_under_way_has_no_first_token_to_miss(said_tokens: int | None, due: int) -> None:
    made = cluster("a", "b")
    sheddable = msgspec.structs.replace(request(), slo=Slo(1.0, None, sheddable=True))
    made.handle(10 * SECOND, adopted(request=sheddable, said_tokens=said_tokens))
    assert made._world.flights[OLD].ask.first_token_due == due


def test_its_instance_may_not_have_told_its_models_yet() -> None:
    made = cluster("a", models=False)
    made.handle(10 * SECOND, adopted())
    made.handle(10 * SECOND, ModelsSeen("a", (ModelCard("m", 4096),)))
    made.handle(10 * SECOND, Probed("a", Verdict.OK))
    (dispatch,) = made.handle(11 * SECOND, Arrived(request("s")))
    assert isinstance(dispatch, Dispatch)
    assert made.instances()[0].in_flight == 2
    made.handle(12 * SECOND, Ended(dispatch.attempt, Outcome.DONE, True, 200))
    fail, record = made.handle(12 * SECOND, Ended(OLD, Outcome.FAILED, status=500))
    assert isinstance(fail, Fail)
    assert isinstance(record, Record)
    assert_empty(made)


@pytest.mark.parametrize("odd", [adopted(instance="z"), adopted(request=request("q")), adopted(attempt=OLD + 1)])
def test_what_is_unknown_or_here_already_changes_nothing(odd: Adopted) -> None:
    made = cluster("a")
    made.handle(10 * SECOND, adopted())
    assert made.handle(10 * SECOND, odd) == []
    assert made.in_flight() == 1
    made.handle(11 * SECOND, Ended(OLD, Outcome.DONE, True, 200))
    assert_empty(made)


def test_tenants_shares_are_settled() -> None:
    made = cluster("a")
    made.handle(10 * SECOND, Arrived(request("own", tenant="u")))
    made.handle(10 * SECOND, adopted())
    made.handle(11 * SECOND, Ended(OLD, Outcome.CLIENT_LEFT, True, output_tokens=3))
    made.handle(11 * SECOND, Ended(attempt_id(0, 0, 1), Outcome.DONE, True, 200))
    assert_empty(made)
