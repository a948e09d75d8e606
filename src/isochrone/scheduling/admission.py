"""What is refused, and when: only what cannot be served at all, or carries an SLO that says it may be shed."""

from isochrone.nouns.instant import Instant, nanoseconds
from isochrone.nouns.request import PromptSize, Request, Slo
from isochrone.nouns.settings import Settings

ESTIMATE_DOUBT = 2.0
"""An estimated prompt is refused as too long only beyond this factor: nearer to the limit the engine, which can count,
decides."""


def slo_of(request: Request, settings: Settings) -> Slo | None:
    """The request's own objective, else its tenant's, its model's, its route's, the default."""
    if request.slo is not None:
        return request.slo
    if settings.slo_by_tenant and request.tenant in settings.slo_by_tenant:
        return settings.slo_by_tenant[request.tenant]
    by_model, by_route = settings.slo_by_model, settings.slo_by_route
    if by_model and request.model in by_model:
        return by_model[request.model]
    if by_route and request.route in by_route:
        return by_route[request.route]
    return settings.slo


def too_long(size: PromptSize, prompt_tokens: int, longest_context: int | None) -> bool:
    """Whether the prompt fits no instance of its model, beyond the doubt of an estimate."""
    if longest_context is None or prompt_tokens <= longest_context:
        return False
    exact = size.text_bytes == 0 and size.cjk_bytes == 0 and size.images == 0
    return exact or prompt_tokens > ESTIMATE_DOUBT * longest_context


def shed_at(slo: Slo | None, arrived_at: Instant, least_work_s: float) -> Instant | None:
    """When a sheddable request's TTFT target can no longer be met, even by an idle instance; None: never shed."""
    if slo is None or not slo.sheddable or slo.ttft_s is None:
        return None
    return arrived_at + nanoseconds(slo.ttft_s - least_work_s)


class RetryBudget:
    """Retries cost the pool the prompt again, so they are paid in prompt tokens: a share of what is dispatched, plus a
    trickle so that a quiet gateway can retry at all, saved up to a limit."""

    def __init__(self) -> None:
        self.dispatched_tokens = 0
        """Prompt tokens of first attempts since the last retry; whoever dispatches adds to it."""
        self._tokens: float | None = None
        self._at: Instant = 0

    def spend(self, settings: Settings, now: Instant, tokens: int) -> bool:
        """Pay for one retry; False where the budget does not reach."""
        saved = settings.retry_tokens_max if self._tokens is None else self._tokens
        saved += settings.retry_ratio * self.dispatched_tokens + settings.retry_tokens_per_s * (now - self._at) * 1e-9
        saved = min(saved, settings.retry_tokens_max)
        self.dispatched_tokens, self._at = 0, now
        paid = saved >= tokens
        self._tokens = saved - tokens if paid else saved
        return paid


RESERVE_TOKENS_DEFAULT = 200_000
"""Size of the reserve where the lost instance did not tell the size of its KV memory."""
RESERVE_REFILL_S = 15.0
"""An empty reserve is full again after this: so often an instance may be lost and all of its requests go on."""


class Reserve:
    """What a lost instance had in flight is computed again elsewhere on account of this: as much as one instance holds,
    counted as the KV tokens that are gone. It is beside the budget, so that a cluster that is busy with retries can
    still take over, and it is no more, so that a cluster that loses one instance after another does not drown."""

    def __init__(self) -> None:
        self._tokens: float | None = None
        self._at: Instant = 0

    def spend(self, now: Instant, tokens: int, capacity: int | None) -> bool:
        """Pay for one lost attempt; False where the reserve is used up. `capacity`: KV tokens of its instance."""
        size = float(capacity or RESERVE_TOKENS_DEFAULT)
        saved = size if self._tokens is None else self._tokens + size * (now - self._at) * 1e-9 / RESERVE_REFILL_S
        saved = min(saved, size)
        self._at = now
        paid = saved >= tokens
        self._tokens = saved - tokens if paid else saved
        return paid
