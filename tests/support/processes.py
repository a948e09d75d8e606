"""Our own commands as processes of a test run, watched through what they print."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.calls import get

STOP_S_MAX = 90.0


class Up:
    """`isochrone up --json`, and what it has told so far."""

    def __init__(self, arguments: Sequence[str], logs: Path) -> None:
        command = [sys.executable, "-m", "isochrone.cli.main", "up", "--json", "--logs", str(logs)]
        self.logs = logs
        self.news: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._over = False
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--admin-port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, name: str, event: str, count: int = 1, within_s: float = 30.0) -> dict[str, Any]:
        """The `count`-th such news. Fails, with all that was told, when it does not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.found(name, event)) >= count or self._over, within_s)
            found = self.found(name, event)
            assert len(found) >= count, f"no {name} {event}; told: {self.news}; {self._ends_of_logs()}"
            return found[count - 1]

    def found(self, name: str, event: str) -> list[dict[str, Any]]:
        return [news for news in self.news if (news.get("name"), news.get("event")) == (name, event)]

    @property
    def gateway(self) -> str:
        return str(self.wait_for("up", "planned")["gateway"])

    @property
    def admin(self) -> str:
        return str(self.wait_for("up", "planned")["admin"])

    @property
    def engines(self) -> dict[str, str]:
        """Name -> URL."""
        return dict(self.wait_for("up", "planned")["engines"])

    def pid(self, name: str) -> int:
        """Of the newest process of that name."""
        return int(self.found(name, "started")[-1]["pid"])

    def stop(self) -> int:
        """Ctrl-C, as it were; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_S_MAX)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            news = json.loads(line) if line.startswith("{") else {"name": "up", "event": "said", "text": line}
            with self._changed:
                self.news.append(news)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _ends_of_logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.logs.glob("*.log")))


def ready_instances(up: Up) -> int:
    """How many instances the gateway would send a request to."""
    return sum(instance["state"] == "ready" for instance in get(up.admin, "/admin/instances").json()["instances"])
