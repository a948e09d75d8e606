"""The table of named faults fits the code, and the tests notice each of them. `make mutants` tells more."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
NUMBER_MIN = 40


def test_there_are_as_many_as_there_were() -> None:
    assert len(MUTANTS) >= NUMBER_MIN
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_table_fits_the_code(mutant: Mutant) -> None:
    """Whoever rewrites a line that has a mutant rewrites the mutant."""
    text = (ROOT / "src" / "isochrone" / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1, f"{mutant.file} holds it {text.count(mutant.old)} times"
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    for killer in mutant.killers:
        file, _, name = killer.partition("::")
        assert name in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_killed() -> None:
    done = subprocess.run([sys.executable, "scripts/mutants.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
