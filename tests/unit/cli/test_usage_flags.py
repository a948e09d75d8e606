"""`isochrone usage`: flags that make no sense together."""

import pytest
from click.testing import CliRunner

from isochrone.cli.usage import command


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--json", "--csv"), "not both"),
        (("--first", "2026-02-01", "--last", "2026-01-01"), "last = 2026-01-01: comes before first = 2026-02-01"),
        (("--first", "yesterday"), "expected a date like"),
        (("--by", "colour"), "expected some of day, tenant, key, model"),
    ],
)
def test_each_is_told_before_the_store_is_opened(flags: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(command, [*flags, "--store", "/no/such/file"])
    assert result.exit_code == 2
    assert said in result.output


def test_a_password_in_the_stores_url_is_refused_and_not_repeated() -> None:
    result = CliRunner().invoke(command, ["--store", "redis://me:s3cret@127.0.0.1:1/0"])
    assert result.exit_code == 2
    assert "ISOCHRONE_REDIS_PASSWORD" in result.output
    assert "s3cret" not in result.output
