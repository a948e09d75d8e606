"""How much longer a token takes than its decode step: prompts of others are computed in between.

The step model says how long a step with so many decoding requests takes. An engine that also prefills gives no token
while it works on chunks, so that over a second fewer steps go by than that. Each window of a stream tells what was done
meanwhile; the factor is the time that all of it takes over the time that the decode steps take, summed over the last
seconds.

With half its time in prefill an engine has a factor of 2. Without it the forecast of the last token was low by a
factor of 1.4 to 2 under load, and the price sent long prompts and long answers to the same instance.
"""

from math import exp

MEMORY_S = 10.0
"""Windows this old count a third."""
FACTOR_MAX = 20.0
"""A longer stretch than this is not believed."""
PLAIN_S = 2.0
"""Begins as if so much had been decoded without any prefill: the first windows alone say little."""


class Stretch:
    """The factor of one instance; 1: nothing but decoding."""

    __slots__ = ("_decode_s", "_whole_s", "factor")

    def __init__(self) -> None:
        self._whole_s = self._decode_s = PLAIN_S
        self.factor = 1.0

    def observe(self, whole_s: float, decode_s: float, quiet_s: float) -> None:
        """A window: its work takes `whole_s`, its decode steps alone `decode_s`; `quiet_s` since the one before."""
        keep = exp(-quiet_s / MEMORY_S) if quiet_s > 0.0 else 1.0
        self._whole_s = self._whole_s * keep + whole_s
        self._decode_s = self._decode_s * keep + decode_s
        self.factor = min(max(self._whole_s / self._decode_s, 1.0), FACTOR_MAX)
