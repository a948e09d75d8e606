"""Faults that users of other gateways reported (R-01, R-04, R-05), at the door of the cluster."""

from collections import Counter

import pytest

from isochrone.nouns.events import Arrived
from isochrone.nouns.instant import MILLISECOND, SECOND
from isochrone.nouns.settings import Settings
from tests.support.rig import Rig

LOAD_AWARE = ["equal-cost", "least-request", "power-of-two", "estimated-time"]


@pytest.mark.parametrize("generates", [True, False], ids=["chat", "pass-through"])
@pytest.mark.parametrize("policy", ["equal-cost", "least-request"])
def test_r01_load_counts_on_every_path(policy: str, generates: bool) -> None:
    """400 at once with one shared 2,000-token prefix over 8 instances: none holds more than twice the mean."""
    rig = Rig(Settings(policy=policy), engines=8)
    for number in range(400):
        path = "/v1/chat/completions" if generates else "/v1/score"
        request = rig.request(f"r{number}", b"p" * 8_000, output=20, generates=generates)
        request.path = path
        rig.feed(Arrived(request))
    in_flight = Counter(sent.engine.id for sent in rig.sent.values())
    assert max(in_flight.values()) <= 2 * 400 / 8
    rig.run()
    rig.check_over()


@pytest.mark.parametrize("policy", LOAD_AWARE)
def test_r04_pending_prompts_count_from_the_moment_of_choice(policy: str) -> None:
    """4 instances, prefill 3 s, one output token, 40 requests within a second: 10 each, plus or minus 2."""
    rig = Rig(Settings(policy=policy), engines=4, token_s=3.0 / 32_000)
    for number in range(40):
        text = b"%04d" % number * 32_000  # no two share a block
        rig.at(SECOND + number * 25 * MILLISECOND, Arrived(rig.request(f"r{number}", text, output=1)))
    rig.run(until=2 * SECOND)
    taken = [engine.taken for engine in rig.engines.values()]
    slack = 2 if policy != "power-of-two" else 5
    assert all(abs(count - 10) <= slack for count in taken), taken
    rig.run()
    rig.check_over()


@pytest.mark.parametrize("refresh_s", [1, 5])
@pytest.mark.parametrize("policy", ["equal-cost", "least-request"])
def test_r05_old_metrics_draw_no_herd(policy: str, refresh_s: int) -> None:
    """8 instances, 200 requests/s, gauges refreshed every 1 or 5 s, one that always says idle.

    A window of 100 ms has 20 requests, 2.5 an instance. The busiest gets 3 at best (1.2 times the mean), some 5 by pure
    chance (2.1 times), and 20 in a herd. On average over the windows it must stay under 1.8 times: whole numbers leave
    no room for the 1.5 of the report.
    """
    rig = Rig(Settings(policy=policy, heartbeat_interval_s=1.0), engines=8, token_s=20e-6, step_s=0.01)
    rig.idle_gauge, rig.scrape_every = "e0", refresh_s
    for number in range(2000):
        text = b"%05d" % number * 200
        rig.at(SECOND + number * 5 * MILLISECOND, Arrived(rig.request(f"r{number}", text, output=30)))
    rig.run()
    rig.check_over()
    windows: dict[int, Counter[str]] = {}
    for when, _, engine_id in rig.dispatches:
        windows.setdefault(when // (100 * MILLISECOND), Counter())[engine_id] += 1
    busiest = [max(counts.values()) for counts in windows.values() if sum(counts.values()) >= 15]
    assert len(busiest) > 80
    assert sum(busiest) / len(busiest) < 1.8 * 20 / 8
    assert max(busiest) <= 8
