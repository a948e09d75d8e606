"""Instances that join: their pools are looked up once for all of them, and reading changes nothing."""

import random
from collections.abc import Callable

from isochrone.cluster import Cluster
from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import Arrived, Found, ModelsSeen, Observed, Probed, Verdict, Weighed, Withdrawn
from isochrone.nouns.instance import InstanceSpec, ModelCard, Snapshot
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import PromptSize, Request
from isochrone.nouns.settings import Settings


def join(cluster: Cluster, name: str, context: int = 8_000) -> None:
    cluster.handle(SECOND, Found(InstanceSpec(id=name, url=f"http://{name}")))
    cluster.handle(SECOND, ModelsSeen(name, (ModelCard("m", context),)))
    cluster.handle(SECOND, Probed(name, Verdict.OK))
    cluster.handle(SECOND, Observed(name, Snapshot(engine="vllm", kv_capacity_tokens=100_000), SECOND))


def sent_to(cluster: Cluster, number: int) -> str:
    request = Request(id=f"r{number}", model="m", path="/v1/completions", size=PromptSize(text_bytes=100 * number + 1))
    (command,) = cluster.handle(2 * SECOND, Arrived(request))
    assert isinstance(command, Dispatch)
    return command.instance


def cluster_of(names: list[str], then: Callable[[Cluster], object]) -> Cluster:
    cluster = Cluster(Settings(), random.Random(1))
    for name in names:
        join(cluster, name)
        then(cluster)
    return cluster


NAMES = [f"e{number}" for number in range(70)]


def test_members_are_looked_up_once_for_all_that_join() -> None:
    cluster = cluster_of(NAMES, lambda _: None)
    pool = cluster._world.pools["m"]
    assert pool.version == 0
    assert sent_to(cluster, 0) in NAMES
    assert pool.version == 1
    assert len(pool.members) == len(NAMES)


def test_reading_sees_who_is_there_and_changes_no_decision() -> None:
    def read(cluster: Cluster) -> None:
        (queue,) = cluster.queues()
        assert queue.members == queue.known == len(cluster.instances())
        assert cluster.can_serve()
        assert cluster.models() == {"m": 8_000}

    quiet, read_often = cluster_of(NAMES, lambda _: None), cluster_of(NAMES, read)
    for number in range(200):
        assert sent_to(quiet, number) == sent_to(read_often, number)


def test_who_may_not_take_requests_is_left_out_at_once() -> None:
    cluster = cluster_of(["a", "b", "c"], lambda _: None)
    cluster.handle(SECOND, Weighed("a", 0.0))
    cluster.handle(SECOND, Withdrawn("b"))
    assert {sent_to(cluster, number) for number in range(6)} == {"c"}


def test_an_instance_that_serves_another_model_now_leaves_the_pool() -> None:
    cluster = cluster_of(["a", "b"], lambda _: None)
    cluster.handle(SECOND, ModelsSeen("a", (ModelCard("other", 8_000),)))
    assert {queue.model: queue.members for queue in cluster.queues()} == {"m": 1, "other": 1}
    assert {sent_to(cluster, number) for number in range(6)} == {"b"}
