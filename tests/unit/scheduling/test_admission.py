"""Whose objective a request has."""

from isochrone.nouns.request import Request, Slo
from isochrone.nouns.settings import Settings
from isochrone.scheduling.admission import slo_of

OWN, TENANT, MODEL, ROUTE, DEFAULT = (Slo(float(number)) for number in range(1, 6))


def test_own_then_tenant_then_model_then_route_then_default() -> None:
    request = Request(id="r", model="m", path="/v1/completions", tenant="t", route="chat", slo=OWN)
    settings = Settings(
        slo=DEFAULT, slo_by_tenant={"t": TENANT}, slo_by_model={"m": MODEL}, slo_by_route={"chat": ROUTE}
    )
    assert slo_of(request, settings) == OWN
    request.slo = None
    assert slo_of(request, settings) == TENANT
    request.tenant = "other"
    assert slo_of(request, settings) == MODEL
    request.model = "other"
    assert slo_of(request, settings) == ROUTE
    request.route = "other"
    assert slo_of(request, settings) == DEFAULT
    assert slo_of(request, Settings()) is None
