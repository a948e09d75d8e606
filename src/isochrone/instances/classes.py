"""Mixed hardware without labels: an instance that differs from its class for ten minutes is another class, not slow.

A class is what its label says, or where there is none, model, engine and KV size. Two cards that share all of these
need not be alike. An instance whose level has counted for SETTLES_AFTER_NS without a break moves to the class of the
same kind that steps as fast as it does, and where there is none it founds one, with its former class's step model
scaled by its level. From then on it is measured against its like. Instances with a configured label stay where the
operator has put them.
"""

from collections.abc import Iterable
from math import exp, log

from isochrone.instances.steptime import Regressor, StepTimeModel
from isochrone.nouns.instant import SECOND, Instant

SETTLES_AFTER_NS = 600 * SECOND
ALIKE = log(1.1)
"""Classes whose usual step differs by less than this are one."""
USUAL_STEP: Regressor = (1.0, 32.0, 40_000.0, 0.0)
"""The step that classes are compared on: 32 decoding requests with 1,250 tokens of context each."""
MARK = "~"
"""`gpt/vllm/4000~2.5x`: of the kind `gpt/vllm/4000`, first seen at 2.5 times its step time."""


def kind_of(name: str) -> str:
    """The class that a name was split from."""
    return name.partition(MARK)[0]


def differing_since(since: Instant | None, counts: bool, now: Instant) -> Instant | None:
    """When an instance began to differ, None while it does not."""
    if not counts:
        return None
    return now if since is None else since


def is_due(since: Instant | None, now: Instant) -> bool:
    """It has differed for so long that it should be a class of its own."""
    return since is not None and now - since >= SETTLES_AFTER_NS


def nearest(
    model: StepTimeModel, level: float, others: Iterable[tuple[str, StepTimeModel]]
) -> tuple[str, float] | None:
    """The class that steps like an instance of this level in the class of `model`, and the level that is left there;
    None where none is alike."""
    own = log(model.predict(USUAL_STEP)) + level
    left = [(abs(rest := own - log(other.predict(USUAL_STEP))), name, rest) for name, other in others]
    if not left:
        return None
    size, name, rest = min(left)
    return (name, rest) if size < ALIKE else None


def split(model: StepTimeModel, factor: float) -> StepTimeModel:
    """A model of the same shape for instances that take `factor` times as long."""
    copy = StepTimeModel()
    copy.restore(model.learned())
    copy.scale_by(factor)
    return copy


def split_name(name: str, model: StepTimeModel, kind: StepTimeModel | None, level: float) -> str:
    """The name of a class split from another: its kind, and how it compares with the kind's first class."""
    reference = (kind or model).predict(USUAL_STEP)
    ratio = model.predict(USUAL_STEP) * exp(level) / reference
    return f"{kind_of(name)}{MARK}{ratio:.2g}x"
