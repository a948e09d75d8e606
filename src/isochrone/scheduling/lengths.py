"""How long answers get, learnt from those that have ended.

Lengths are counted in logarithmic bins, apart for each (model, route), for each model, and over all. A node with few
answers leans on its parent: the parent's distribution counts as PRIOR_WEIGHT answers of its own, and as fewer the more
there are of its own (an extraction route of 8 tokens under chats of 300 would else look like 16 after a thousand
answers). At the root stands a chat-like prior.

An answer that was cut (max_tokens reached, client gone, instance lost) is *censored*: it says "at least this long". The
Kaplan-Meier estimate uses it for exactly that: it counts among those at risk up to the cut, never among those that
ended. For each bin, hazard = ended in it / at risk in it, and the share of answers longer than x is the product of
(1 - hazard) over the bins below x. Counting cut answers as ended ones would make a model with a small max_tokens look
terse for ever.

From the survival curve S follow the mean up to a bound (the area under S), what is left after g tokens (the area beyond
g, over S(g); with heavy tails it grows with g), and quantiles. Curves are kept and renewed every few observations, so
that a question costs about half a microsecond.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import erfc, inf, log, sqrt

import numpy as np

from isochrone.nouns.instant import SECOND, Instant

BINS = 40
EDGES = (0.0, *(4.0 * 1.25**k for k in range(BINS)))
"""Lower edges of the bins in tokens, and the end of the last: 0, 4, 5, 6.25, ... 24,074."""
LONGEST = EDGES[-1]
TAIL_TOKENS = LONGEST / 4
"""Mean of what is left beyond the last edge."""
TAIL_POINTS = np.arange(1, 129) * (TAIL_TOKENS / 16)
"""Where the exponential tail is drawn as straight lines, for questions about many answers at once; to a share of
1/3,000 of it."""
PRIOR_WEIGHT = 30.0
"""Answers that the parent counts for in an empty node; in one of n answers PRIOR_WEIGHT^2 / (PRIOR_WEIGHT + n)."""
PRIOR_MEDIAN_TOKENS, PRIOR_SIGMA = 130.0, 1.0
"""Log-normal prior with mean 214: the public Azure 2023 conversation trace has median 129 and mean 211."""
HALF_LIFE_NS = 3600 * SECOND
MEMORY_OBSERVATIONS = 2000
"""An observation's weight falls by a factor e over this many later ones in its node, and by half over an hour."""
RENEW_EVERY = 64
"""A curve is renewed after this many observations, sooner while its node has few."""
NODES_MAX = 256
"""Models and (model, route) pairs told apart; what comes later is answered by its model, or by all together."""


class Curve:
    """A survival function on the bins' edges, linear in between."""

    __slots__ = ("_areas", "_drawn", "_negated", "_slopes", "_survival", "mean")

    def __init__(self, survival: Sequence[float]) -> None:
        """`survival`: share of answers longer than each edge; 1 at 0, falling, above 0."""
        self._survival = survival
        self._negated = [-share for share in survival]
        self._slopes: list[float] = []
        self._areas = [0.0]
        for b in range(BINS):
            width = EDGES[b + 1] - EDGES[b]
            self._slopes.append((survival[b] - survival[b + 1]) / width)
            self._areas.append(self._areas[b] + 0.5 * width * (survival[b] + survival[b + 1]))
        self.mean = self._areas[BINS] + survival[BINS] * TAIL_TOKENS
        """Tokens, without any bound."""
        self._drawn: tuple[np.ndarray, np.ndarray] | None = None
        """Lengths and -S there, for `remaining_many`; made when first asked for."""

    def share_longer(self, tokens: float) -> float:
        """S(tokens)."""
        if tokens >= LONGEST:
            return self._survival[BINS]
        b = bisect_right(EDGES, tokens) - 1
        return self._survival[b] - self._slopes[b] * (tokens - EDGES[b])

    def mean_up_to(self, bound: float) -> float:
        """Mean of min(length, bound), in tokens."""
        if bound >= LONGEST:
            return self._areas[BINS] + self._survival[BINS] * min(TAIL_TOKENS, bound - LONGEST)
        b = bisect_right(EDGES, bound) - 1
        over = bound - EDGES[b]
        return self._areas[b] + over * (self._survival[b] - 0.5 * self._slopes[b] * over)

    def remaining(self, so_far: float, bound: float) -> float:
        """Mean tokens still to come after `so_far`, of an answer cut at `bound`."""
        if so_far >= bound:
            return 0.0
        if so_far >= LONGEST:
            return min(TAIL_TOKENS, bound - so_far)
        left = (self.mean_up_to(bound) - self.mean_up_to(so_far)) / self.share_longer(so_far)
        return min(left, bound - so_far)  # rounding, where hardly any answer is that long

    def remaining_quantile(self, q: float, so_far: float, bound: float) -> float:
        """Tokens still to come after `so_far` that a share q of answers does not exceed."""
        if so_far >= bound:
            return 0.0
        if so_far >= LONGEST:
            return min(-log(1.0 - q) * TAIL_TOKENS, bound - so_far)
        share = (1.0 - q) * self.share_longer(so_far)
        at = bisect_left(self._negated, -share)
        if at > BINS:
            length = LONGEST - log(share / self._survival[BINS]) * TAIL_TOKENS
        elif at == 0:
            length = 0.0
        else:
            slope = self._slopes[at - 1]
            length = EDGES[at - 1] + ((self._survival[at - 1] - share) / slope if slope > 0.0 else 0.0)
        return min(max(length - so_far, 0.0), bound - so_far)

    def remaining_many(self, so_far: np.ndarray, qs: np.ndarray) -> np.ndarray:
        """`remaining_quantile` for n answers and k shares at once, without bounds: tokens, k x n."""
        if self._drawn is None:
            tail = self._survival[BINS] * np.exp(TAIL_POINTS / -TAIL_TOKENS)
            self._drawn = np.concatenate([EDGES, LONGEST + TAIL_POINTS]), -np.concatenate([self._survival, tail])
        lengths, negated = self._drawn
        shares = np.interp(so_far, lengths, negated)
        found = np.interp((1.0 - qs)[:, None] * shares, negated, lengths)
        left: np.ndarray = np.maximum(found - so_far, 0.0)
        return left

    @property
    def survival(self) -> Sequence[float]:
        return self._survival


