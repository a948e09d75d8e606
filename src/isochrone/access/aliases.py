"""Other names for models, and traffic split over several by weight.

    gpt-4: [{model: org/large, weight: 9}, {model: org/large-next, weight: 1}]

A request that names a session stays with what its session was given; others are drawn one by one. A name may stand for
itself among others. Only the value of `model` in the body changes; the answer says which model it is from.
"""

import re
from collections.abc import Container, Iterator, Mapping

import msgspec
import xxhash

from isochrone.access import wire
from isochrone.access.fields import BadRequest
from isochrone.access.members import TooComplex, members

_KEY = b'"model"'
_value = re.compile(rb'\s*:\s*("[^"\\]*")').match
_form_model = rb'(;\s*name="?model"?\s*\r\n(?:[^\r\n]+\r\n)*\r\n)%b(?=\r\n--)'


class Target(msgspec.Struct, frozen=True, gc=False):
    """One model that an alias stands for."""

    model: str
    weight: float = 1.0
    """Share of the alias's traffic relative to the other targets'."""
    fallback: bool = False
    """Has no share: it is asked where the others cannot answer."""


class Aliases:
    """The table of aliases."""

    def __init__(self, table: Mapping[str, tuple[Target, ...]] | None = None) -> None:
        self._table = dict(table or {})

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def choose(self, alias: str, draw: float, served: Container[str]) -> str | None:
        """The model for a draw in [0, 1), by weight among those that are served; None where none is."""
        targets = [target for target in self._shares(alias) if target.model in served and target.weight > 0]
        left = draw * sum(target.weight for target in targets)
        for target in targets:
            left -= target.weight
            if left < 0:
                return target.model
        return targets[-1].model if targets else None

    def fallbacks(self, alias: str) -> tuple[str, ...]:
        """Models that may answer where the others cannot, in this order."""
        return tuple(target.model for target in self._table[alias] if target.fallback)

    def instead(self, alias: str, served: Container[str]) -> tuple[str, str] | None:
        """Where none of its models is served: the first fallback model that is, and the model in whose place."""
        found = next((model for model in self.fallbacks(alias) if model in served), None)
        return None if found is None else (found, next(target.model for target in self._shares(alias)))

    def _shares(self, alias: str) -> Iterator[Target]:
        return (target for target in self._table[alias] if not target.fallback)

    def lengths(self, served: Mapping[str, int | None]) -> dict[str, int | None]:
        """Aliases that can be asked for now, with the longest context that all their targets have."""
        found: dict[str, int | None] = {}
        for alias, targets in self._table.items():
            known = [served[target.model] for target in targets if target.model in served]
            lengths = [length for length in known if length is not None]
            if known:
                found[alias] = min(lengths) if len(lengths) == len(known) else None
        return found


def draw_of(session: str) -> float:
    """The draw of a session: always the same one."""
    return xxhash.xxh64_intdigest(session.encode()) / 2.0**64


def renamed(body: bytes, old: str, new: str, form: bool = False) -> bytes:
    """The body with another model, all else as it was. `form`: multipart. Raises BadRequest where that is not clear."""
    if form:
        return _renamed_form(body, old.encode(), new.encode())
    value = msgspec.json.encode(new)
    found = _value(body, body.find(_KEY) + len(_KEY))
    if found is not None and body.count(_KEY) == 1 and b"\\u" not in body:  # so it is the one at the top
        return body[: found.start(1)] + value + body[found.end(1) :]
    try:
        member = next(member for member in members(body) if member.key == "model")
    except TooComplex:
        shown = "The request body has too many keys and brackets to find its model in."
        raise BadRequest(wire.bad_request("body_too_complex", shown)) from None
    return body[: member.start] + value + body[member.end :]


def _renamed_form(body: bytes, old: bytes, new: bytes) -> bytes:
    changed, count = re.subn(_form_model % re.escape(old), lambda found: found[1] + new, body, count=1)
    if not count:
        raise BadRequest(
            wire.bad_request("invalid_multipart", "The field 'model' of the form cannot be read.", "model")
        )
    return changed
