"""How many requests an instance runs at once (max_num_seqs), inferred where nobody told us.

Engines do not export it. It shows where `num_requests_running` stops rising while others wait: the same count in
two readings with a queue, and KV memory not the reason.
"""

import msgspec

from isochrone.nouns.instance import Snapshot

KV_FULL_RATIO = 0.9
"""Above this the engine may have stopped for want of memory, not of slots."""


class SlotGuess(msgspec.Struct):
    """Folds scrapes into a guess. `slots` is None until the sign has been seen."""

    slots: int | None = None
    last_running: int = -1

    def observe(self, snapshot: Snapshot) -> None:
        running, waiting = snapshot.running, snapshot.waiting
        if running is None or waiting is None:
            return
        if self.slots is not None and running > self.slots:
            self.slots = None  # the guess was too low
        has_room = snapshot.kv_usage_ratio is None or snapshot.kv_usage_ratio < KV_FULL_RATIO
        if waiting > 0 and running > 0 and running == self.last_running and has_room:
            self.slots = running
        self.last_running = running if waiting > 0 else -1
