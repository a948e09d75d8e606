"""Plain HTTP for tests against running servers: blocking, one connection a call, nothing between test and bytes."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def connect(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    assert address.hostname is not None
    return http.client.HTTPConnection(address.hostname, address.port, timeout=TIMEOUT_S)


def call(url: str, method: str, path: str, body: object = None) -> Answer:
    """Send a request, with `body` as JSON unless it is None, and read the whole answer."""
    connection = connect(url)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"} if text else {})
        response = connection.getresponse()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


def get(url: str, path: str) -> Answer:
    return call(url, "GET", path)


def post(url: str, path: str, body: object) -> Answer:
    return call(url, "POST", path, body)


class Stream:
    """A streamed answer, read event by event; leaving the `with` block closes it, read to its end or not."""

    def __init__(self, url: str, path: str, body: dict[str, object]) -> None:
        self._connection = connect(url)
        self._connection.request(
            "POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"}
        )
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._response.close()
        self._connection.close()

    def events(self) -> Iterator[str]:
        """The text of each event's `data:` line. Any other line than that and the blank one after it is a fault."""
        while line := self._response.readline():
            assert line.startswith(b"data: "), line
            assert line.endswith(b"\n"), line
            assert self._response.readline() == b"\n"
            yield line[len("data: ") :].decode().rstrip("\n")

    def chunks(self) -> list[Any]:
        """All events up to `[DONE]`, which must come last."""
        events = list(self.events())
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(event) for event in events[:-1]]


def eventually(is_so: Callable[[], bool], within_s: float, every_s: float = 0.02) -> float:
    """Look again and again; how long it took, in seconds. Fails the test after `within_s`."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < within_s, f"not so within {within_s} s"
        time.sleep(every_s)
    return time.monotonic() - began


def metric(url: str, name: str) -> float:
    """Sum of a metric's samples over all its labels; fails where there is none."""
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in get(url, "/metrics").body.decode().splitlines()
        if line.startswith((name + "{", name + " "))
    ]
    assert values, f"{url}/metrics has no {name}"
    return sum(values)
