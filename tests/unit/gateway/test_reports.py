"""Metrics of several processes as one page: sums, largest values, and counters that never go back."""

from random import Random

from isochrone.cluster import Cluster
from isochrone.gateway.app import Gateway
from isochrone.gateway.workers import reports
from isochrone.gateway.workers.frames import Report
from isochrone.gateway.workers.reports import Reports, report_of
from isochrone.nouns.settings import Settings

TURNED = "isochrone_client_connections_refused_total"
OPEN = "isochrone_client_connections"


def made() -> Reports:
    return Reports(Gateway(Cluster(Settings(), Random(1))))


def report(refused: float, connections: float, **more: float) -> Report:
    rows = {TURNED: [((), refused)], OPEN: [((), connections)]}
    return Report({**rows, **{name: [((), value)] for name, value in more.items()}}, False, 0, 1.0, 10)


def value(made: Reports, name: str) -> float:
    (family,) = [family for family in made.families(None) if family.name == name]
    return sum(row for _, row in family.rows if isinstance(row, float | int))


def test_relays_are_summed_up_and_the_dead_keep_their_counters() -> None:
    all_of_them = made()
    all_of_them.take(0, report(3, 10))
    all_of_them.take(1, report(4, 20))
    assert (value(all_of_them, TURNED), value(all_of_them, OPEN)) == (7, 30)
    all_of_them.gone(0, 100)
    assert (value(all_of_them, TURNED), value(all_of_them, OPEN)) == (7, 20)
    all_of_them.take(0, report(1, 5))
    assert (value(all_of_them, TURNED), value(all_of_them, OPEN)) == (8, 25)
    all_of_them.back(100)  # the same process, which still has its counters
    all_of_them.take(0, report(5, 5))
    assert value(all_of_them, TURNED) == 9
    assert value(all_of_them, "isochrone_relays") == 2


def test_what_is_no_sum() -> None:
    all_of_them = made()
    all_of_them.take(0, report(0, 0, isochrone_draining=1, isochrone_open_requests=8))
    all_of_them.take(1, report(0, 0, isochrone_draining=1, isochrone_open_requests=9))
    assert value(all_of_them, "isochrone_draining") == 1
    assert value(all_of_them, "isochrone_open_requests") == 0  # the brain knows them all


def test_many_dead_relays_become_one_sum() -> None:
    all_of_them = made()
    deaths = 3 * reports.LAST_REPORTS_MAX
    for pid in range(1, deaths + 1):
        all_of_them.take(0, report(1, 1))
        all_of_them.gone(0, pid)
    assert value(all_of_them, TURNED) == deaths
    assert value(all_of_them, OPEN) == 0
    assert len(all_of_them._last) <= reports.LAST_REPORTS_MAX + 1


def test_a_report_holds_every_figure_and_what_is_added() -> None:
    gateway = Gateway(Cluster(Settings(), Random(1)))
    gateway.reception.refusals["bad"] = 2
    told = report_of(gateway, 7, {"isochrone_early_refusals_total": [(("brain_away",), 1.0), (("bad",), 1.0)]})
    assert dict(told.rows["isochrone_early_refusals_total"]) == {("bad",): 3.0, ("brain_away",): 1.0}
    assert told.open_requests == 7
    assert told.cpu_s > 0
    assert told.resident_bytes > 1_000_000
