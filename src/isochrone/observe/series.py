"""Folds of what happened into counters and histograms, cheap enough for every request (all calls of one: about 2 us).

Label values are bounded, since outsiders choose model names and engines choose status codes: a model is a label only
when an instance serves it (`know_models`), a route or reason only while there are few, and all others share `other`.
What is counted per instance goes away with the instance. The rows are read out by `families()`, as plain data.
"""

from collections.abc import Iterable, Mapping

from isochrone.nouns.decision import Decision
from isochrone.observe.histogram import E2E_S, ERROR_S, TPOT_S, TTFT_S, WAIT_S, Histogram

OTHER = "other"
"""The label value that all unknown names share."""
MODELS_MAX = 256
"""Models that are ever labels."""
ROUTES_MAX = 32
"""Route classes that are ever labels."""
REASONS_MAX = 64
"""Reasons of refusals, outcomes and price terms that are ever labels."""


class Names:
    """A bounded set of label values: name -> itself, or `other` once the set is full or closed to newcomers."""

    __slots__ = ("known", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.known: dict[str, str] = {}

    def learn(self, name: str) -> str:
        """The label of a name, which becomes one while there is room."""
        label = self.known.get(name)
        if label is None:
            if len(self.known) >= self.limit:
                return OTHER
            label = self.known[name] = name
        return label

    def of(self, name: str) -> str:
        """The label of a name, without learning it."""
        return self.known.get(name, OTHER)


class ModelSeries:
    """What is kept per model."""

    __slots__ = ("depth", "fallbacks", "held", "over", "priced", "retries", "spread", "terms", "under", "wait")

    def __init__(self) -> None:
        self.depth = 0
        self.held = 0
        self.retries = 0
        self.fallbacks = 0
        self.priced = 0
        self.terms: dict[str, float] = {}
        self.wait = Histogram(WAIT_S)
        self.over = Histogram(ERROR_S)
        self.under = Histogram(ERROR_S)
        self.spread = Histogram(ERROR_S)


class RouteSeries:
    """What is kept per model and route class."""

    __slots__ = (
        "arrived",
        "cached_tokens",
        "e2e",
        "ended",
        "left",
        "output_tokens",
        "prompt_tokens",
        "refused",
        "tpot",
        "ttft",
    )

    def __init__(self) -> None:
        self.arrived = 0
        self.refused: dict[str, int] = {}
        self.left = 0
        self.ended: dict[tuple[str, int], int] = {}
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.ttft = Histogram(TTFT_S)
        self.tpot = Histogram(TPOT_S)
        self.e2e = Histogram(E2E_S)


class InstanceSeries:
    """What is kept per model and instance."""

    __slots__ = ("cached_tokens", "decode_tokens", "dispatched", "e2e", "outcomes", "prefill_tokens", "tpot", "ttft")

    def __init__(self) -> None:
        self.dispatched = 0
        self.outcomes: dict[str, int] = {}
        self.prefill_tokens = 0
        self.cached_tokens = 0
        self.decode_tokens = 0
        self.ttft = Histogram(TTFT_S)
        self.tpot = Histogram(TPOT_S)
        self.e2e = Histogram(E2E_S)


class Series:
    """All folds of one cluster. The cluster calls one method per event; nothing here reads a clock."""

    def __init__(self) -> None:
        self._models = Names(MODELS_MAX)
        self._routes = Names(ROUTES_MAX)
        self._reasons = Names(REASONS_MAX)
        self.by_model: dict[str, ModelSeries] = {}
        self.by_route: dict[tuple[str, str], RouteSeries] = {}
        self.by_instance: dict[tuple[str, str], InstanceSeries] = {}

    def know_models(self, models: Iterable[str]) -> None:
        """These models are served by some instance: they are labels from now on (at most MODELS_MAX)."""
        for model in models:
            self._models.learn(model)

    # Events, in the order of a request's life.

    def arrived(self, model: str, route: str) -> None:
        """A well-formed request came."""
        series = self.by_route.get((model, route)) or self._route(model, route)
        series.arrived += 1

    def refused(self, model: str, route: str, reason: str) -> None:
        """A request was answered with an error before any dispatch; `reason` is the error's code."""
        series = self.by_route.get((model, route)) or self._route(model, route)
        reason = self._reasons.learn(reason)
        series.refused[reason] = series.refused.get(reason, 0) + 1

    def fell_back(self, model: str) -> None:
        """A request for the model goes to a fallback model."""
        self._model(model).fallbacks += 1

    def left_queue(self, model: str, route: str) -> None:
        """The client of a held request has gone."""
        series = self.by_route.get((model, route)) or self._route(model, route)
        series.left += 1

    def queued(self, model: str, depth: int) -> None:
        """The model's queue has this many requests now."""
        series = self.by_model.get(model) or self._model(model)
        if depth > series.depth:
            series.held += depth - series.depth
        series.depth = depth

    def dispatched(self, model: str, instance: str, ordinal: int, queue_wait_s: float) -> None:
        """An attempt was sent out. `ordinal` 1 is the first of its request, whose wait counts."""
        series = self.by_model.get(model) or self._model(model)
        if ordinal == 1:
            series.wait.observe(queue_wait_s)
        else:
            series.retries += 1
        here = self.by_instance.get((model, instance)) or self._instance(model, instance)
        here.dispatched += 1

    def attempt_ended(self, model: str, instance: str, outcome: str) -> None:
        """An attempt is over. Of an instance that has left, nothing is counted any more."""
        here = self.by_instance.get((model, instance)) or self._known(model, instance)
        if here is not None:
            outcomes = here.outcomes
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def first_token(self, model: str, route: str, instance: str, ttft_s: float) -> None:
        """The first token of a stream came, `ttft_s` after the request's arrival at the gateway."""
        (self.by_route.get((model, route)) or self._route(model, route)).ttft.observe(ttft_s)
        here = self.by_instance.get((model, instance)) or self._known(model, instance)
        if here is not None:
            here.ttft.observe(ttft_s)

    def request_done(
        self,
        model: str,
        route: str,
        instance: str,
        decision: Decision,
        e2e_s: float,
        ttft_s: float | None,
        tpot_s: float | None,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int,
    ) -> None:
        """A request is over, however it ended. `ttft_s` is not counted again: `first_token` has it."""
        series = self.by_route.get((model, route)) or self._route(model, route)
        key = (decision.outcome, decision.status // 100)
        series.ended[key] = series.ended.get(key, 0) + 1
        series.prompt_tokens += prompt_tokens
        series.output_tokens += output_tokens
        series.cached_tokens += cached_tokens
        series.e2e.observe(e2e_s)
        if tpot_s is not None:
            series.tpot.observe(tpot_s)
        here = self.by_instance.get((model, instance)) or self._known(model, instance)
        if here is None:
            return
        if prompt_tokens > cached_tokens:
            here.prefill_tokens += prompt_tokens - cached_tokens
        here.cached_tokens += cached_tokens
        here.decode_tokens += output_tokens
        here.e2e.observe(e2e_s)
        if tpot_s is not None:
            here.tpot.observe(tpot_s)

    def priced(
        self, model: str, terms: Mapping[str, float], forecast_error_s: float | None, spread_s: float | None
    ) -> None:
        """One decision: the winner's price terms, forecast minus real, and slowest minus fastest forecast."""
        series = self.by_model.get(model) or self._model(model)
        if terms:
            series.priced += 1
            sums = series.terms
            for term, cost_s in terms.items():
                if term not in sums:
                    term = self._reasons.learn(term)
                sums[term] = sums.get(term, 0.0) + cost_s
        if forecast_error_s is not None:
            if forecast_error_s >= 0.0:
                series.over.observe(forecast_error_s)
            else:
                series.under.observe(-forecast_error_s)
        if spread_s is not None:
            series.spread.observe(spread_s)

    def instance_gone(self, instance: str) -> None:
        """An instance has left: its series go with it."""
        for key in [key for key in self.by_instance if key[1] == instance]:
            del self.by_instance[key]

    # Rows. Only label values are ever keys, so that a stranger's name costs a failed lookup and no memory.

    def _model(self, model: str) -> ModelSeries:
        label = self._models.of(model)
        series = self.by_model.get(label)
        if series is None:
            series = self.by_model[label] = ModelSeries()
        return series

    def _route(self, model: str, route: str) -> RouteSeries:
        key = (self._models.of(model), self._routes.learn(route))
        series = self.by_route.get(key)
        if series is None:
            series = self.by_route[key] = RouteSeries()
        return series

    def _instance(self, model: str, instance: str) -> InstanceSeries:
        key = (self._models.of(model), instance)
        series = self.by_instance.get(key)
        if series is None:
            series = self.by_instance[key] = InstanceSeries()
        return series

    def _known(self, model: str, instance: str) -> InstanceSeries | None:
        return self.by_instance.get((self._models.of(model), instance))
