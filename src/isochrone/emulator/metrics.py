"""What an instance counts, shown under vLLM 0.32's names in Prometheus text."""

from bisect import bisect_left
from collections.abc import Sequence

from isochrone.nouns.instant import Instant, seconds
from isochrone.twin.sequence import Row

_LATENCY_S = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
_FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
_GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKENS = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
    50000.0,
    100000.0,
)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_LAG_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)


class Histogram:
    """Counts by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class EngineMetrics:
    """Counters and histograms of one instance. Gauges are read from the engine when it is scraped."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        """Of prompts whose first token is out."""
        self.prompt_tokens_cached = 0
        """Of them: found in the prefix cache."""
        self.generation_tokens = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        self.step_tokens = Histogram(_STEP_TOKENS)
        self.first_token_s = Histogram(_FIRST_TOKEN_S)
        self.gap_s = Histogram(_GAP_S)
        self.time_per_token_s = Histogram(_GAP_S)
        self.whole_s = Histogram(_LATENCY_S)
        self.queue_s = Histogram(_LATENCY_S)
        self.inference_s = Histogram(_LATENCY_S)
        self.prefill_s = Histogram(_LATENCY_S)
        self.decode_s = Histogram(_LATENCY_S)
        self.request_prompt_tokens = Histogram(_TOKENS)
        self.request_generation_tokens = Histogram(_TOKENS)
        self.lag_s = Histogram(_LAG_S)
        self.lag_dropped_s = 0.0

    @property
    def prompt_tokens_computed(self) -> int:
        return self.prompt_tokens - self.prompt_tokens_cached

    def step(self, emitted: int, prompt_tokens: int) -> None:
        """As vLLM 0.32: a prompt counts whole in the step of its first token, a step without tokens not at all."""
        self.generation_tokens += emitted
        if emitted:
            self.step_tokens.observe(emitted + prompt_tokens)

    def gap(self, gap: int, times: int) -> None:
        """Nanoseconds between two tokens of a row, of `times` rows."""
        if times:
            self.gap_s.observe(seconds(gap), times)

    def first_token(self, row: Row) -> None:
        self.prompt_tokens += row.request.prompt_tokens
        self.prompt_tokens_cached += row.cached
        self.first_token_s.observe(_span_s(row.submitted_at, row.first_token_at))

    def ended(self, row: Row, reason: str) -> None:
        """A row got its last token."""
        self.finished[reason] += 1
        self.whole_s.observe(_span_s(row.submitted_at, row.last_token_at))
        self.queue_s.observe(_span_s(row.submitted_at, row.scheduled_at))
        self.inference_s.observe(_span_s(row.scheduled_at, row.last_token_at))
        self.prefill_s.observe(_span_s(row.scheduled_at, row.first_token_at))
        decode_s = _span_s(row.first_token_at, row.last_token_at)
        self.decode_s.observe(decode_s)
        if row.emitted > 1:
            self.time_per_token_s.observe(decode_s / (row.emitted - 1))
        self.request_prompt_tokens.observe(row.request.prompt_tokens)
        self.request_generation_tokens.observe(row.emitted)


def _span_s(start: Instant | None, end: Instant | None) -> float:
    """Seconds from `start` to `end`. Not below 0: a step stands on its planned instant, a request on its real one,
    and the two differ by how late the process is."""
    assert start is not None
    assert end is not None
    return max(0.0, seconds(end - start))


class Page:
    """Builds Prometheus text. Each sample carries the labels that vLLM puts on everything."""

    def __init__(self, model: str) -> None:
        escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'engine="0",model_name="{escaped}"'
        self._lines: list[str] = []

    def family(self, name: str, kind: str, about: str) -> None:
        self._lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, extra: str = "") -> None:
        labels = f"{self._labels},{extra}" if extra else self._labels
        self._lines.append(f"{name}{{{labels}}} {float(value)!r}")

    def single(self, name: str, kind: str, about: str, value: float) -> None:
        """A family of one sample. Counters: `name` without _total."""
        if kind == "counter":
            name += "_total"
        self.family(name, kind, about)
        self.sample(name, value)

    def histogram(self, name: str, about: str, histogram: Histogram) -> None:
        self.family(name, "histogram", about)
        total = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            self.sample(f"{name}_bucket", total, 'le="+Inf"' if bound == float("inf") else f'le="{bound!r}"')
        self.sample(f"{name}_count", total)
        self.sample(f"{name}_sum", histogram.sum)

    def bare(self, name: str, kind: str, about: str, value: float) -> None:
        """A family of the process: no labels."""
        self.family(name, kind, about)
        self._lines.append(f"{name} {float(value)!r}")

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()
