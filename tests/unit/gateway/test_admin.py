"""The admin API over a real cluster: every call, and errors that name the field, the value and the remedy."""

import json
import random
from typing import Any

import pytest
from starlette.testclient import TestClient

from isochrone.cluster import Cluster
from isochrone.config.driver import Link
from isochrone.config.loader import load
from isochrone.gateway.admin import Admin
from isochrone.gateway.metrics import Metrics
from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import (
    Accepted,
    Arrived,
    Configured,
    Ended,
    Event,
    FirstToken,
    Found,
    ModelsSeen,
    Outcome,
    Probed,
    Verdict,
    Weighed,
    Withdrawn,
)
from isochrone.nouns.instance import InstanceSpec, ModelCard
from isochrone.nouns.instant import SECOND
from isochrone.nouns.request import Request
from isochrone.nouns.settings import Settings
from isochrone.observe.families import families


class Driver:
    """A cluster with a clock of its own, and the part of the gateway that the admin API calls."""

    def __init__(self) -> None:
        self.cluster = Cluster(Settings(), random.Random(1))
        self.draining = False
        self.now = SECOND

    def send(self, event: Event) -> list[Any]:
        self.now += SECOND
        return list(self.cluster.handle(self.now, event))

    def join(self, spec: InstanceSpec, link: Link) -> None:
        self.send(Found(spec))

    def leave(self, instance: str, drain: bool) -> None:
        self.send(Withdrawn(instance, drain))

    def drain(self, instance: str) -> None:
        self.send(Withdrawn(instance, keep=True))

    def undrain(self, instance: str) -> None:
        self.send(Found(InstanceSpec(id=instance, url="http://10.0.0.1:8000")))

    def weigh(self, instance: str, weight: float) -> None:
        self.send(Weighed(instance, weight))

    def configure(self, settings: Settings) -> None:
        self.send(Configured(settings))


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.join(InstanceSpec(id="a", url="http://10.0.0.1:8000"), Link())
    driver.send(ModelsSeen("a", (ModelCard("m", 4096),)))
    driver.send(Probed("a", Verdict.OK))
    driver.send(Probed("a", Verdict.OK))
    return driver


def client(driver: Driver, **overrides: Any) -> TestClient:
    metrics = Metrics()
    metrics.add(lambda: families(driver.cluster.series))
    return TestClient(Admin(driver, load(overrides=overrides), metrics).app(), base_url="http://127.0.0.1:8081")


def error_of(answer: Any) -> dict[str, Any]:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


def test_health_and_ready(driver: Driver) -> None:
    admin = client(driver)
    assert (admin.get("/health").status_code, admin.get("/ready").status_code) == (200, 200)
    driver.draining = True
    assert (admin.get("/health").status_code, admin.get("/ready").status_code) == (200, 503)
    assert client(Driver()).get("/ready").status_code == 503


def test_instances_are_listed_with_everything_known(driver: Driver) -> None:
    admin = client(driver)
    (listed,) = admin.get("/admin/instances").json()["instances"]
    assert (listed["id"], listed["url"], listed["state"], listed["models"]) == (
        "a",
        "http://10.0.0.1:8000",
        "ready",
        {"m": 4096},
    )
    assert admin.get("/admin/instances/a").json() == listed


