"""Named engines: a model on a device, with the source of every number.

Measured profiles. `h100-8b`, `h100-70b-tp4` and `a100-8b` are fits of `benchmarks/fit_profiles.py` to sums of kernel
times that NVIDIA measured (aiconfigurator-core 0.12.0, Apache-2.0: GEMM, attention, all-reduce of Llama-3.1 in bf16;
vLLM 0.24 kernels on H100, 0.14 on A100). Mean absolute error of the fits: 4.0 %, 3.8 % and 2.3 %. The constant
`overhead_s` (norms, sampling, launches, scheduling) is not in those rows and is an assumption: 1.5 to 3 ms.

Roofline profiles. For a 27B model on one A100-80GB there was no measurement. Published peaks of the card are 2.04
TB/s and 312 TFLOPS (bf16, dense). We assume 60 % of the bandwidth: kernels alone reach 76 % in the `a100-8b` fit,
whole vLLM of 2023 reached 41 % (Llama-2-70B on four A100, 42 ms a decode step, splitwise-sim data/perf_model.csv,
MIT). We assume 70 % of the matrix rate, and for attention the 139 TFLOPS of the `a100-8b` fit. With 5 ms of overhead
a lone bf16 decode takes 49 ms. The A100 has no fp8 arithmetic: fp8 weights halve the reading, and the matrix work
stays as it is.

Memory. 90 % of 80 GB a card, less the weights and 2 GB for activations and graphs, is KV cache. Bytes of KV a token =
2 (K and V) x layers x KV heads x 128 x 2 bytes: Llama-3.1-8B 32 x 8, 70B 80 x 8, Gemma-2-27B 46 x 16 (its sliding
windows are not modelled).
"""

from dataclasses import dataclass

from isochrone.twin.steptime import StepTime

A100_BYTES_PER_S = 2.04e12 * 0.60
A100_FLOP_PER_S = 312e12 * 0.70
A100_ATTENTION_FLOP_PER_S = 139e12
PARAMETERS_27B = 27e9
KV_BYTES_27B = 2 * 46 * 16 * 128 * 2
PAIR_FLOP_27B = 4 * 4096 * 46
"""Attention work of one pair: 4 x heads x head size x layers."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What an emulated engine is: how fast, and how much fits."""

    name: str
    about: str
    step: StepTime
    kv_bytes_per_token: int
    kv_tokens: int
    """KV cache in tokens."""
    max_num_seqs: int = 256
    """Most sequences in one step."""
    chunk_tokens: int = 2048
    """max_num_batched_tokens: most tokens in one step."""
    block_tokens: int = 16
    max_model_len: int = 131_072
    """Most tokens of one sequence, prompt and output."""


def _a100_27b(bytes_per_parameter: int) -> StepTime:
    return StepTime(
        floor_s=PARAMETERS_27B * bytes_per_parameter / A100_BYTES_PER_S,
        base_s=0.0,
        token_s=2 * PARAMETERS_27B / A100_FLOP_PER_S,
        kv_token_s=KV_BYTES_27B / A100_BYTES_PER_S,
        pair_s=PAIR_FLOP_27B / A100_ATTENTION_FLOP_PER_S,
        overhead_s=0.005,
    )


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="h100-8b",
            about="Llama-3.1-8B bf16 on one H100-80GB; fitted to measured kernels (error 4.0 %)",
            step=StepTime(5.735e-3, 2.735e-3, 1.562e-5, 4.687e-8, 1.286e-9, overhead_s=1.5e-3),
            kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
            kv_tokens=411_000,
        ),
        Profile(
            name="h100-70b-tp4",
            about="Llama-3.1-70B bf16 on four H100-80GB; fitted to measured kernels (error 3.8 %)",
            step=StepTime(14.75e-3, 10.24e-3, 4.806e-5, 2.863e-8, 2.345e-9, overhead_s=3e-3),
            kv_bytes_per_token=2 * 80 * 8 * 128 * 2,
            kv_tokens=423_000,
        ),
        Profile(
            name="a100-8b",
            about="Llama-3.1-8B bf16 on one A100-80GB; fitted to measured kernels (error 2.3 %)",
            step=StepTime(10.43e-3, 5.68e-3, 4.963e-5, 8.293e-8, 3.759e-9, overhead_s=2e-3),
            kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
            kv_tokens=411_000,
        ),
        Profile(
            name="a100-80g-27b-bf16",
            about="27B bf16 on one A100-80GB; roofline at 60 % of bandwidth, not measured: 49 ms for a lone decode",
            step=_a100_27b(bytes_per_parameter=2),
            kv_bytes_per_token=KV_BYTES_27B,
            kv_tokens=42_000,
            max_num_seqs=64,
            max_model_len=8192,
        ),
        Profile(
            name="a100-80g-27b-fp8",
            about="27B with fp8 weights on one A100-80GB; roofline, not measured: 27 ms for a lone decode",
            step=_a100_27b(bytes_per_parameter=1),
            kv_bytes_per_token=KV_BYTES_27B,
            kv_tokens=114_000,
            max_num_seqs=128,
            max_model_len=8192,
        ),
    )
}
