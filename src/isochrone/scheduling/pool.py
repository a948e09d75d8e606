"""A pool: the instances that take one model's requests, with their price rows.

Rows are derived lazily: an event on an instance marks its position; the next decision derives what is marked, and all
of them where the members have changed.
"""

from collections.abc import Callable, Sequence

from isochrone.instances.table import Instance
from isochrone.nouns.instant import Instant
from isochrone.scheduling.places import Places
from isochrone.scheduling.price import VECTOR_FROM, Row

Derive = Callable[[Instance, Instant], Row]


class Pool:
    """Members that may take requests now, and their rows. `known`: every instance of the model, in any state."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.known: list[Instance] = []
        self.members: list[Instance] = []
        self.rows: list[Row] = []
        """By position; empty from a change of members to the next decision."""
        self.slots: list[int] = []
        self.limits: list[int | None] = []
        """Longest context of each member for this model, in tokens."""
        self.places: Places | None = None
        """The rows as arrays, from VECTOR_FROM members up."""
        self.version = 0
        """Counts changes of membership."""
        self.warm = False
        """The step model of every member's class has its first samples."""
        self.in_doubt = False
        """No member is well: those that may only be busy stand in."""
        self.marked: set[int] = set()
        """Slots of instances on which something has changed since their rows were derived."""
        self._positions: dict[int, int] = {}

    def regroup(self, samples_warm: int) -> None:
        """Membership or a member's state changed: who takes requests from now on."""
        ready = [instance for instance in self.known if instance.life.placeable and instance.weight > 0]
        self.in_doubt = not ready
        for second_best in ("last_resort", "fail_open"):
            if not ready:
                ready = [
                    instance for instance in self.known if getattr(instance.life, second_best) and instance.weight > 0
                ]
        self.in_doubt &= bool(ready)
        self.members = ready
        self.slots = [instance.slot for instance in ready]
        self._positions = {slot: position for position, slot in enumerate(self.slots)}
        self.limits = [instance.models.get(self.model) for instance in ready]
        self.rows.clear()
        self.version += 1
        self.warm_up(samples_warm)

    def refresh(self, now: Instant, derive: Derive) -> Sequence[int]:
        """Derive the rows of marked instances anew; returns their positions."""
        marked = self.marked
        if len(self.rows) != len(self.members):
            self._derive_all(now, derive)
            return range(len(self.rows))
        if not marked:
            return ()
        where = self._positions
        positions = [where[slot] for slot in sorted(marked) if slot in where]
        marked.clear()
        for position in positions:
            row = self.rows[position] = derive(self.members[position], now)
            if self.places is not None:
                self.places.update(position, row)
        return positions

    def _derive_all(self, now: Instant, derive: Derive) -> None:
        self.rows = [derive(instance, now) for instance in self.members]
        self.places = Places(self.rows) if len(self.rows) >= VECTOR_FROM else None
        self.marked.clear()

    def longest_context(self) -> int | None:
        """The longest context that any known instance offers; None where one of them did not say."""
        lengths = [instance.models.get(self.model) for instance in self.known]
        known = [length for length in lengths if length is not None]
        return max(known) if known and len(known) == len(lengths) else None

    def warm_up(self, samples_warm: int) -> None:
        """Look whether the pool may price by its step models."""
        self.warm = bool(self.members) and all(instance.step_times.samples >= samples_warm for instance in self.members)
