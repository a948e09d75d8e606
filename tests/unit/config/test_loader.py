"""The configuration file: what it says, and how its errors read."""

from pathlib import Path

import pytest

from isochrone.config.build import Configuration
from isochrone.config.driver import Link, RelayLimits, Tls
from isochrone.config.loader import load
from isochrone.config.problems import ConfigError
from isochrone.config.schema_limits import LimitsGroup
from isochrone.nouns.request import Slo
from isochrone.nouns.settings import Settings


def loaded(tmp_path: Path, text: str, **environment: str) -> Configuration:
    path = tmp_path / "isochrone.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, environment=environment)


def problems(tmp_path: Path, text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text, **environment)
    return [problem.removeprefix(f"{tmp_path}/isochrone.yaml: ") for problem in caught.value.problems]


def test_without_a_file_all_is_default() -> None:
    configuration = load()
    assert configuration.settings == Settings()
    assert configuration.relay == RelayLimits()
    assert configuration.instances == ()


def test_objectives_by_tenant_cost_and_parts(tmp_path: Path) -> None:
    configuration = loaded(
        tmp_path,
        """
        without: [order]
        slo: {tenants: {gold: {ttft_s: 0.5}}}
        pricing: {money_price_s: 60, cap_ratio: 0.6}
        instances: [{url: "http://a", cost_per_hour: 2.5}]
        """,
    )
    settings = configuration.settings
    assert settings.slo_by_tenant == {"gold": Slo(0.5)}
    assert settings.without == {"order"}
    assert (settings.money_price_s, settings.cap_ratio) == (60, 0.6)
    assert configuration.instances[0].cost_per_hour == 2.5
    (problem,) = problems(tmp_path, "without: [odrer]")
    assert problem == ("line 1: without[0] = 'odrer': no such part of the scheduler; did you mean 'order'?")


def test_every_relay_limit_can_be_configured() -> None:
    assert set(RelayLimits.__dataclass_fields__) <= set(LimitsGroup.model_fields)


def test_a_full_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    configuration = loaded(
        tmp_path,
        f"""
        listen: {{host: 0.0.0.0, port: 80}}
        policy: least-request
        queue: {{requests_max: 7}}
        retry: {{attempts_max: 2}}
        pricing: {{chunk_tokens: 512}}
        limits: {{body_bytes_max: 1000, decisions_max: 9}}
        slo:
          default: {{ttft_s: 2}}
          models: {{m: {{tpot_s: 0.05, sheddable: true}}}}
        routes:
          classes: [chat]
          rules: [{{route: long, header: "x-kind: long*"}}]
        instances:
          - {{url: "http://10.0.0.1:8000/", class: h100, weight: 2, slots: 256, credentials: $KEY}}
          - url: https://10.0.0.2
            id: b
            models: [m]
            credentials: file:{tmp_path}/secret
            tls: {{verify: false}}
        """,
        KEY="abc",
    )
    settings = configuration.settings
    assert (settings.policy, settings.queue_requests_max, settings.attempts_max) == ("least-request", 7, 2)
    assert (settings.chunk_tokens, settings.decisions_max) == (512, 9)
    assert settings.slo == Slo(ttft_s=2.0)
    assert settings.slo_by_model == {"m": Slo(tpot_s=0.05, sheddable=True)}
    assert configuration.relay.body_bytes_max == 1000
    first, second = configuration.instances
    assert (first.id, first.url, first.device_class) == ("10.0.0.1:8000", "http://10.0.0.1:8000", "h100")
    assert (first.weight, first.slots, second.id, second.models) == (2.0, 256, "b", ("m",))
    assert configuration.links == {"10.0.0.1:8000": Link("abc"), "b": Link("s3cret", Tls(verify=False))}
    assert "abc" not in repr(configuration)


def test_overrides_win_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("listen: {host: 0.0.0.0, port: 80}\nqueue: {requests_max: 5}\n")
    configuration = load(path, {"listen": {"port": 81}, "policy": "random"})
    assert (configuration.file.listen.host, configuration.file.listen.port) == ("0.0.0.0", 81)
    assert (configuration.settings.policy, configuration.settings.queue_requests_max) == ("random", 5)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("queu: {}", "line 1: queu: unknown key; did you mean 'queue'?"),
        (
            "instances:\n  - url: http://a\n    wieght: 2",
            "line 3: instances[0].wieght: unknown key; did you mean 'weight'?",
        ),
        ("slo:\n  models:\n    m: {ttft: 3}", "line 3: slo.models.m.ttft: unknown key; did you mean 'ttft_s'?"),
        ("instances: [{}]", "line 1: instances[0].url: this key is needed"),
        (
            "instances: [{url: ftp://a}]",
            "line 1: instances[0].url = 'ftp://a': expected http://HOST:PORT or https://HOST:PORT",
        ),
        (
            "instances: [{url: http://u:p@a}]",
            "line 1: instances[0].url: no user name or password in a URL; use `credentials`",
        ),
        (
            "queue:\n  requests_max: -1",
            "line 2: queue.requests_max = -1: input should be greater than or equal to 0",
        ),
        (
            "instances: [{url: http://a, credentials: hunter2}]",
            "line 1: instances[0].credentials: expected $NAME (an environment variable) or file:PATH, "
            "not the secret itself",
        ),
        ("instances: [{url: http://a, credentials: $NO}]", "instances[0].credentials: the environment variable NO is"),
        (
            "instances: [{url: http://a, credentials: 'file:/nowhere/x'}]",
            "instances[0].credentials: /nowhere/x cannot be read: No such file or directory",
        ),
        ("instances: [{url: http://a}, {url: http://a}]", "instances[1].id: 'a' is already the id of another instance"),
        ("policy: a\npolicy: b", "line 2: policy: this key is already set on line 1"),
        ("a: [1\nb: 2", "line 2, column 2: "),
        ("- 1", "expected keys and values at the top, found a list"),
        ("routes: {rules: [{route: a}]}", "line 1: routes.rules[0]: a rule needs at least one of path, model and"),
        ("paths: [v1/x]", "the file: path 'v1/x' must start with '/'"),
        ("heartbeat: {eject_misses: 1, suspect_misses: 2}", "heartbeat.eject_misses: must not be less than"),
    ],
)
def test_errors_say_where_what_and_what_was_meant(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, text)
    assert any(line.startswith(problem) for line in found), found


def test_all_errors_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    found = problems(tmp_path, "queue: {wait_s_max: 0}\nadmin: {port: 99999}\nspeed: 3")
    assert [line.split(":")[0] for line in found] == ["line 1", "line 2", "line 3"]


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "binary.yaml")


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "# nothing yet\n").settings == Settings()


def test_shapes_are_named_as_in_the_file(tmp_path: Path) -> None:
    assert problems(tmp_path, "instances: http://a\nqueue: 5\ntenants: [a]") == [
        "line 1: instances = 'http://a': expected a list",
        "line 2: queue = 5: expected keys and values",
        "line 3: tenants = ['a']: expected keys and values",
    ]


def test_an_objective_of_a_route_class_that_nothing_can_have(tmp_path: Path) -> None:
    text = """
        slo: {routes: {bacth: {ttft_s: 30}, default: {ttft_s: 1}, night: {ttft_s: 60}, other: {ttft_s: 5}}}
        routes: {classes: [batch]}
        tenants: {nightly: {route: night}}
        """
    assert problems(tmp_path, text) == ["slo.routes.bacth: no such route class; did you mean 'batch'?"]
