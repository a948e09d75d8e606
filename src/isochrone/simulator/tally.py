"""What became of each call: columns of plain numbers, so that a million of them fit."""

from array import array
from collections import Counter

from isochrone.nouns.decision import Decision
from isochrone.nouns.instant import Instant

UNSEEN = -1


class Tally:
    """Filled by the driver while it runs; read by `figures.py`."""

    def __init__(self, calls: int) -> None:
        self.due = array("q", [UNSEEN]) * calls
        """When the call was due, and sent: an open loop."""
        self.first = array("q", [UNSEEN]) * calls
        self.ended = array("q", [UNSEEN]) * calls
        self.served = bytearray(calls)
        """1: answered to the end."""
        self.cached = array("q", [0]) * calls
        """Prompt tokens found in the prefix cache."""
        self.placed = array("i", [UNSEEN]) * calls
        """Number of the instance that answered."""
        self.tries = bytearray(calls)
        self.outcomes: Counter[str] = Counter()
        self.forecast_s = 0.0
        self.real_s = 0.0
        """Sums over served calls, dispatch to end: their ratio is the forecast's bias."""
        self.ttft_errors_s = array("d")
        self.e2e_error_s = 0.0
        """Real time from dispatch less its forecast, regardless of sign: to the first token each, to the end summed."""
        self.spreads: list[float] = []
        """Slowest minus fastest forecast over the candidates, of one decision in some."""

    def first_token(self, call: int, now: Instant) -> None:
        if self.first[call] == UNSEEN:
            self.first[call] = now

    def over(self, call: int, decision: Decision, now: Instant, placed: int) -> None:
        """The cluster's record of it has come."""
        assert self.ended[call] == UNSEEN, f"call {call} ended twice"
        self.ended[call] = now
        self.placed[call] = placed
        self.tries[call] = min(255, len(decision.tries))
        done = decision.outcome == "done"
        self.served[call] = done
        self.outcomes[decision.outcome if done or not decision.reason else decision.reason] += 1
        if done and len(decision.tries) == 1 and decision.forecast_e2e_s is not None:
            dispatched_at = decision.tries[0].dispatched_at
            real_s = (now - dispatched_at) / 1e9
            self.forecast_s += decision.forecast_e2e_s
            self.real_s += real_s
            self.e2e_error_s += abs(real_s - decision.forecast_e2e_s)
            if decision.forecast_ttft_s is not None and decision.first_token_at is not None:
                self.ttft_errors_s.append(
                    abs((decision.first_token_at - dispatched_at) / 1e9 - decision.forecast_ttft_s)
                )
