"""Two attempts of one request (hedging): each is an exchange of its own, until one of them has a byte for the client.

One of the two is known to the client's connection and to the brain; where it gives up or loses, the other takes its
place. `exchange.rival` is the other one.
"""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from isochrone.nouns.commands import Dispatch
from isochrone.nouns.events import Ended, Outcome

if TYPE_CHECKING:
    from isochrone.gateway.exchange import Exchange

BEATEN = "the other instance was first"


def ask_another(first: "Exchange", command: Dispatch) -> None:
    """Ask a second instance beside the first, unless that has given a byte since the brain decided so (the brain may be
    another process). The end of the second then tells how far the answer is: the brain may know of nothing else that
    runs."""
    brain = first.gateway.brain
    if first.delivered:
        told, more = first.said_tokens(), first.can_continue()
        brain.submit(Ended(command.attempt, Outcome.ABORTED, True, output_tokens=told, why=BEATEN, resumable=more))
        return
    second = first.twin()
    first.rival, second.rival = second, first
    brain.attempts[command.attempt] = second
    second.dispatch(replace(command, hedge=False))


def win(winner: "Exchange") -> None:
    """The first byte goes out: end the other attempt."""
    _take_over(winner)
    leave_behind(winner, Outcome.ABORTED, BEATEN)


def give_way(loser: "Exchange") -> None:
    """This attempt is over and gave nothing; the other one goes on alone."""
    rival = loser.rival
    assert rival is not None
    _take_over(rival)
    loser.rival = rival.rival = None
    if loser.resuming is not None:
        loser.resuming.release()


def leave_behind(exchange: "Exchange", outcome: Outcome, why: str) -> None:
    """End the other attempt; this one goes on alone."""
    rival = exchange.rival
    assert rival is not None
    exchange.rival = rival.rival = None
    rival.drop_upstream()
    rival.end(outcome, why)
    if rival.resuming is not None:
        rival.resuming.release()


def _take_over(exchange: "Exchange") -> None:
    exchange.client.exchange = exchange
    exchange.gateway.brain.requests[exchange.request.id] = exchange
