"""Heartbeats, scrapes and model lists: what the cluster is told about each kind of answer. No sockets, no waiting."""

import asyncio
import json
import random
from collections.abc import Callable, Mapping

import pytest

from isochrone.config.build import ScrapePlan
from isochrone.gateway.asking import Answer, jittered
from isochrone.gateway.probe import Heart
from isochrone.gateway.scrape import ABSENT_RESULT, BAD, FAILED, OK, ModelReader, Scraper
from isochrone.gateway.watch import Watch
from isochrone.nouns.events import Event, ModelsSeen, Observed, Probed, Verdict
from isochrone.nouns.instance import InstanceSpec, ModelCard

METRICS = b"vllm:num_requests_running 3\nvllm:generation_tokens_total %d\n"
PLAN = ScrapePlan(0.002, 0.005, 0.002, 0.005, 0.02, 0.02)

Reply = Answer | Exception | Callable[[], Answer]


def ok(body: bytes = b"") -> Answer:
    return (200, {}, body)


class Engines:
    """Answers by (instance, path); what is not set never answers. Keeps what the cluster was told."""

    def __init__(self, replies: Mapping[tuple[str, str], Reply]) -> None:
        self.replies = dict(replies)
        self.asked: list[tuple[str, str]] = []
        self.events: list[Event] = []

    def submit(self, event: Event) -> None:
        self.events.append(event)

    async def http_get(self, instance: str, path: str, timeout_s: float) -> Answer:
        self.asked.append((instance, path))
        reply = self.replies.get((instance, path))
        if reply is None:
            async with asyncio.timeout(timeout_s):
                await asyncio.Event().wait()
        if isinstance(reply, Exception):
            raise reply
        if callable(reply):
            return reply()
        assert reply is not None
        return reply


def heart(engines: Engines, revived: Callable[[], None] = lambda: None) -> Heart:
    return Heart(engines, "a", PLAN, random.Random(1), revived)


def scraper(engines: Engines) -> Scraper:
    return Scraper(engines, "a", "auto", PLAN, random.Random(1))


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (ok(), Verdict.OK),
        ((204, {}, b""), Verdict.OK),
        ((503, {}, b""), Verdict.REFUSED),
        ((302, {}, b""), Verdict.REFUSED),
        (ConnectionRefusedError(), Verdict.REFUSED),
        (ConnectionResetError(), Verdict.REFUSED),
        (ValueError("not HTTP"), Verdict.REFUSED),
        (TimeoutError(), Verdict.TIMEOUT),
        (None, Verdict.TIMEOUT),
    ],
)
def test_heartbeat_verdicts(reply: Reply | None, verdict: Verdict) -> None:
    engines = Engines({("a", "/health"): reply} if reply is not None else {})
    assert asyncio.run(heart(engines).beat()) is verdict
    assert engines.events == [Probed("a", verdict)]


def test_an_engine_without_health_is_asked_for_its_models() -> None:
    engines = Engines({("a", "/health"): (404, {}, b""), ("a", "/v1/models"): ok()})

    async def run() -> list[Verdict]:
        beating = heart(engines)
        return [await beating.beat(), await beating.beat()]

    assert asyncio.run(run()) == [Verdict.OK, Verdict.OK]
    assert engines.asked == [("a", "/health"), ("a", "/v1/models"), ("a", "/v1/models")]


def test_coming_up_and_coming_back_are_noticed() -> None:
    engines = Engines({})
    revivals: list[int] = []
    beating = heart(engines, lambda: revivals.append(len(engines.events)))

    async def run() -> None:
        for reply in (ok(), ok(), ConnectionRefusedError(), ok()):
            engines.replies["a", "/health"] = reply
            await beating.beat()

    asyncio.run(run())
    assert revivals == [1, 4]
    assert beating.verdicts == {Verdict.OK: 3, Verdict.REFUSED: 1, Verdict.TIMEOUT: 0}


def test_a_good_scrape_is_observed() -> None:
    engines = Engines({("a", "/metrics"): ok(METRICS % 5)})
    assert asyncio.run(scraper(engines).scrape()) == OK
    (event,) = engines.events
    assert isinstance(event, Observed)
    assert (event.snapshot.running, event.snapshot.waiting, event.incarnation) == (3, None, 0)


