"""Open files: each connection is one, and the process has only so many.

What the limit allows is shared out beforehand, so that it is never met: a client beyond its share is told so at once,
and what the gateway itself needs (heartbeats, scrapes, the admin port, logs) is set aside.
"""

import errno
import resource

OPEN_FILES = 65_536
"""Open files asked for at the start, as far as the hard limit allows."""
BACKLOG_CONNECTIONS_MAX = 2048
"""Connections that the kernel keeps for us while the loop is busy; they are all taken in at once."""
BACKLOG_SHARE = 8
"""The backlog is at most this part of the open files: what is taken in at once must fit."""
RESERVED = 128
"""Open files set aside for listeners, logs, stores, the admin port, and clients that are taken in and turned away."""
RESERVED_PER_INSTANCE = 2
"""Open files set aside for heartbeats and scrapes of each instance."""
PER_CLIENT = 2
"""Open files of a client: its connection and the one to an instance."""
_OURS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))


def raise_limit() -> int:
    """Raise the soft limit as far as it goes, up to `OPEN_FILES`; the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # some systems have a lower limit that they do not tell
            return soft
    return max(soft, wanted)


def backlog() -> int:
    """Connections to let the kernel keep."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return BACKLOG_CONNECTIONS_MAX
    return min(BACKLOG_CONNECTIONS_MAX, max(1, soft // BACKLOG_SHARE))


def clients_max(open_files: int, instances: int) -> int:
    """How many clients can be connected at once, each with an attempt of its own."""
    return max(1, (open_files - RESERVED - RESERVED_PER_INSTANCE * instances) // PER_CLIENT)


def is_ours(error: BaseException) -> bool:
    """A connection failed for want of something on this machine: that says nothing about the instance."""
    return isinstance(error, OSError) and error.errno in _OURS
