"""Put each named fault of `tests/mutants/table.py` into the package and see that a test fails: `make mutants`.

    python scripts/mutants.py [WORD ...]      only mutants whose names hold all the words

The parent imports third parties once and forks for each mutant; the child imports the package with one module's text
changed, and runs only the tests that must notice, until one fails. Exit status 1 where a mutant survives.
"""

import importlib.abc
import importlib.util
import os
import signal
import sys
import tempfile
import time
import traceback
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import hypothesis
import msgspec
import numpy
import pytest
import xxhash

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.mutants.table import MUTANTS, Mutant  # noqa: E402  # after the path is set

IMPORTED = (hypothesis, msgspec, numpy, xxhash)
"""What a child would have to import otherwise: half a second each."""
PACKAGE = ROOT / "src" / "isochrone"
SECONDS_MAX = 60
"""Longest run of one mutant; one that hangs is noticed by its test's own limit before."""
FLAGS = (
    "-x", "-q", "-p", "no:cacheprovider", "--timeout=20",
    "-Wignore::pytest.PytestAssertRewriteWarning",  # hypothesis is imported before pytest begins, on purpose
)  # fmt: skip


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module before all others do, and gives it another text."""

    def __init__(self, mutant: Mutant) -> None:
        self._path = PACKAGE / mutant.file
        self._name = "isochrone." + mutant.file.removesuffix(".py").replace("/", ".")
        self._text = mutated(mutant)

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(self._path))

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)


def mutated(mutant: Mutant) -> str:
    """The file's text with the fault. ValueError where the table does not fit the file."""
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.name!r}: its text stands {found} times in {mutant.file}, not once")
    return text.replace(mutant.old, mutant.new)


def kills(mutant: Mutant, log: Path) -> int:
    """pytest's exit status with the fault in place; output goes to the log."""
    child = os.fork()
    if child == 0:
        _child(mutant, log)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _child(mutant: Mutant, log: Path) -> None:
    """Never returns."""
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        with log.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        signal.alarm(SECONDS_MAX)
        sys.meta_path.insert(0, Mutated(mutant))
        code = int(pytest.main([*FLAGS, *mutant.killers]))
    except BaseException:  # the parent's stack must not be run down a second time in here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(words: list[str]) -> int:
    assert all(module.__name__ for module in IMPORTED)
    assert not [name for name in sys.modules if name.startswith("isochrone")], "the package must not be imported yet"
    os.chdir(ROOT)
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HYPOTHESIS_STORAGE_DIRECTORY": folder, "HYPOTHESIS_PROFILE": "mutants"}
        log = Path(folder) / "log"
        for mutant in chosen:
            began = time.perf_counter()
            code = kills(mutant, log)
            killed = code == pytest.ExitCode.TESTS_FAILED
            took_s = time.perf_counter() - began
            print(f"{'killed' if killed else 'SURVIVED'}  {took_s:5.1f} s  {mutant.name}", flush=True)
            if not killed:
                survivors.append(mutant.name)
                print(f"pytest's exit status {code}:\n{log.read_text(encoding='utf-8', errors='replace')[-2000:]}")
    spent = os.times()
    cpu_s = spent.children_user + spent.children_system
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed, {cpu_s:.0f} s of CPU")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
