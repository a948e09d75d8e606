"""A policy on a bench: a pool whose requests are placed by it, with every number set by hand."""

import random
from collections.abc import Sequence

from isochrone.instances.ledger import Flight
from isochrone.instances.table import Instance, InstanceTable
from isochrone.kv.hashing import block_end, chain, text_salt
from isochrone.kv.index import PrefixIndex
from isochrone.nouns.instance import InstanceSpec, Snapshot
from isochrone.nouns.instant import SECOND, Instant, nanoseconds
from isochrone.nouns.request import PromptSize, Request
from isochrone.nouns.settings import Settings
from isochrone.scheduling import policies
from isochrone.scheduling.lengths import OutputLengths
from isochrone.scheduling.placing import cheapest
from isochrone.scheduling.pool import Pool
from isochrone.scheduling.price import Ask, derive
from tests.support.rows import MODEL, make_ready

BYTES_PER_TOKEN = 4


def text(name: str, size: int) -> bytes:
    """So many bytes that share nothing with a text of another name."""
    return (name.encode() * (size // len(name) + 1))[:size]


class Bench:
    """`count` ready instances behind one policy. Tokens are four bytes."""

    def __init__(self, name: str, count: int, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        self.policy = policies.make(name, self.chance)
        self.now: Instant = SECOND
        self.table, self.pool = InstanceTable(), Pool(MODEL)
        self.index = PrefixIndex()
        """Ours, which fills `ask.hits`."""
        self.settings, self.lengths = Settings(), OutputLengths()
        self.flights: dict[str, tuple[Flight, Request, Instance]] = {}
        self.numbers = 0
        for number in range(count):
            self.join(f"i{number}")

    def join(self, name: str) -> Instance:
        instance = self.table.add(InstanceSpec(id=name, url=f"http://{name}"))
        instance.models = {MODEL: None}
        make_ready(instance, self.settings)
        self.pool.known.append(instance)
        self._derive()
        return instance

    def leave(self, position: int) -> None:
        """The instance is removed; its slot may be given out again."""
        instance = self.pool.members[position]
        self.pool.known.remove(instance)
        self.index.remove(instance.slot)
        self.table.remove(instance)
        self.policy.gone(instance)
        self._derive()

    def later(self, span_s: float) -> None:
        self.now += nanoseconds(span_s)

    def load(self, position: int, requests: int, tokens: int = 100, decoding: bool = True) -> None:
        """Requests in flight that the policy was not asked about."""
        for _ in range(requests):
            self.numbers += 1
            flight = self._flight(self.numbers, f"load{self.numbers}", position, tokens, tokens)
            self.pool.members[position].ledger.enter(flight, self.now)
            if decoding:
                self.pool.members[position].ledger.first_token(flight, self.now)
        self._derive()

    def scrape(self, position: int, **fields: float) -> None:
        """The engine's metrics are read."""
        instance = self.pool.members[position]
        instance.observe(Snapshot(engine="vllm", **fields), self.now)  # type: ignore[arg-type]
        self.policy.observed(instance, self.now)
        self._derive()

    def request(self, body: bytes = b"", **fields: object) -> Request:
        self.numbers += 1
        fields.setdefault("path", "/v1/completions")
        return Request(
            id=f"r{self.numbers}",
            model=MODEL,
            stream=True,
            size=PromptSize(text_bytes=len(body), messages=fields.pop("messages", 0)),  # type: ignore[arg-type]
            blocks=chain(text_salt(MODEL), body),
            hashed_bytes=len(body),
            **fields,  # type: ignore[arg-type]
        )

    def ask(self, request: Request, hits: Sequence[int] | None = None) -> Ask:
        tokens = max(1, request.hashed_bytes // BYTES_PER_TOKEN)
        if hits is None and request.blocks:
            depths = self.index.hits(request.blocks, self.pool.slots)
            hits = [min(tokens - 1, block_end(depth - 1) // BYTES_PER_TOKEN) if depth else 0 for depth in depths]
        return Ask(prompt_tokens=tokens, output_tokens=10.0, hits=hits)

    def prices(self, body: bytes = b"", hits: Sequence[int] | None = None, **fields: object) -> list[float]:
        request = self.request(body, **fields)
        return [float(price) for price in self.policy.prices(self.ask(request, hits), request, self.pool, self.now)]

    def pick(self, body: bytes = b"", **fields: object) -> int:
        """Where it would go; nothing is sent."""
        request = self.request(body, **fields)
        return self._pick(request)

    def send(self, body: bytes = b"", to: int | None = None, **fields: object) -> tuple[int, str]:
        """Place a request and send it. Returns the position and the request's id."""
        request = self.request(body, **fields)
        position = self._pick(request) if to is None else to
        ask, instance = self.ask(request), self.pool.members[position]
        hit = int(ask.hits[position]) if ask.hits is not None else 0
        self.numbers += 1
        flight = self._flight(self.numbers, request.id, position, ask.prompt_tokens, ask.prompt_tokens - hit)
        instance.ledger.enter(flight, self.now)
        self.policy.chosen(ask, request, self.pool, position, self.now)
        if request.blocks:
            self.index.insert(instance.slot, request.blocks)
        self.flights[request.id] = (flight, request, instance)
        self._derive()
        return position, request.id

    def first_token(self, request_id: str) -> None:
        flight, request, instance = self.flights[request_id]
        instance.ledger.first_token(flight, self.now)
        self.policy.first_token(request, instance, self.now)
        self._derive()

    def end(self, request_id: str, output_tokens: int = 10) -> None:
        flight, request, instance = self.flights.pop(request_id)
        instance.ledger.leave(flight, self.now)
        self.policy.ended(request, instance, output_tokens, self.now)
        self._derive()

    def _pick(self, request: Request) -> int:
        ask = self.ask(request)
        prices = self.policy.prices(ask, request, self.pool, self.now)
        position = cheapest(prices, ask.hits if self.policy.ties_by_hit else None, self.chance)
        assert position is not None
        return position

    def _flight(self, attempt: int, request: str, position: int, tokens: int, uncached: int) -> Flight:
        return Flight(
            attempt=attempt, request=request, slot=self.pool.members[position].slot, incarnation=0, ordinal=1,
            dispatched_at=self.now, prompt_tokens=tokens, uncached_tokens=uncached, work_ns=uncached * 100_000,
            expected_output=10,
        )  # fmt: skip

    def _derive(self) -> None:
        self.pool.regroup(0)
        self.pool.refresh(self.now, lambda instance, at: derive(instance, self.settings, self.lengths, at))
