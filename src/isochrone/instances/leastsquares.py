"""Recursive least squares for four non-negative values, in plain arithmetic.

Each sample says z . values = target, known up to noise; `learn` moves the values by what their covariance allows and
makes it smaller along z. Older samples are forgotten, which makes it larger everywhere. Three guards keep that sane: a
sample that carries no news is not taken (else forgetting inflates the covariance along directions that nothing
measures, and the next odd sample throws the values anywhere), no value becomes less certain than it was at the start,
and none falls below a floor.

The ten numbers of a symmetric 4x4 matrix are written out: numpy costs ten times more at this size.
"""

from math import inf
from typing import TypeAlias

Vector: TypeAlias = tuple[float, float, float, float]
Covariance: TypeAlias = tuple[float, float, float, float, float, float, float, float, float, float]
"""Upper triangle of the symmetric 4x4 matrix, by rows."""
_PLACES = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))
"""Where row and column of the full matrix lie in the triangle."""

FORGETTING = 0.998
"""Weight of each older sample against the next: a memory of about 500 samples."""
NEWS_MIN = 0.004
"""Least z'Pz of a sample that is taken. A constant z settles at 1 - FORGETTING = .002, so this stops it after some 250
samples, before the other directions have inflated by more than 1.7."""
VARIANCE_START = 100.0
"""Variance of each value at the start, and the most that it can come back to: a standard deviation of 1, which a value
itself should be near, over the noise of a usual sample (.1), squared."""
FLOOR = 1e-3
"""No value falls below, so that a forecast is always above zero."""


def start(variance: float = VARIANCE_START) -> Covariance:
    """Four values of the same variance that have nothing to do with each other."""
    return (variance, 0.0, 0.0, 0.0, variance, 0.0, 0.0, variance, 0.0, variance)


def learn(p: Covariance, values: Vector, z: Vector, error: float, weight: float) -> tuple[Covariance, Vector] | None:
    """The covariance and values after one sample whose target lies `error` above z . values.

    `weight`: 1 for a usual sample, less for one that is trusted less. None: the sample carries no news.
    """
    z0, z1, z2, z3 = z
    p00, p01, p02, p03, p11, p12, p13, p22, p23, p33 = p
    g0 = p00 * z0 + p01 * z1 + p02 * z2 + p03 * z3
    g1 = p01 * z0 + p11 * z1 + p12 * z2 + p13 * z3
    g2 = p02 * z0 + p12 * z1 + p22 * z2 + p23 * z3
    g3 = p03 * z0 + p13 * z1 + p23 * z2 + p33 * z3
    news = z0 * g0 + z1 * g1 + z2 * g2 + z3 * g3
    if not NEWS_MIN < news < inf:
        return None
    gain = 1.0 / (FORGETTING / weight + news)
    step = gain * error
    v0, v1, v2, v3 = values
    values = (v0 + g0 * step, v1 + g1 * step, v2 + g2 * step, v3 + g3 * step)
    h0, h1, h2 = gain * g0, gain * g1, gain * g2
    f = 1.0 / FORGETTING
    p00, p01, p02, p03 = (p00 - h0 * g0) * f, (p01 - h0 * g1) * f, (p02 - h0 * g2) * f, (p03 - h0 * g3) * f
    p11, p12, p13 = (p11 - h1 * g1) * f, (p12 - h1 * g2) * f, (p13 - h1 * g3) * f
    p22, p23, p33 = (p22 - h2 * g2) * f, (p23 - h2 * g3) * f, (p33 - gain * g3 * g3) * f
    p = (p00, p01, p02, p03, p11, p12, p13, p22, p23, p33)
    if max(p00, p11, p22, p33) > VARIANCE_START or min(p00, p11, p22, p33) <= 0.0:
        p = _bounded(p)
    if min(values) < FLOOR:
        values = _projected(values, p)
    return p, values


def _bounded(p: Covariance) -> Covariance:
    """Scale rows and columns whose variance exceeds the start: correlations stay, so the matrix stays positive."""
    diagonal = (p[0], p[4], p[7], p[9])
    if not all(0.0 < variance < inf for variance in diagonal):
        return start()  # rounding has eaten it: start over from the values that we have
    shrink = [min(1.0, (VARIANCE_START / variance) ** 0.5) for variance in diagonal]
    bounded = [p[_PLACES[i][j]] * shrink[i] * shrink[j] for i in range(4) for j in range(i, 4)]
    a, b, c, d, e, f, g, h, i, j = bounded
    return (a, b, c, d, e, f, g, h, i, j)


def _projected(values: Vector, p: Covariance) -> Vector:
    """The likeliest values above the floor: moving one back to it drags those along that it is correlated with."""
    moved = list(values)
    for j in range(4):
        short = FLOOR - moved[j]
        if short > 0.0:
            places = _PLACES[j]
            pull = short / p[places[j]]
            for i in range(4):
                moved[i] += p[places[i]] * pull
    a, b, c, d = (value if value > FLOOR else FLOOR for value in moved)
    return (a, b, c, d)