@pytest.mark.parametrize("body", [b"", b"<html>up</html>\n", METRICS[:-3], b"vllm:num_requests_running NaN\n"])
def test_a_bad_scrape_keeps_the_old_values(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    engines = Engines({("a", "/metrics"): ok(body)})

    async def run() -> list[str]:
        scraping = scraper(engines)
        return [await scraping.scrape(), await scraping.scrape()]

    assert asyncio.run(run()) == [BAD, BAD]
    assert engines.events == []
    assert len(caplog.records) == 1, "one warning, not one a second"


def test_no_answer_is_no_news() -> None:
    engines = Engines({("a", "/metrics"): (503, {}, b"")})
    assert asyncio.run(scraper(engines).scrape()) == FAILED
    engines.replies["a", "/metrics"] = ConnectionRefusedError()
    assert asyncio.run(scraper(engines).scrape()) == FAILED
    assert engines.events == []


def test_an_engine_without_metrics_is_told_once() -> None:
    engines = Engines({("a", "/metrics"): (404, {}, b"")})

    async def run() -> list[str]:
        scraping = scraper(engines)
        return [await scraping.scrape(), await scraping.scrape()]

    assert asyncio.run(run()) == [ABSENT_RESULT, ABSENT_RESULT]
    (event,) = engines.events
    assert isinstance(event, Observed)
    assert "vllm:num_requests_running" in event.snapshot.missing


def test_a_restart_in_place_is_another_incarnation_and_asks_for_the_models_again() -> None:
    engines = Engines({})

    async def run() -> bool:
        scraping = scraper(engines)
        for tokens in (100, 200, 10):
            engines.replies["a", "/metrics"] = ok(METRICS % tokens)
            await scraping.scrape()
        return scraping.models_wanted.is_set()

    assert asyncio.run(run())
    assert [event.incarnation for event in engines.events if isinstance(event, Observed)] == [0, 0, 1]


@pytest.mark.parametrize("reply", [(404, {}, b""), ok(b"<html>"), ok(b'{"data": 1}'), ConnectionRefusedError()])
def test_a_model_list_that_cannot_be_read_changes_nothing(reply: Reply) -> None:
    engines = Engines({("a", "/v1/models"): reply})

    async def run() -> object:
        return await ModelReader(engines, "a", PLAN, random.Random(1), asyncio.Event()).read()

    assert asyncio.run(run()) is None
    assert engines.events == []


def test_jitter_stays_within_a_tenth() -> None:
    chance = random.Random(1)
    spans = [jittered(10.0, chance) for _ in range(1000)]
    assert 9.0 <= min(spans) < 9.1
    assert 10.9 < max(spans) <= 11.0


def test_a_slow_instance_delays_no_other() -> None:
    """One instance never answers anything; the other is asked and told about all the same (F-09)."""
    models = json.dumps({"data": [{"id": "m", "max_model_len": 100}]}).encode()
    engines = Engines({("b", "/health"): ok(), ("b", "/v1/models"): ok(models), ("b", "/metrics"): ok(METRICS % 1)})

    def told(kind: type[Event], instance: str) -> int:
        return sum(isinstance(event, kind) and event.instance == instance for event in engines.events)  # type: ignore[union-attr,arg-type]

    async def run() -> None:
        watch = Watch(engines, ScrapePlan(0.002, 60.0, 0.002, 60.0, 0.02, 0.02), random.Random(1))
        watch.add(InstanceSpec(id="a", url="http://a"))
        watch.add(InstanceSpec(id="b", url="http://b"))
        async with asyncio.timeout(5.0):
            while told(Probed, "b") < 5 or told(Observed, "b") < 5 or told(ModelsSeen, "b") < 2:
                await asyncio.sleep(0.001)
        await watch.close()
        assert watch.instances == {}

    asyncio.run(run())
    assert told(Probed, "a") == told(Observed, "a") == told(ModelsSeen, "a") == 0
    assert ModelsSeen("b", (ModelCard("m", 100),)) in engines.events


def test_a_removed_instance_is_asked_no_more() -> None:
    engines = Engines({("a", "/health"): ok(), ("a", "/metrics"): ok(METRICS % 1)})

    async def run() -> None:
        watch = Watch(engines, PLAN, random.Random(1))
        watch.add(InstanceSpec(id="a", url="http://a"))
        async with asyncio.timeout(5.0):
            while len(engines.events) < 3:
                await asyncio.sleep(0.001)
        watch.remove("a")
        await asyncio.sleep(0)
        before = len(engines.asked)
        await asyncio.sleep(PLAN.interval_s * 5)
        assert len(engines.asked) == before
        await watch.close()

    asyncio.run(run())