def test_an_instance_is_added_drained_weighed_and_removed(driver: Driver) -> None:
    admin = client(driver)
    added = admin.post("/admin/instances", json={"url": "http://10.0.0.2:8000", "id": "b", "weight": 2, "class": "x"})
    assert (added.status_code, added.json()) == (201, {"added": "b"})
    assert admin.get("/admin/instances/b").json()["weight"] == 2.0
    assert admin.post("/admin/instances/b/weight", json={"weight": 0.5}).json() == {"instance": "b", "weight": 0.5}
    assert admin.get("/admin/instances/b").json()["weight"] == 0.5
    assert admin.post("/admin/instances/a/drain").status_code == 202
    assert admin.get("/admin/instances/a").json()["state"] == "draining"
    assert admin.post("/admin/instances/a/undrain").status_code == 202
    assert admin.get("/admin/instances/a").json()["state"] != "draining"
    assert admin.delete("/admin/instances/b").status_code == 202
    assert admin.get("/admin/instances/b").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({}, 400, "url", "url: this key is needed"),
        ({"url": "file:///etc/passwd"}, 400, "url", "expected http://HOST:PORT"),
        ({"url": "http://10.0.0.9:99999"}, 400, "url", "ort"),
        ({"url": "http://h", "wieght": 2}, 400, "wieght", "did you mean 'weight'?"),
        ({"url": "http://h", "weight": -1}, 400, "weight", "weight = -1"),
        ({"url": "http://h", "weight": float("1e999")}, 400, None, "not JSON"),
        ({"url": "http://169.254.169.254"}, 403, "url", "link-local"),
        ({"url": "http://h", "credentials": "$PATH"}, 403, "credentials", "configuration file"),
        ({"url": "http://other:1", "id": "a"}, 409, "id", "'a' is there already"),
        ([1], 400, None, ""),
    ],
)
def test_bad_instances_are_refused(driver: Driver, body: Any, status: int, param: str | None, words: str) -> None:
    answer = client(driver).post("/admin/instances", content=json.dumps(body).encode())
    error = error_of(answer)
    assert (answer.status_code, error["param"]) == (status, param)
    assert words in error["message"]
    assert len(driver.cluster.instances()) == 1


def test_only_allowed_hosts_where_a_list_is_set(driver: Driver) -> None:
    admin = client(driver, admin={"allow": ["10.0.*", "gpu-*.example"]})
    for url, status in (
        ("http://10.0.3.4:8000", 201),
        ("https://gpu-7.example", 201),
        ("http://10.1.0.1", 403),
        ("http://gpu-7.example.evil.test", 403),
    ):
        assert admin.post("/admin/instances", json={"url": url}).status_code == status, url


def test_unknown_instance_names_the_nearest(driver: Driver) -> None:
    admin = client(driver)
    driver.join(InstanceSpec(id="gpu-1:8000", url="http://gpu-1:8000"), Link())
    for answer in (
        admin.get("/admin/instances/gpu-2:8000"),
        admin.delete("/admin/instances/gpu-2:8000"),
        admin.post("/admin/instances/gpu-2:8000/drain"),
        admin.post("/admin/instances/gpu-2:8000/weight", json={"weight": 1}),
    ):
        assert answer.status_code == 404
        assert "did you mean 'gpu-1:8000'?" in error_of(answer)["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"weight": "heavy"}', b'{"weight": -1}', b'{"wait": 1}', b"\xff"])
def test_bad_weights(driver: Driver, body: bytes) -> None:
    answer = client(driver).post("/admin/instances/a/weight", content=body)
    assert answer.status_code == 400
    error_of(answer)
    assert driver.cluster.instances()[0].weight == 1.0


def test_a_long_body_is_refused(driver: Driver) -> None:
    answer = client(driver).post("/admin/instances/a/weight", content=b" " * 100_000)
    assert answer.status_code == 413


def test_policy(driver: Driver) -> None:
    admin = client(driver)
    assert admin.get("/admin/policy").json()["policy"] == "equal-cost"
    changed = admin.put("/admin/policy", json={"policy": "round-robin", "shadow": "equal-cost"}).json()
    assert (changed["policy"], changed["shadow"], changed["hold"]) == ("round-robin", "equal-cost", True)
    changed = admin.put("/admin/policy", json={"shadow": None, "hold": False}).json()
    assert (changed["policy"], changed["shadow"], changed["hold"]) == ("round-robin", None, False)
    assert driver.cluster.settings.policy == "round-robin"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"policy": "equal-cots"}, "did you mean 'equal-cost'?"),
        ({"shadow": "x"}, "known: "),
        ({"policy": None}, "must not be null"),
        ({"polcy": "random"}, "did you mean 'policy'?"),
        ({"hold": "perhaps"}, "hold"),
    ],
)
def test_bad_policies(driver: Driver, body: dict[str, Any], words: str) -> None:
    answer = client(driver).put("/admin/policy", json=body)
    assert answer.status_code == 400
    assert words in error_of(answer)["message"]
    assert driver.cluster.settings == Settings()


