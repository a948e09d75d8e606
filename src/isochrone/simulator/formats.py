"""Workload files as they are published.

    *.jsonl[.gz]  t_ms, input_tokens, output_tokens [, class, hash_ids, hash_block_tokens, session_id, gap_ms]
    *.jsonl[.gz]  timestamp, input_length, output_length [, hash_ids]                     Mooncake: blocks of 512 tokens
    *.csv[.gz]    TIMESTAMP, ContextTokens, GeneratedTokens                               Azure 2023 and 2024
    *.csv[.gz]    Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type           BurstGPT

A wrong line is refused with its number, the field and what was expected.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TextIO

import msgspec

from isochrone.simulator.workload import CALLS_MAX, TOKENS_MAX, BadWorkload, Call, Workload

MOONCAKE_BLOCK_TOKENS = 512
BLOCK_TOKENS = 16
"""Of the engines' KV memory, where the workload says nothing of blocks."""
TIME_MS_MAX = 366 * 86_400_000.0
"""A year: later arrivals are a mistake of unit."""

UNREADABLE = (OSError, EOFError, UnicodeDecodeError, zlib.error)
"""What reading a file that is not there, not whole or not text ends in."""

Fields = Mapping[str, object]


class Line:
    """One line of a file, with checks that say what is wrong where."""

    def __init__(self, path: str, number: int, fields: Fields) -> None:
        self.path, self.number, self.fields = path, number, fields

    def wrong(self, field: str, expected: str) -> BadWorkload:
        return BadWorkload.at_line(self.path, self.number, field, expected, self.fields.get(field))

    def count(self, field: str, least: int = 1) -> int:
        """A whole number of tokens."""
        value = self._number(field)
        if value is None or not least <= value <= TOKENS_MAX or value != int(value):
            raise self.wrong(field, f"a whole number from {least} to {TOKENS_MAX:,}")
        return int(value)

    def milliseconds(self, field: str, unit_ms: float = 1.0) -> float:
        value = self._number(field)
        if value is None or not 0.0 <= value * unit_ms <= TIME_MS_MAX:
            raise self.wrong(field, "a time of 0 or more, at most a year")
        return value * unit_ms

    def ids(self, field: str) -> tuple[int, ...]:
        value = self.fields.get(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 1 << 40 for one in value):
            raise self.wrong(field, "a list of whole numbers from 0 to 2^40 - 1")
        return tuple(value)

    def _number(self, field: str) -> float | None:
        value = self.fields.get(field)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read(path: str) -> Workload:
    """The workload in the file, in order of time."""
    try:
        with opened(path) as file:
            lines = _csv_lines(path, file) if ".csv" in Path(path).suffixes else json_lines(path, file)
            return _calls(path, lines)
    except UNREADABLE as error:
        raise BadWorkload(f"{path} cannot be read: {error}") from None


LENT: dict[str, bytes] = {}
"""Path -> content, of files that lie on another machine: what a worker far away was sent along with its runs."""


def opened(path: str) -> TextIO:
    """As text, unpacked."""
    if path in LENT:
        content = io.BytesIO(LENT[path])
        return io.TextIOWrapper(gzip.GzipFile(fileobj=content) if path.endswith(".gz") else content, encoding="utf-8")
    return gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")


def json_lines(path: str, file: TextIO) -> Iterator[Line]:
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            fields = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise BadWorkload(f"{path}, line {number}: expected a JSON object, but {error}") from None
        if not isinstance(fields, dict):
            raise BadWorkload(f"{path}, line {number}: expected a JSON object, found {text.strip()[:80]}")
        yield Line(path, number, fields)


def _csv_lines(path: str, file: TextIO) -> Iterator[Line]:
    rows = csv.DictReader(file)
    try:
        for fields in rows:
            yield Line(path, rows.line_num, fields)
    except csv.Error as error:
        raise BadWorkload(f"{path}, line {rows.line_num + 1}: expected comma-separated values, but {error}") from None


