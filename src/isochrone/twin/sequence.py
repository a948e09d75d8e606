"""What an engine is asked to generate, and how far it is."""

from dataclasses import dataclass, field

from isochrone.nouns.instant import Instant


@dataclass(slots=True, eq=False)
class TwinRequest:
    """One sequence to generate. The twin needs sizes and hashes, never the tokens themselves."""

    id: str
    prompt_tokens: int
    output_tokens: int
    """Generation ends after this many, or earlier when the driver calls `Engine.end`."""
    hashes: list[int] = field(default_factory=list)
    """Hash of each full block, chained from the start. The driver may append those of output blocks while the request
    runs, as their tokens become known; a block without a hash is never shared."""
    in_place: int = 0
    """Prompt tokens whose KV has come from another engine: when the request is first let in they take memory, and are
    not computed. The last token of a prompt always is."""


@dataclass(slots=True, eq=False)
class Row:
    """A request inside the engine. Instants are None until they have happened."""

    request: TwinRequest
    submitted_at: Instant
    known: int
    """Tokens that exist: prompt + output so far."""
    computed: int = 0
    """Tokens whose KV is in memory."""
    emitted: int = 0
    blocks: list[int] = field(default_factory=list)
    named: int = 0
    """Blocks from the start that can be found by hash, or were found by it."""
    cached: int = 0
    """Prompt tokens that the prefix cache held when the request was first scheduled."""
    preemptions: int = 0
    scheduled_at: Instant | None = None
    """Start of the first step that it was part of."""
    first_token_at: Instant | None = None
    last_token_at: Instant | None = None
    ended: bool = False
