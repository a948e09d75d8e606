"""Profiles agree with what is published about their devices."""

import pytest

from isochrone.twin.profiles import PROFILES


def decode_s(name: str, rows: int = 1, context: int = 512) -> float:
    return PROFILES[name].step.seconds(rows, rows * context, 0)


@pytest.mark.parametrize(
    ("name", "rows", "context", "kernels_s"),
    [
        # Kernel sums of aiconfigurator-core 0.12.0; our step adds the stated overhead.
        ("h100-8b", 1, 512, 5.445e-3),
        ("h100-8b", 128, 2048, 17.184e-3),
        ("h100-70b-tp4", 32, 8192, 22.613e-3),
        ("a100-8b", 64, 2048, 21.377e-3),
    ],
)
def test_measured_steps_are_met_within_twelve_percent(name: str, rows: int, context: int, kernels_s: float) -> None:
    step = PROFILES[name].step
    assert step.seconds(rows, rows * context, 0) - step.overhead_s == pytest.approx(kernels_s, rel=0.12)


def test_a_27b_model_on_an_80_gb_card_decodes_in_about_50_ms_and_fp8_in_about_half() -> None:
    assert decode_s("a100-80g-27b-bf16") == pytest.approx(0.050, rel=0.05)
    assert decode_s("a100-80g-27b-fp8") == pytest.approx(0.027, rel=0.05)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_profile_is_whole(name: str) -> None:
    profile = PROFILES[name]
    assert profile.name == name
    assert profile.kv_tokens >= profile.max_model_len
    assert profile.kv_tokens * profile.kv_bytes_per_token < 4 * 80e9
    assert decode_s(name, rows=32) > decode_s(name)
