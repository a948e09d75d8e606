"""Which instances differ from their class, told apart from noise.

Latency says little by itself: a loaded instance is slow too. What is left of a sample after the class's step model has
explained the load, its excess e = log(elapsed / forecast), says it. Three questions are asked before a level counts:

    lasting    a CUSUM over the excess: S = max(0, S + clip(e) - 0.1) beyond 2.0. With noise of .25, an instance 1.3
               times slower is found after some 11 samples, one of 1.5 after 6, one of 2 after 3; by itself it gives a
               false alarm in 3 to 5 % of 200 samples
    large      the level is more than 15 % from the class's median
    unusual    from four peers up, the level is more than three robust deviations (1.4826 * MAD, at least 5 %) from
               their median; or the class is so mixed that deviations say nothing

Then, or where a level is so large that it is plain at once, it multiplies the instance's price, and nothing more: an
instance is never put out for being slow. A false positive costs little and a late one costs much. Both sides are asked
alike, since in a class of two the quicker one differs as much as the slower one.

When a whole class slows down (a hotter room, a new driver, longer contexts than the model fits) nobody is to blame:
medians are taken off before anyone is judged, and `ClassWatch` says that the class has moved.

An instance that counts as slow may get no traffic, and then cannot show that it has recovered: `wants_probe` asks for
one small request now and then, and each probe that looks like the class halves the level for every minute since.
"""

from collections.abc import Sequence
from math import exp, log
from statistics import median

from isochrone.instances.steptime import Coefficients, Level, Regressor, StepTimeModel
from isochrone.nouns.instant import SECOND, Instant, seconds

ALLOWANCE = 0.1
"""Taken off the excess of every sample: what a CUSUM forgives."""
ALARM = 2.0
SUM_MAX = 2.0 * ALARM
"""A sum does not grow beyond, so that it comes back."""
CLIP = 1.0
"""One sample counts for a factor of e at most."""
DIFFERS = log(1.15)
"""Levels nearer to the median than this are alike."""
CLEARED = log(1.07)
"""A level that counted does so no more once it is this near."""
DEVIATIONS_MIN = 3.0
DEVIATION_FLOOR = 0.05
MAD_TO_SIGMA = 1.4826
PEERS_MIN = 4
"""Fewer peers have no median worth the name: lasting and large must do."""
SETTLED_SAMPLES = 24
"""While a class is new its levels swing between equals; an instance is judged once it has been seen this often."""

PLAIN = 0.3
"""A level this large (35 %) needs no verdict: it is believed as it stands. A throttled card that is found some seconds
late has been sent its full share until then, and those requests are the tail; an equal that is taken for slow for some
seconds costs next to nothing."""

PROBE_AFTER_NS = 5 * SECOND
PROBE_LATE_NS = 10 * SECOND
PROBE_TOKENS = 512
"""A probe's uncached prompt, in tokens; once a probe is late, PROBE_LATE_TOKENS will do too."""
PROBE_LATE_TOKENS = 4096
FORGET_HALF_LIFE_S = 60.0

FOLLOW_S = 600.0
"""Time constant with which a class's baseline follows it."""
MOVED = log(1.15)
"""A class whose steps take so much longer than its baseline has moved."""


