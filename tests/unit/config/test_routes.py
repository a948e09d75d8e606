"""Route classes by rule and by header."""

from isochrone.config.driver import Routes, Rule

ROUTES = Routes(
    ("chat",),
    (
        Rule("embed", path="/v1/embeddings"),
        Rule("long", model="*-128k", header="X-Kind: doc*"),
        Rule("batch", header="x-batch"),
    ),
)


def route(path: str = "/v1/chat/completions", model: str = "m", **headers: str) -> str:
    lower = {name.replace("_", "-"): value for name, value in headers.items()}
    return ROUTES.of(path, model, lower.get)


def test_rules_come_first() -> None:
    assert route("/v1/embeddings", x_isochrone_route="chat") == "embed"
    assert route(model="m-128k", x_kind="docs") == "long"
    assert route(x_batch="") == "batch"


def test_all_conditions_of_a_rule_must_hold() -> None:
    assert route(model="m-128k") == "default"
    assert route(model="m-128k", x_kind="a doc") == "default"


def test_header_names_configured_classes_only() -> None:
    assert route(x_isochrone_route="chat") == "chat"
    assert route(x_isochrone_route="batch") == "batch"
    assert route(x_isochrone_route="strange-1234") == "other"
    assert route() == "default"


def test_patterns_are_not_regular_expressions() -> None:
    dotted = Routes((), (Rule("a", path="/v1.x"),))
    assert dotted.of("/v1.x", "m", lambda name: None) == "a"
    assert dotted.of("/v1-x", "m", lambda name: None) == "default"
