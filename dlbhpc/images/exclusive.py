"""One process at a time, by a file lock, which ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP))
"""How a file system says that it has no locks, as some of clusters do."""


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file ``path``, which stays; waits until nobody else does.

    Gives whether it is held: it is not where the file system has no locks, or, without ``wait``,
    where somebody else holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield _lock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, operation: int) -> bool:
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True
