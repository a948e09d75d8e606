"""Files with lengths and no arrivals: input_tokens, output_tokens [, class] in JSON lines."""

from isochrone.simulator.formats import UNREADABLE, Line, json_lines, opened
from isochrone.simulator.workload import BadWorkload


def read_lengths(path: str) -> list[tuple[int, int, str]]:
    """(prompt tokens, output tokens, class) of each line."""
    rows: list[tuple[int, int, str]] = []
    try:
        with opened(path) as file:
            rows += [_row(line) for line in json_lines(path, file)]
    except UNREADABLE as error:
        raise BadWorkload(f"{path} cannot be read: {error}") from None
    if not rows:
        raise BadWorkload(f"{path} holds no lengths")
    return rows


def _row(line: Line) -> tuple[int, int, str]:
    return line.count("input_tokens"), line.count("output_tokens"), str(line.fields.get("class", "default"))
