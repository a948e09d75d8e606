"""How long an engine's steps take: a shape for each class of devices, a level for each instance.

An engine works in steps. One step with B decoding requests, n prompt tokens, K tokens of KV cache read and A attention
pairs takes about

    t = a + b*(B + n) + k*K + q*A                                                     (seconds)

`a` is what every step pays (reading the weights, launches, sampling), `b` the arithmetic of one token, `k` reading one
token of KV, `q` one pair of attention in a prefill. Published kernel measurements of dense models follow this line
within 3 to 5 %. A sample sums some steps, so its regressor is x = (steps, tokens, KV tokens read, attention pairs):

    window of a stream    elapsed over W tokens: (W, W*B + prefill tokens in the same steps, W*K, A)
    first token           dispatch to first token: (steps, prefill tokens ahead + own + B*steps, K*steps, A)

The four coefficients are learnt by recursive least squares over all instances of a class (same device, model and
degree of parallelism). What one instance takes longer or shorter than its class is its level m, learnt apart and much
faster: elapsed = exp(m) * (coefficients . x). A throttled card then moves its own level and leaves the class alone.

The error is relative, as log(elapsed / forecast): least squares on x/elapsed against 1 would sit 1.5 sigma^2 too low
(9 % for noise of sigma .25), and on seconds it would see only the longest samples. The recursion and its guards stand
in `leastsquares.py`.
"""

from collections.abc import Mapping, Sequence
from math import exp, inf, isfinite, log
from typing import NamedTuple, TypeAlias

from isochrone.instances import leastsquares
from isochrone.instances.leastsquares import Vector

Regressor: TypeAlias = Vector
"""(steps, tokens, KV tokens read, attention pairs)"""


class Coefficients(NamedTuple):
    """Seconds for one unit of each part of a regressor."""

    step_s: float
    token_s: float
    kv_s: float
    pair_s: float


PRIOR = Coefficients(step_s=0.015, token_s=66e-6, kv_s=8e-8, pair_s=2.8e-9)
"""Where learning starts: an 8B model in bf16 on an A100.

step: 10 ms of weights (16 GB at 1.6 TB/s of 2.0) and 5 ms of launches and sampling; token: 66 us, fitted on published
profiles; KV: 128 KiB a token (8 heads of 128, 32 layers, two bytes, K and V) at 1.6 TB/s; pair: 4 * 4096 * 32 floating
point operations at 190 of 312 TFLOPS.
"""

SAMPLES_COLD = 20
"""Samples that move the prior freely: without clipping, and linearly where the forecast is far off."""
FAR = 0.5
"""A log error beyond which a cold model takes the linear step, which lands at once however far off the prior is."""
BEGIN_AGAIN = log(8.0)
"""Log error of a cold model that, twice in a row to one side, makes it begin again."""
CLIP_SIGMAS = 2.5
"""Huber: an error beyond this many sigmas counts with weight limit/error."""
SIGMA_START, SIGMA_MIN, SIGMA_RATE = 0.5, 0.03, 1 / 16
"""Relative noise of samples: at the start, at least, and the rate at which its estimate moves."""
ELAPSED_S_MIN, ELAPSED_S_MAX = 1e-6, 3600.0
STEPS_MIN = 0.5
AMOUNT_MAX = 1e15
"""Tokens or pairs of a sample; one outside of these bounds is refused."""
ABSURD = log(1e4)
"""Log error beyond which a sample of a warm model is refused: a stopped process, not a slow step."""
DEVIATION_TO_SIGMA = 1.2533
"""sqrt(pi/2): sigma of a normal distribution over its mean absolute deviation."""