def _prior() -> Curve:
    """The chat-like prior."""
    shares = [1.0]
    shares += [0.5 * erfc(log(edge / PRIOR_MEDIAN_TOKENS) / (PRIOR_SIGMA * sqrt(2.0))) for edge in EDGES[1:]]
    return Curve(shares)


PRIOR = _prior()


class _Node:
    """Counts of one key. The weight of a new observation grows instead of all older ones decaying."""

    __slots__ = ("_at", "_curve", "_cut", "_cut_share", "_ended", "_news", "_parent", "_unit", "observations")

    def __init__(self, parent: "_Node | None") -> None:
        self._parent = parent
        self._ended = [0.0] * (BINS + 1)
        """Ended in the bin; the last place counts what is beyond all bins."""
        self._cut = [0.0] * (BINS + 1)
        """Censored in the bin."""
        self._cut_share = [0.0] * (BINS + 1)
        """Of those, the shares of the bin that they had passed."""
        self._unit = 1.0
        self._at: Instant | None = None
        self._news = 0
        self._curve: Curve | None = None
        self.observations = 0

    def observe(self, tokens: float, censored: bool, now: Instant) -> None:
        if self._at is not None and now > self._at:
            self._unit *= 2.0 ** min((now - self._at) / HALF_LIFE_NS, 64.0)
        self._at = now
        self._unit *= 1.0 + 1.0 / MEMORY_OBSERVATIONS
        if self._unit > 1e9:
            self._rescale()
        b = bisect_right(EDGES, tokens) - 1
        if censored:
            self._cut[b] += self._unit
            if b < BINS:
                self._cut_share[b] += self._unit * (tokens - EDGES[b]) / (EDGES[b + 1] - EDGES[b])
        else:
            self._ended[b] += self._unit
        self.observations += 1
        self._news += 1

    def curve(self) -> Curve:
        """The survival curve, at most some observations old."""
        curve = self._curve
        if curve is None or (self._news and self._news >= min(RENEW_EVERY, self.observations >> 3)):
            curve = self._curve = self._estimate()
            self._news = 0
        return curve

    def _estimate(self) -> Curve:
        """Kaplan-Meier over the node's own counts and some answers spread like the parent's."""
        parent = (self._parent.curve() if self._parent is not None else PRIOR).survival
        own = (sum(self._ended) + sum(self._cut)) / self._unit
        weight = self._unit * PRIOR_WEIGHT * PRIOR_WEIGHT / (PRIOR_WEIGHT + own)
        hazards = [0.0] * BINS
        longer = self._ended[BINS] + self._cut[BINS]
        for b in range(BINS - 1, -1, -1):
            ended = self._ended[b]
            at_risk = longer + ended + self._cut_share[b]
            longer += ended + self._cut[b]
            hazards[b] = (ended + weight * (parent[b] - parent[b + 1])) / (at_risk + weight * parent[b])
        survival = [1.0]
        for hazard in hazards:
            survival.append(survival[-1] * (1.0 - hazard))
        return Curve(survival)

    def _rescale(self) -> None:
        """Bring the unit back to 1, before numbers get too large."""
        by = 1.0 / self._unit
        for counts in (self._ended, self._cut, self._cut_share):
            counts[:] = [count * by for count in counts]
        self._unit = 1.0

    def learned(self) -> dict[str, object]:
        self._rescale()
        return {
            "observations": self.observations,
            "ended": [round(count, 4) for count in self._ended],
            "cut": [round(count, 4) for count in self._cut],
            "cut_share": [round(count, 4) for count in self._cut_share],
        }

    def restore(self, learned: Mapping[str, object]) -> bool:
        """False, with nothing changed, where the values make no sense."""
        counts = [_counts(learned.get(name)) for name in ("ended", "cut", "cut_share")]
        observations = learned.get("observations")
        ended, cut, cut_share = counts
        if ended is None or cut is None or cut_share is None or not isinstance(observations, int) or observations < 0:
            return False
        if any(share > whole + 1e-3 for share, whole in zip(cut_share, cut, strict=True)):
            return False
        self._ended, self._cut, self._cut_share, self.observations = ended, cut, cut_share, observations
        self._unit, self._at, self._curve, self._news = 1.0, None, None, 0
        return True


