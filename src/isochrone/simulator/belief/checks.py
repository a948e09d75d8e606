"""All checks that need nothing but data and the simulator, in the order in which they run."""

import time

from isochrone.simulator.belief import distserve, llmd, mooncake, step_times, vllm_requests
from isochrone.simulator.belief.finding import Check, Data, Finding, NoData, Verdict

CHECKS: tuple[Check, ...] = (step_times.CHECK, mooncake.CHECK, vllm_requests.CHECK, llmd.CHECK, distserve.CHECK)


def run(check: Check, data: Data) -> Finding:
    """One check, timed. Absent data are a finding too, with the file's name."""
    began = time.perf_counter()
    try:
        finding = check.run(data)
    except NoData as missing:
        finding = Finding(check.name, check.about, source=str(missing), bar="", fitted="", verdict=Verdict.NO_DATA)
        finding.headline = f"{missing} is not there"
    finding.wall_s = time.perf_counter() - began
    return finding