class StepTimeModel:
    """Step time of one class of instances, learnt online. About 2 us a sample, 0.2 us a forecast."""

    __slots__ = ("_covariance", "_far", "_ratio", "_scale", "coefficients", "samples", "sigma")

    def __init__(self, prior: Coefficients = PRIOR) -> None:
        self._scale = prior
        self._ratio: Vector = (1.0, 1.0, 1.0, 1.0)
        """Coefficients over `_scale`: near 1, whatever their units."""
        self._covariance = leastsquares.start()
        self.coefficients = prior
        self.samples = 0
        """Samples taken or found to carry no news; refused ones do not count."""
        self._far = 0
        self.sigma = SIGMA_START
        """Typical relative error of a forecast, robust."""

    def predict(self, x: Regressor) -> float:
        """Seconds for the regressor on an instance of level 0."""
        step_s, token_s, kv_s, pair_s = self.coefficients
        return x[0] * step_s + x[1] * token_s + x[2] * kv_s + x[3] * pair_s

    def warm(self, samples_min: int) -> bool:
        """Whether enough samples have been seen to price, hold and shed by this model."""
        return self.samples >= samples_min

    def observe(self, x: Regressor, elapsed_s: float, level: float = 0.0, weight: float = 1.0) -> float | None:
        """Learn from one sample of an instance whose log level is `level`.

        Returns what is left for the instance's level to explain, log(elapsed) - log(forecast) - level after this
        update, or None where the sample was refused: not finite, not positive, or absurd.
        """
        s0, s1, s2, s3 = self._scale
        r0, r1, r2, r3 = self._ratio
        u0, u1, u2, u3 = x[0] * s0, x[1] * s1, x[2] * s2, x[3] * s3
        forecast_s = u0 * r0 + u1 * r1 + u2 * r2 + u3 * r3
        if not (ELAPSED_S_MIN <= elapsed_s <= ELAPSED_S_MAX and x[0] >= STEPS_MIN and weight > 0.0):
            return None
        if not (min(x) >= 0.0 and max(x) <= AMOUNT_MAX and forecast_s < inf):  # false for NaN too: forecast_s has all
            return None
        peer_s = elapsed_s * exp(-level)
        log_error = log(peer_s / forecast_s)
        if self.samples == 0:
            self._begin(peer_s / forecast_s)
            return 0.0
        cold = self.samples < SAMPLES_COLD
        if not cold and not -ABSURD < log_error < ABSURD:
            return None
        self.samples += 1
        if cold and self._far_off(log_error):
            return log_error
        size = abs(log_error)
        scale_s, error = forecast_s, log_error
        if cold:
            if size > FAR:
                scale_s, error = peer_s, 1.0 - forecast_s / peer_s
        elif size > CLIP_SIGMAS * self.sigma:
            weight *= CLIP_SIGMAS * self.sigma / size
        self.sigma += SIGMA_RATE * (DEVIATION_TO_SIGMA * min(size, 4.0 * self.sigma) - self.sigma)
        if self.sigma < SIGMA_MIN:
            self.sigma = SIGMA_MIN
        z = (u0 / scale_s, u1 / scale_s, u2 / scale_s, u3 / scale_s)
        learnt = leastsquares.learn(self._covariance, self._ratio, z, error, weight)
        if learnt is None:
            return log_error
        self._covariance, ratio = learnt
        self._set(ratio)
        r0, r1, r2, r3 = ratio
        return log(peer_s / (u0 * r0 + u1 * r1 + u2 * r2 + u3 * r3))

    def _far_off(self, log_error: float) -> bool:
        """Whether a sample is too far off to learn from. Two in a row to one side: what began was the odd one."""
        far = (log_error > BEGIN_AGAIN) - (log_error < -BEGIN_AGAIN)
        if far != 0 and far == self._far:
            self._begin(exp(log_error))
            return True
        self._far = far
        return far != 0

    def _begin(self, factor: float) -> None:
        """Move the prior as a whole: engines differ more in speed (a CPU by 100) than in shape."""
        s0, s1, s2, s3 = self.coefficients
        self._scale = Coefficients(s0 * factor, s1 * factor, s2 * factor, s3 * factor)
        self._set((1.0, 1.0, 1.0, 1.0))
        self._covariance = leastsquares.start()
        self.samples, self._far = 1, 0

    def scale_by(self, factor: float) -> None:
        """Multiply all coefficients: what the median level of the class has become moves into the class."""
        r0, r1, r2, r3 = self._ratio
        self._set((r0 * factor, r1 * factor, r2 * factor, r3 * factor))

    def _set(self, ratio: Vector) -> None:
        s0, s1, s2, s3 = self._scale
        self._ratio = ratio
        r0, r1, r2, r3 = ratio
        self.coefficients = Coefficients(r0 * s0, r1 * s1, r2 * s2, r3 * s3)

    def learned(self) -> dict[str, object]:
        """What a warm start needs, as plain JSON values."""
        return {"scale": list(self._scale), "ratio": list(self._ratio), "samples": self.samples, "sigma": self.sigma}

    def restore(self, learned: Mapping[str, object]) -> bool:
        """Take up what `learned` gave. The covariance starts anew, at a tenth: the values are good but not final.

        False, with nothing changed, where the values make no sense.
        """
        scale, ratio = _four(learned.get("scale")), _four(learned.get("ratio"))
        samples, sigma = learned.get("samples"), learned.get("sigma")
        if scale is None or ratio is None or not (isinstance(samples, int) and samples >= 0):
            return False
        if not (isinstance(sigma, int | float) and isfinite(sigma) and sigma > 0.0):
            return False
        self._scale = Coefficients(*scale)
        self._set(ratio)
        self._covariance = leastsquares.start(0.1 * leastsquares.VARIANCE_START)
        self.samples, self.sigma = samples, min(max(sigma, SIGMA_MIN), 1.0)
        return True