def _counts(values: object) -> list[float] | None:
    """One count a bin, none negative; or None."""
    if not (isinstance(values, Sequence) and len(values) == BINS + 1):
        return None
    if not all(isinstance(value, int | float) and 0.0 <= value < inf for value in values):
        return None
    return [float(value) for value in values]


class OutputLengths:
    """Output lengths in tokens by (model, route), each leaning on its model, each model on all."""

    def __init__(self, nodes_max: int = NODES_MAX) -> None:
        self._nodes_max = nodes_max
        self._all = _Node(None)
        self._models: dict[str, _Node] = {}
        self._routes: dict[tuple[str, str], _Node] = {}

    def observe(self, model: str, route: str, tokens: float, censored: bool, now: Instant) -> None:
        """An answer has ended. `censored`: it was cut (max_tokens, client gone, failure) and could have gone on."""
        if not 0.0 <= tokens < inf:
            return
        self._all.observe(tokens, censored, now)
        node = self._model_node(model)
        if node is None:
            return
        node.observe(tokens, censored, now)
        key = (model, route)
        leaf = self._routes.get(key)
        if leaf is None:
            if self._is_full():
                return
            leaf = self._routes[key] = _Node(node)
        leaf.observe(tokens, censored, now)

    def mean(self, model: str, route: str, max_tokens: int | None = None) -> float:
        """Expected output tokens of an answer that max_tokens cuts."""
        curve = self._curve(model, route)
        return curve.mean if max_tokens is None else curve.mean_up_to(max_tokens)

    def remaining(self, model: str, route: str, so_far: int, max_tokens: int | None = None) -> float:
        """Expected output tokens still to come of an answer that has `so_far`."""
        return self._curve(model, route).remaining(so_far, inf if max_tokens is None else max_tokens)

    def quantiles(
        self, model: str, route: str, qs: Sequence[float], so_far: int = 0, max_tokens: int | None = None
    ) -> list[float]:
        """Output tokens still to come that a share q of such answers does not exceed, for each q in 0..1 (not 1)."""
        curve = self._curve(model, route)
        bound = inf if max_tokens is None else max_tokens
        return [curve.remaining_quantile(q, so_far, bound) for q in qs]

    def remaining_many(self, so_far: np.ndarray, qs: np.ndarray) -> np.ndarray:
        """`quantiles` over all models and routes, for many answers at once: tokens, shares x answers."""
        return self._all.curve().remaining_many(so_far, qs)

    def observations(self, model: str, route: str) -> int:
        """Answers seen for the key."""
        node = self._routes.get((model, route))
        return node.observations if node is not None else 0

    def _curve(self, model: str, route: str) -> Curve:
        node = self._routes.get((model, route)) or self._models.get(model) or self._all
        return node.curve()

    def _model_node(self, model: str) -> _Node | None:
        node = self._models.get(model)
        if node is None and not self._is_full():
            node = self._models[model] = _Node(self._all)
        return node

    def _is_full(self) -> bool:
        return len(self._models) + len(self._routes) >= self._nodes_max

    def learned(self) -> dict[str, object]:
        """What a warm start needs, as plain JSON values."""
        return {
            "all": self._all.learned(),
            "models": [{"model": model, **node.learned()} for model, node in self._models.items()],
            "routes": [{"model": m, "route": r, **node.learned()} for (m, r), node in self._routes.items()],
        }

    def restore(self, learned: Mapping[str, object]) -> bool:
        """Take up what `learned` gave, entry by entry; False where some of it made no sense and was passed over."""
        whole = isinstance(root := learned.get("all"), Mapping) and self._all.restore(root)
        for entry in _entries(learned.get("models")):
            model = entry.get("model")
            node = self._model_node(model) if isinstance(model, str) else None
            whole = node is not None and node.restore(entry) and whole
        for entry in _entries(learned.get("routes")):
            model, route = entry.get("model"), entry.get("route")
            if not (isinstance(model, str) and isinstance(route, str)) or self._is_full() or model not in self._models:
                whole = False
                continue
            leaf = self._routes[model, route] = _Node(self._models[model])
            whole = leaf.restore(entry) and whole
        return whole


def _entries(values: object) -> list[Mapping[str, object]]:
    return [entry for entry in values if isinstance(entry, Mapping)] if isinstance(values, list) else []
