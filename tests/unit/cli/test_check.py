"""`isochrone check`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from isochrone.cli.main import main

GOOD = """
instances: [{url: "http://10.0.0.1:8000"}, {url: "http://10.0.0.2:8000"}]
models: {aliases: {small: tiny, split: [{model: a, weight: 9}, {model: b}]}}
tenants: {acme: {requests_per_minute: 10}}
deadlines: {gap_s: null}
"""


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    done = CliRunner().invoke(main, ["check", str(file)])
    assert (done.exit_code, done.output) == (0, f"{file}: 2 instances, equal-cost, 2 aliases, 1 tenants, no keys\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polcy: x", "line 1: polcy: unknown key; did you mean 'policy'?"),
        ("policy: equal-cots", "policy = 'equal-cots': no such policy; did you mean 'equal-cost'?"),
        ("a: [", "line 1"),
        ("models: {aliases: {x: []}}", "models.aliases.x"),
        ("models: {aliases: {x: [{model: a, weight: -1}]}}", "models.aliases.x[0].weight = -1"),
        ("listen: {tls: {cert: /nonexistent}}", "listen.tls: No such file or directory"),
        ("listen: {tls: {key: x}}", "listen.tls: `key` and `client_ca` need a `cert`"),
        ("listen: {half_close: perhaps}", "listen.half_close"),
        ("admin: {allow: [10.0.0.0/99]}", "admin.allow[0] = '10.0.0.0/99'"),
        ("admin: {key: abc}", "admin.key: expected $NAME"),
        ("admin: {key: $ISOCHRONE_NOT_SET}", "admin.key: the environment variable ISOCHRONE_NOT_SET is not set"),
        ("instances: [{url: http://u:p@h:1}]", "instances[0].url: no user name or password in a URL"),
    ],
)
def test_a_bad_file_says_what_to_change(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    done = CliRunner().invoke(main, ["check", str(file)])
    assert done.exit_code == 1
    assert said in done.output
    assert str(file) in done.output or "listen.tls: No such" in done.output


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "No such file" in done.output
