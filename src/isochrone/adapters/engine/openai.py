"""An engine of which nothing is known but the API: no metrics, and no field that it is sure to understand."""

from isochrone.nouns.instance import Snapshot

INJECTS = frozenset({"stream_options.include_usage"})
"""`include_usage` is part of the OpenAI API itself."""


def decode(looked_for: tuple[str, ...]) -> Snapshot:
    """A scrape in which no known metric was found."""
    return Snapshot(engine="openai", missing=looked_for)
