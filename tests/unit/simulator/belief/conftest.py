"""Where the public data are, for tests that need them."""

import os
from pathlib import Path

import pytest

from isochrone.simulator.belief.finding import Data

FOLDER = Path(os.environ.get("ISOCHRONE_TRACES", Path(__file__).parents[5] / "shared" / "traces"))


@pytest.fixture
def data() -> Data:
    if not FOLDER.is_dir():
        pytest.skip(f"the public data are not at {FOLDER}; ISOCHRONE_TRACES says where they are")
    return Data(FOLDER)
