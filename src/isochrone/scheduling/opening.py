"""Late binding's question: may this request be sent to this instance now?

To an idle instance always. To a busy one if
  - a slot is free or about to be, and its KV memory is below the hard limit,
  - little enough prefill is pending there: the engine has work for the next steps, and all else is better off waiting,
  - the prompt finds KV memory. A prompt that does not fit blocks the line inside the engine, or takes memory that
    running answers are about to need; the engine then throws out whoever came last, and its prefill is done again.
    One that may not be shed waits KV_PATIENCE_NS for that at most,
  - a request that may be shed has its first token in time there; else its prefill would be work for nothing,
  - a cap on concurrency allows it, where one is set.
"""

import numpy as np

from isochrone.nouns.instant import SECOND, Instant
from isochrone.nouns.settings import Settings
from isochrone.scheduling import cap
from isochrone.scheduling.places import ALL, CHUNK, KV_SPARE, PENDING, Places
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, Row, first_token_s

KV_PATIENCE_NS = 5 * SECOND
"""After this a request that may not be shed goes by the hard limit alone: small ones take what comes free before it,
and nobody may wait for ever."""


def is_open(ask: Ask, row: Row, now: Instant, settings: Settings, hit: int = 0, since: Instant | None = None) -> bool:
    """One request, one instance. `hit`: cached prompt tokens there; `since`: when it began to wait."""
    if row.idle:
        return True
    if not row.has_room:
        return False
    if ask.prompt_tokens - hit > row.kv_spare_tokens and (
        ask.first_token_due or since is None or now - since < KV_PATIENCE_NS
    ):
        return False
    pending_s = row.pending_s
    if row.head_due > now:
        pending_s += (row.head_due - now) * 1e-9
    if pending_s > (settings.hold_chunks_sheddable if ask.sheddable else settings.hold_chunks) * row.chunk_s:
        return False
    if ask.first_token_due and now + first_token_s(ask.prompt_tokens, hit, row, now) * 1e9 > ask.first_token_due:
        return False
    return not ask.step_s_max or cap.allows(ask, row)


def open_places(ask: Ask, pool: Pool, places: Places, now: Instant, settings: Settings) -> np.ndarray:
    """One request, every position."""
    chunks = settings.hold_chunks_sheddable if ask.sheddable else settings.hold_chunks
    pending_s = places.matrix[PENDING] + places.head_s(now)
    little = places.room & (pending_s <= chunks * places.matrix[CHUNK])
    tokens = np.array([float(ask.prompt_tokens)])
    hits = np.zeros((1, len(pending_s))) if ask.hits is None else np.asarray(ask.hits, dtype=np.float64)[None, :]
    due, since = np.array([float(ask.first_token_due)]), np.array([float(now)])
    little &= ~unfit(places, tokens, hits, due, since, now)[0]
    if ask.step_s_max:
        little &= cap.allows_many(np.array([ask.prompt_tokens]), np.array([ask.step_s_max]), pool.rows)[0]
    found: np.ndarray = places.idle | little
    return found


def unfit(
    places: Places,
    tokens: np.ndarray,
    hits: np.ndarray,
    due: np.ndarray,
    since: np.ndarray,
    now: Instant,
    where: np.ndarray | slice = ALL,
) -> np.ndarray:
    """At which of the positions `where` a prompt finds no KV memory, or its first token would come too late: requests x
    positions.

    `tokens`, `due` (nanoseconds; 0: no matter), `since`: one a request. `hits`: requests x positions.
    """
    u = tokens[:, None] - hits
    waits = (due > 0.0) | (now - since < KV_PATIENCE_NS)
    closed: np.ndarray = (u > places.matrix[KV_SPARE, where]) & waits[:, None]
    if due.any():
        late = places.first_token_s(tokens[:, None], u, now, where) > (due[:, None] - now) * 1e-9
        closed |= (due > 0.0)[:, None] & late
    return closed