def serve_one(driver: Driver, name: str) -> None:
    (dispatch,) = driver.send(Arrived(Request(id=name, model="m", path="/v1/chat/completions", stream=True)))
    assert isinstance(dispatch, Dispatch)
    driver.send(Accepted(dispatch.attempt))
    driver.send(FirstToken(dispatch.attempt))
    driver.send(Ended(dispatch.attempt, Outcome.DONE, delivered=True, status=200, output_tokens=3))


def test_decisions(driver: Driver) -> None:
    admin = client(driver)
    for name in ("r-1", "r-2", "r/3"):
        serve_one(driver, name)
    brief = admin.get("/admin/decisions?limit=2").json()["decisions"]
    assert [one["request"] for one in brief] == ["r/3", "r-2"]
    whole = admin.get("/admin/decisions/r/3").json()
    assert (whole["request"], whole["winner"], whole["outcome"], whole["ttft_s"], whole["e2e_s"]) == (
        "r/3",
        "a",
        "done",
        2.0,
        3.0,
    )
    assert [one["instance"] for one in whole["candidates"]] == ["a"]
    assert [one["outcome"] for one in whole["tries"]] == ["done"]
    assert "evidence" not in whole
    assert admin.get("/admin/decisions/unknown").status_code == 404


@pytest.mark.parametrize("limit", ["0", "-1", "x", "99999999999", "4097", "1.5", "²"])
def test_bad_decision_limits(driver: Driver, limit: str) -> None:
    answer = client(driver).get("/admin/decisions", params={"limit": limit})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "limit")


def test_settings_show_values_beside_defaults(driver: Driver) -> None:
    admin = client(driver, queue={"requests_max": 7})
    admin.put("/admin/policy", json={"policy": "random"})
    listed = {one["name"]: one for one in admin.get("/admin/settings").json()["settings"]}
    queue = listed["queue.requests_max"]
    assert (queue["unit"], queue["default"], queue["value"]) == ("requests", 1000, 7)
    assert listed["policy"]["value"] == "random"
    assert "instances" not in listed


def test_metrics_and_queues(driver: Driver) -> None:
    serve_one(driver, "r")
    answer = client(driver).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'isochrone_arrivals_total{model="m",route="default"} 1.0' in answer.text
    assert client(driver).get("/admin/queues").json()["queues"][0]["model"] == "m"


def test_web_pages_cannot_steer_the_gateway(driver: Driver) -> None:
    admin = client(driver)
    for headers in (
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"host": "evil.test:8081"},
        {"host": "evil.test:8081", "origin": "http://evil.test:8081"},
    ):
        answer = admin.post("/admin/instances/a/drain", headers=headers)
        assert answer.status_code == 403, headers
        error_of(answer)
    for headers in ({"origin": "http://127.0.0.1:8081"}, {"host": "localhost:8081"}, {"host": "[::1]:8081"}):
        assert admin.get("/admin/instances", headers=headers).status_code == 200, headers
    assert driver.cluster.instances()[0].state == "ready"


def test_off_loopback_any_host_name_passes(driver: Driver) -> None:
    admin = client(driver, admin={"host": "0.0.0.0"})
    assert admin.get("/health", headers={"host": "gateway.cluster.local"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/admin/instanses", 404), ("POST", "/metrics", 405)]
)
def test_unknown_calls(driver: Driver, method: str, path: str, status: int) -> None:
    answer = client(driver).request(method, path)
    assert answer.status_code == status
    assert path in error_of(answer)["message"]
