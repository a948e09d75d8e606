"""Which engine answered, and its scrape as a Snapshot."""

from isochrone.adapters.engine import exposition, openai, sglang, vllm
from isochrone.nouns.instance import Snapshot

ENGINES = ("auto", "vllm", "sglang", "openai")
"""Values of an instance's `engine`."""

LOOKED_FOR = (
    *vllm.RUNNING,
    *vllm.WAITING,
    *vllm.KV_USAGE,
    *sglang.RUNNING,
    *sglang.WAITING,
    *sglang.KV_USAGE,
)
"""Names that a scrape of no known engine lacks."""


def decode(body: bytes, engine: str = "auto") -> Snapshot:
    """The body of `/metrics` as numbers. Raises BadScrape where it cannot be trusted.

    `engine` as configured; `auto` goes by the prefix of the names. 100 us for the 55 KB of a real vLLM.
    """
    text = exposition.check(body)
    if engine == "vllm" or (engine == "auto" and vllm.PREFIX in text):
        return vllm.decode(text)
    if engine == "sglang" or (engine == "auto" and sglang.PREFIX in text):
        return sglang.decode(text)
    return no_metrics()


def no_metrics() -> Snapshot:
    """An engine of which no known metric was found: all values unknown, with the names looked for."""
    return openai.decode(LOOKED_FOR)


def injects(engine: str) -> frozenset[str]:
    """Request fields that the gateway may add for this engine (`auto`: not yet known, the API's own)."""
    return {"vllm": vllm.INJECTS, "sglang": sglang.INJECTS}.get(engine, openai.INJECTS)