def _four(values: object) -> Vector | None:
    """Four positive numbers, or None."""
    if not (isinstance(values, Sequence) and len(values) == 4):
        return None
    if not all(isinstance(value, int | float) and 0.0 < value < inf for value in values):
        return None
    a, b, c, d = values
    return (a, b, c, d)


LEVEL_MAX = log(100.0)
LEVEL_CLIP_SIGMAS = 3.0
LEVEL_SIGMA_START, LEVEL_SIGMA_MIN = 0.3, 0.05

RUN_MOVED = 4
"""So many residuals in a row beyond a sigma to one side: 1 in 800 by chance, within 5 to 10 samples of a real move."""
AVERAGED_AFTER_MOVE = 3


class Level:
    """How much longer than its class one instance takes, as a logarithm: 0 alike, .47 a factor of 1.6."""

    __slots__ = ("_averaged", "_run", "factor", "samples", "sigma", "value")

    def __init__(self, value: float = 0.0) -> None:
        self.value = value
        self.factor = exp(value)
        """exp(value), kept: every price multiplies by it."""
        self.samples = 0
        self.sigma = LEVEL_SIGMA_START
        """Typical size of this instance's residuals, robust."""
        self._averaged = 0
        """Samples that a plain average would be over: none for a newcomer, few after a move."""
        self._run = 0
        """Residuals in a row beyond a sigma to one side; its sign is theirs."""

    def observe(self, residual: float, gain: float) -> None:
        """Follow the residual that `StepTimeModel.observe` returned (this level already taken off).

        `gain`: 1/8 for a first token, 1/32 for a window of a stream. Samples count at least as a plain average would
        make them: from the first one on, so that a slow newcomer is known after a few, and again after a run of
        residuals to one side, which says that the level has moved.
        """
        self.samples += 1
        side = (residual > self.sigma) - (residual < -self.sigma)
        self._run = self._run + side if side and side * self._run >= 0 else side
        if side * self._run >= RUN_MOVED:
            self._averaged, self._run = min(self._averaged, AVERAGED_AFTER_MOVE), 0
        self._averaged += 1
        limit = LEVEL_CLIP_SIGMAS * self.sigma
        size = abs(residual)
        self.sigma += SIGMA_RATE * (DEVIATION_TO_SIGMA * min(size, 2.0 * limit) - self.sigma)
        if self.sigma < LEVEL_SIGMA_MIN:
            self.sigma = LEVEL_SIGMA_MIN
        clipped = residual if size <= limit else limit if residual > 0.0 else -limit
        self._set(self.value + max(gain, 1.0 / (self._averaged + 1)) * clipped)

    def decay(self, span_s: float, half_life_s: float = 60.0) -> None:
        """Forget: an instance that gets no work cannot show that it has recovered."""
        self._set(self.value * 0.5 ** (span_s / half_life_s))

    def shift(self, by: float) -> None:
        """Add to the level; for `recentre`."""
        self._set(self.value + by)

    def _set(self, value: float) -> None:
        self.value = min(max(value, -LEVEL_MAX), LEVEL_MAX)
        self.factor = exp(self.value)

    def learned(self) -> dict[str, object]:
        return {"value": self.value, "samples": self.samples, "sigma": self.sigma}

    def restore(self, learned: Mapping[str, object]) -> bool:
        """Take up what `learned` gave; False, with nothing changed, where the values make no sense."""
        value, samples, sigma = learned.get("value"), learned.get("samples"), learned.get("sigma")
        if not (isinstance(value, int | float) and isfinite(value) and isinstance(samples, int) and samples >= 0):
            return False
        if not (isinstance(sigma, int | float) and isfinite(sigma) and sigma > 0.0):
            return False
        self._set(value)
        self._averaged = self.samples = samples
        self.sigma = min(max(sigma, LEVEL_SIGMA_MIN), 1.0)
        return True


def recentre(levels: Sequence[Level], model: StepTimeModel) -> float:
    """Move the median level of a class into its model, so that a factor of 1 means "like its peers".

    Levels without samples neither count nor move. O(n log n) in the number of instances: call it once every so many
    samples, not for each. Returns the median that was moved.
    """
    heard = [level for level in levels if level.samples]
    if not heard:
        return 0.0
    values = sorted(level.value for level in heard)
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else 0.5 * (values[middle - 1] + values[middle])
    for level in heard:
        level.shift(-median)
    model.scale_by(exp(median))
    return median
