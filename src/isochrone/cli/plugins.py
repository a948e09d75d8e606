"""Policies of third parties: classes registered in the entry-point group `isochrone.policies`."""

import logging
import sys
from importlib.metadata import entry_points
from pathlib import Path

from isochrone.scheduling import policies

GROUP = "isochrone.policies"

log = logging.getLogger("isochrone.plugins")


def load_policies() -> None:
    """Make them available by their entry point's name. One that cannot be loaded is reported and left out."""
    for entry in entry_points(group=GROUP):
        if entry.name in policies.names():
            log.warning("policy %r of %s is left out: the name is taken", entry.name, entry.value)
            continue
        try:
            policies.register(entry.name, entry.load())
        except Exception as error:  # whatever a third party's module does when it is imported
            log.warning("policy %r of %s is left out: %s", entry.name, entry.value, error)


def sources() -> list[bytes]:
    """The text of the modules that they are in, as far as there is one: results of theirs follow from it."""
    modules = [sys.modules.get(entry.module) for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name)]
    paths = [Path(module.__file__) for module in modules if module is not None and module.__file__]
    return [path.read_bytes() for path in paths if path.exists()]
