"""`isochrone serve`: flags, what they override, and errors with exit code 2 that name what was meant."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from isochrone.cli import serve
from isochrone.config.build import Configuration
from isochrone.nouns.request import Slo


def invoke(monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[Result, list[Configuration]]:
    """Run the command up to the point where the gateway would start."""
    started: list[Configuration] = []

    async def start(configuration: Configuration, *_: object) -> None:
        started.append(configuration)

    monkeypatch.setattr(serve, "serve", start)
    return CliRunner().invoke(serve.command, flags), started


def test_flags_make_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    result, (configuration,) = invoke(
        monkeypatch,
        "--instance", "http://127.0.0.1:9001",
        "--instance", "http://127.0.0.1:9002,class=h100,weight=2,slots=256,id=b,models=x+y",
        "--policy", "least-request", "--shadow", "random", "--no-hold", "--port", "0", "--admin-port", "9",
        "--inject", "none", "--slo-ttft", "2.5", "--sheddable", "--access-log", "-", "--seed", "7",
        "--without", "hold", "--without", "order", "--no-resume",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    first, second = configuration.instances
    assert (first.id, first.weight) == ("127.0.0.1:9001", 1.0)
    assert (second.id, second.device_class, second.weight, second.slots) == ("b", "h100", 2.0, 256)
    assert second.models == ("x", "y")
    settings, file = configuration.settings, configuration.file
    assert (settings.policy, settings.shadow, settings.hold) == ("least-request", "random", False)
    assert settings.slo == Slo(2.5, None, True)
    assert settings.without == {"hold", "order"}
    assert not settings.resume
    assert (file.listen.port, file.admin.port, file.inject, file.seed) == (0, 9, "none", 7)
    assert file.listen.host == "127.0.0.1"


def test_a_flag_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("policy: random\nlisten: {port: 7}\ninstances: [{url: http://a}]\n")
    _, (configuration,) = invoke(monkeypatch, "--config", str(path), "--port", "8")
    assert (configuration.file.listen.port, configuration.settings.policy) == (8, "random")
    assert [spec.id for spec in configuration.instances] == ["a"]


def test_several_processes_are_another_way_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Configuration] = []

    def start(configuration: Configuration, *_: object) -> int:
        started.append(configuration)
        return 5

    monkeypatch.setattr(serve.serve_relays, "run", start)
    path = tmp_path / "c.yaml"
    path.write_text("workers: {count: 3}\ninstances: [{url: http://a}]\n")
    result, alone = invoke(monkeypatch, "--config", str(path))
    assert (result.exit_code, started[-1].file.workers.count, alone) == (5, 3, [])
    invoke(monkeypatch, "--config", str(path), "--workers", "2")
    assert started[-1].file.workers.count == 2
    result, alone = invoke(monkeypatch, "--config", str(path), "--workers", "1")
    assert (result.exit_code, len(started), len(alone)) == (0, 2, 1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "Give at least one --instance URL"),
        (["--instance", "http://a", "--polcy", "random"], "'--policy'"),
        (["--instance", "http://a", "--policy", "equal-cots"], "did you mean 'equal-cost'?"),
        (["--instance", "http://a", "--shadow", "x"], "known: equal-cost"),
        (["--instance", "http://a,wieght=2"], "did you mean 'weight'?"),
        (["--instance", "http://a", "--without", "slownes"], "did you mean 'slowness'?"),
        (["--instance", "http://a,weight"], "expected key=value"),
        (["--instance", "http://a,weight=x"], "instances[0].weight = 'x'"),
        (["--instance", "127.0.0.1:9001"], "expected http://HOST:PORT"),
        (["--instance", "http://a", "--sheddable"], "--sheddable needs --slo-ttft"),
        (["--instance", "http://a", "--port", "99999"], "99999"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: No such file or directory"),
    ],
)
def test_what_makes_no_sense_ends_with_2(monkeypatch: pytest.MonkeyPatch, flags: list[str], words: str) -> None:
    result, started = invoke(monkeypatch, *flags)
    assert (result.exit_code, started) == (2, [])
    assert words in result.output
    assert "Traceback" not in result.output


def test_help_names_every_policy_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = invoke(monkeypatch, "--help")
    for name in serve.policies.names(peers=False):
        assert name in result.output


def test_plugins_that_cannot_be_loaded_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Entry:
        def __init__(self, name: str, loaded: Any) -> None:
            self.name, self.value, self._loaded = name, "somewhere:Policy", loaded

        def load(self) -> Any:
            if isinstance(self._loaded, Exception):
                raise self._loaded
            return self._loaded

    registered: dict[str, Any] = {}
    entries = [Entry("mine", object), Entry("broken", ImportError("no such module")), Entry("random", object)]
    monkeypatch.setattr("isochrone.cli.plugins.entry_points", lambda group: entries)
    monkeypatch.setattr(serve.policies, "register", registered.__setitem__)
    serve.load_policies()
    assert registered == {"mine": object}
    assert len(caplog.records) == 2