class Slowness:
    """The judgement on one instance. `counts`: its level is to be believed. About 0.3 us a sample."""

    __slots__ = ("above", "below", "counts", "lasting")

    def __init__(self) -> None:
        self.above = self.below = 0.0
        self.lasting = False
        """Lasting and large; not yet compared with its peers."""
        self.counts = False

    def believed(self, level: Level) -> bool:
        """Whether the level multiplies the price: it counts, or is so large that it is plain."""
        return self.counts or not -PLAIN <= level.value <= PLAIN

    def slow(self, level: Level) -> bool:
        """Believed, and on the slow side."""
        return level.value > 0.0 and self.believed(level)

    def observe(self, excess: float, level: Level) -> bool:
        """Take one sample in. Returns whether `lasting` has changed, so that the class should be judged anew."""
        clipped = min(max(excess, -CLIP), CLIP)
        self.above = min(max(0.0, self.above + clipped - ALLOWANCE), SUM_MAX)
        self.below = min(max(0.0, self.below - clipped - ALLOWANCE), SUM_MAX)
        value = level.value
        if level.samples < SETTLED_SAMPLES:
            return False
        if self.lasting:
            if abs(value) >= CLEARED:
                return False
            self.clear()
            return True
        self.lasting = (self.above > ALARM and value > DIFFERS) or (self.below > ALARM and value < -DIFFERS)
        return self.lasting

    def clear(self) -> None:
        """Begin again: it is like its class, or in another one."""
        self.above = self.below = 0.0
        self.lasting = self.counts = False

    def believe(self, level: Level) -> None:
        """A level from a warm start was judged before: it counts where it is large."""
        self.lasting = self.counts = level.samples >= SETTLED_SAMPLES and abs(level.value) > DIFFERS


def judge(members: Sequence[tuple[Slowness, Level]]) -> bool:
    """Compare the instances of one class with each other. Returns whether any verdict has changed."""
    if not any(slowness.lasting or slowness.counts for slowness, _ in members):
        return False
    values = [level.value for _, level in members if level.samples >= SETTLED_SAMPLES]
    middle, sigma = _middle(values)
    trust_all = len(values) < PEERS_MIN or sigma > DIFFERS
    changed = False
    for slowness, level in members:
        unusual = trust_all or abs(level.value - middle) > DEVIATIONS_MIN * sigma
        counts = slowness.lasting and (unusual or slowness.counts)
        changed |= counts != slowness.counts
        slowness.counts = counts
    return changed


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Median and robust deviation."""
    if not values:
        return 0.0, DEVIATION_FLOOR
    middle = median(values)
    return middle, max(DEVIATION_FLOOR, MAD_TO_SIGMA * median(abs(value - middle) for value in values))


def wants_probe(last_dispatch: Instant, uncached_tokens: int, now: Instant) -> bool:
    """Whether a request of so many uncached tokens should go to a slow idle instance just to hear from it."""
    quiet = now - last_dispatch
    if quiet < PROBE_AFTER_NS:
        return False
    return uncached_tokens <= (PROBE_TOKENS if quiet < PROBE_LATE_NS else PROBE_LATE_TOKENS)


def forgive(excess: float, level: Level, quiet_ns: int) -> None:
    """A slow instance was heard after a pause: what looks like its class lets the level decay for the pause (at most
    one half-life for one sample)."""
    if excess < DIFFERS:
        level.decay(min(seconds(quiet_ns), FORGET_HALF_LIFE_S), FORGET_HALF_LIFE_S)


class ClassWatch:
    """How a class's steps of today compare with its own of some minutes ago."""

    __slots__ = ("_base", "_looked_at", "shift")

    def __init__(self) -> None:
        self._base: Coefficients | None = None
        self._looked_at: Instant = 0
        self.shift = 0.0
        """Log of a step's time over the baseline's, for the load of now."""

    @property
    def moved(self) -> bool:
        """The class as a whole has become slower."""
        return self.shift > MOVED

    @property
    def ratio(self) -> float:
        """Step time over the baseline's: 1 as ever."""
        return exp(self.shift)

    def look(self, model: StepTimeModel, step: Regressor, now: Instant) -> None:
        """Compare on a usual step, then let the baseline follow. For warm models: a cold one moves by itself."""
        today = model.coefficients
        base = self._base
        if base is None:
            self._base, self._looked_at = today, now
            return
        before_s = sum(amount * cost for amount, cost in zip(step, base, strict=True))
        self.shift = log(model.predict(step) / before_s) if before_s > 0.0 else 0.0
        gain = 1.0 - exp(-seconds(now - self._looked_at) / FOLLOW_S)
        self._base = Coefficients(*(b + gain * (t - b) for b, t in zip(base, today, strict=True)))
        self._looked_at = now