def _calls(path: str, lines: Iterator[Line]) -> Workload:
    first = next(lines, None)
    if first is None:
        raise BadWorkload(f"{path} holds no request")
    reader = _reader(first)
    workload = Workload(Path(path).name, [])
    left_out = 0
    for line in chain((first,), lines):
        call = reader(line, workload)
        if call is None:
            left_out += 1
        else:
            workload.calls.append(call)
            if len(workload.calls) > CALLS_MAX:
                raise BadWorkload(f"{path}, line {line.number}: a workload has at most {CALLS_MAX:,} requests")
    if left_out:
        workload.notes.append(f"{left_out} lines without an answer left out")
    if not workload.calls:
        raise BadWorkload(f"{path} holds no request with an answer")
    workload.calls.sort(key=_by_time)
    start = workload.calls[0].at
    for call in workload.calls:
        call.at -= start
    return workload


def _by_time(call: Call) -> int:
    return call.at


Reader = Callable[[Line, Workload], Call | None]


def _reader(line: Line) -> Reader:
    """Which format a file has, by its first line."""
    fields = line.fields.keys()
    for needed, reader in _FORMATS:
        if needed <= fields:
            return reader
    if "windows_600s" in fields:
        raise BadWorkload(f"{line.path} holds clients, not requests: use --workload generate:servegen,file={line.path}")
    if {"input_tokens", "output_tokens"} <= fields:
        raise BadWorkload(f"{line.path} holds no arrivals: use --workload generate:lengths,file={line.path}")
    known = "; ".join(", ".join(sorted(needed)) for needed, _ in _FORMATS)
    raise BadWorkload(f"{line.path}, line {line.number}: expected the fields of a known format ({known})")


def _schema(line: Line, workload: Workload) -> Call:
    block_tokens, ids = BLOCK_TOKENS, line.ids("hash_ids")
    prompt = line.count("input_tokens")
    if ids:
        block_tokens = line.count("hash_block_tokens")
    if workload.calls and block_tokens != workload.block_tokens and ids:
        raise line.wrong("hash_block_tokens", f"{workload.block_tokens}, as before")
    workload.block_tokens = block_tokens if ids or not workload.calls else workload.block_tokens
    session = line.fields.get("session_id", -1)
    if type(session) is not int or not -1 <= session < 1 << 40:
        raise line.wrong("session_id", "a whole number from 0 to 2^40 - 1")
    route = line.fields.get("class", "default")
    if not isinstance(route, str):
        raise line.wrong("class", "a text")
    gap = round(line.milliseconds("gap_ms") * 1e6) if "gap_ms" in line.fields else None
    return Call(
        at=round(line.milliseconds("t_ms") * 1e6),
        prompt_tokens=prompt,
        output_tokens=line.count("output_tokens"),
        route=route,
        ids=ids[: prompt // block_tokens],
        session=session,
        gap=gap,
    )


def _mooncake(line: Line, workload: Workload) -> Call:
    workload.block_tokens = MOONCAKE_BLOCK_TOKENS
    prompt = line.count("input_length")
    return Call(
        at=round(line.milliseconds("timestamp") * 1e6),
        prompt_tokens=prompt,
        output_tokens=line.count("output_length"),
        ids=line.ids("hash_ids")[: prompt // MOONCAKE_BLOCK_TOKENS],
    )


def _azure(line: Line, workload: Workload) -> Call:
    text = line.fields["TIMESTAMP"]
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        raise line.wrong("TIMESTAMP", "a date and time, as in 2023-11-16 18:15:46.6805900") from None
    days, rest_s = at.toordinal(), (at.hour * 60 + at.minute) * 60 + at.second
    nanoseconds = (days * 86_400 + rest_s) * 1_000_000_000 + at.microsecond * 1000
    return Call(nanoseconds, line.count("ContextTokens"), line.count("GeneratedTokens"))


def _burstgpt(line: Line, workload: Workload) -> Call | None:
    output = line.count("Response tokens", least=0)
    prompt = line.count("Request tokens", least=0)
    if output == 0 or prompt == 0:  # the service failed
        return None
    at = round(line.milliseconds("Timestamp", 1000.0) * 1e6)
    return Call(at, prompt, output, route=str(line.fields.get("Log Type") or "default"))


_FORMATS: tuple[tuple[frozenset[str], Reader], ...] = (
    (frozenset({"t_ms", "input_tokens", "output_tokens"}), _schema),
    (frozenset({"timestamp", "input_length", "output_length"}), _mooncake),
    (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}), _azure),
    (frozenset({"Timestamp", "Request tokens", "Response tokens"}), _burstgpt),
)
