"""Engine metrics in the names of all versions, and scrapes that must not be believed (M-01, M-02)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.adapters.engine import detect
from isochrone.adapters.engine.exposition import BadScrape, check, samples
from tests.unit.adapters import scrapes


@pytest.mark.parametrize("body", [scrapes.VLLM_0_6, scrapes.VLLM_0_10, scrapes.SGLANG_0_4])
def test_each_vocabulary_gives_the_same_values(body: bytes) -> None:
    snapshot = detect.decode(body)
    assert (snapshot.running, snapshot.waiting, snapshot.kv_usage_ratio) == (3, 2, 0.25)
    assert (snapshot.prompt_tokens, snapshot.generation_tokens, snapshot.block_tokens) == (1000, 500, 16)


def test_engine_is_told_by_the_prefix() -> None:
    assert detect.decode(scrapes.VLLM_0_10).engine == "vllm"
    assert detect.decode(scrapes.SGLANG_0_5_RANKS).engine == "sglang"
    assert detect.decode(b"llamacpp:requests_processing 1\n").engine == "openai"


def test_new_name_wins_where_both_are_there() -> None:
    snapshot = detect.decode(scrapes.VLLM_0_10)
    assert snapshot.kv_usage_ratio == 0.25
    assert (snapshot.prefix_query_tokens, snapshot.prefix_hit_tokens) == (800, 300)
    assert snapshot.missing == ()


def test_missing_is_not_zero_and_names_what_was_looked_for() -> None:
    body = b"\n".join(line for line in scrapes.VLLM_0_10.split(b"\n") if b"cache_usage" not in line)
    snapshot = detect.decode(body)
    assert snapshot.kv_usage_ratio is None
    assert snapshot.missing == ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    assert detect.decode(scrapes.VLLM_0_6).iterations is None


def test_neither_vocabulary_is_missing_everything() -> None:
    snapshot = detect.decode(b"# TYPE up gauge\nup 1\n")
    assert snapshot.running is None
    assert {"vllm:num_requests_running", "sglang:num_running_reqs"} <= set(snapshot.missing)


def test_vllm_ranks_add_up_and_ratios_are_averaged() -> None:
    snapshot = detect.decode(scrapes.VLLM_0_32_TWO_RANKS)
    assert (snapshot.running, snapshot.waiting) == (8, 2)
    assert snapshot.kv_usage_ratio == pytest.approx(0.3)
    assert snapshot.kv_capacity_tokens == 2 * 262144
    assert snapshot.block_tokens == 128
    assert (snapshot.prefix_query_tokens, snapshot.prefix_hit_tokens) == (1000, 300)
    assert (snapshot.prompt_tokens, snapshot.generation_tokens, snapshot.preemptions) == (1010, 505, 4)
    assert (snapshot.iterations, snapshot.iteration_tokens) == (12, 1515)


def test_cache_size_from_blocks_where_tokens_are_not_told() -> None:
    assert detect.decode(scrapes.VLLM_0_6).kv_capacity_tokens == 16_000
    unknown = scrapes.VLLM_0_6.replace(b'num_gpu_blocks="1000"', b'num_gpu_blocks="None"')
    assert detect.decode(unknown).kv_capacity_tokens is None


def test_sglang_ranks() -> None:
    snapshot = detect.decode(scrapes.SGLANG_0_5_RANKS)
    assert snapshot.running == 7, "tensor parallel ranks count once, priorities not beside their sum"
    assert snapshot.waiting == 3
    assert snapshot.kv_usage_ratio == pytest.approx(0.3)
    assert (snapshot.kv_capacity_tokens, snapshot.block_tokens) == (100_000, 64)
    assert (snapshot.prefix_query_tokens, snapshot.prefix_hit_tokens) == (1000, 400)
    assert (snapshot.generation_tokens, snapshot.preemptions) == (500, 4)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<!doctype html><html><body>502 Bad Gateway</body></html>\n",
        b'{"detail": "Not Found"}\n',
        scrapes.VLLM_0_10[:-9],
        scrapes.VLLM_0_10.replace(b"} 3.0\n", b"} NaN\n"),
        scrapes.VLLM_0_10.replace(b"} 3.0\n", b"} +Inf\n"),
        scrapes.VLLM_0_10.replace(b"} 3.0\n", b"} -1\n"),
        scrapes.VLLM_0_10.replace(b"} 0.25\n", b"} 25\n"),
        scrapes.VLLM_0_10.replace(b"} 3.0\n", b"}\n"),
        scrapes.VLLM_0_10.replace(b"} 3.0\n", b"} three\n"),
    ],
)
def test_bad_scrapes_are_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(BadScrape):
        detect.decode(body)


@given(st.integers(0, len(scrapes.VLLM_0_32_TWO_RANKS) - 1))
def test_a_cut_anywhere_never_gives_a_wrong_number(cut: int) -> None:
    """Cut inside a line: refused. Cut between lines: what is left is right, or missing."""
    whole = detect.decode(scrapes.VLLM_0_32_TWO_RANKS)
    try:
        part = detect.decode(scrapes.VLLM_0_32_TWO_RANKS[:cut])
    except BadScrape:
        return
    assert scrapes.VLLM_0_32_TWO_RANKS[cut - 1 : cut] == b"\n"
    assert part.prompt_tokens in (None, whole.prompt_tokens, 1000), "1000: the first rank alone"


@given(st.binary(max_size=300))
def test_random_bytes_are_read_or_refused(junk: bytes) -> None:
    for body in (junk, junk + b"\n", b"vllm:num_requests_running" + junk + b"\n"):
        try:
            snapshot = detect.decode(body)
        except BadScrape:
            continue
        assert snapshot.running is None or snapshot.running >= 0


def test_longer_names_and_hostile_labels_do_not_confuse() -> None:
    text = check(
        b"# HELP a_total Text with a_total 99 in it\n"
        b"a_total_created 5\n"
        b'a_total{text="} 7 \\"x{",other="a_total 8"} 3 1700000000000\n'
        b"a_total 4\n"
    )
    assert [sample.value for sample in samples(text, "a_total")] == [3, 4]
    assert samples(text, "a_total")[0].label_values() == {"text": '} 7 \\"x{', "other": "a_total 8"}
    assert samples(text, "a") == []


def test_injected_fields_by_engine() -> None:
    assert all("stream_options.include_usage" in detect.injects(engine) for engine in detect.ENGINES)
