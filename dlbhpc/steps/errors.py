"""What can go wrong with step directories, by what the caller has to do about it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dlbhpc.errors import DlbhpcError


class StepError(DlbhpcError):
    """A step directory is not as it has to be, or was asked for something it cannot be."""


class InvalidStep(StepError):
    """A folder under a step's name is torn or foreign: it is moved aside, never resumed from."""


class OtherContract(StepError):
    """A step directory is sound but belongs to another run or another world size."""


class StorageError(StepError):
    """The file system failed; the ``OSError`` is the cause. What was published before is untouched.

    Raised for reads too: what cannot be read now is not thereby known to be torn.
    """


class Fenced(StepError):
    """A newer attempt owns the run: this one must not write any more."""


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Raise the block's ``OSError`` as a :class:`StorageError` that says what was being done."""
    try:
        yield
    except OSError as error:
        raise storage_error(doing, error) from error


def storage_error(doing: str, error: OSError) -> StorageError:
    """The sentence for one failed system call."""
    name = errno.errorcode.get(error.errno or 0, "no error number")
    # By number rather than error.strerror, which may be missing or hold another's wording.
    text = os.strerror(error.errno) if error.errno else str(error)
    where = f" at {error.filename}" if error.filename is not None else ""
    return StorageError(f"{doing} failed: {text} ({name}){where}. {_ADVICE.get(name, _ELSE)}")


_ELSE = "Look at the state of this file system, then run again."
_ADVICE = {
    "ENOSPC": "Free space on this file system, then run again.",
    "EDQUOT": "The quota is used up, whatever df says: free space or raise it, then run again.",
    "EROFS": "The file system is mounted read-only here: use another output.",
    "EACCES": "Give this user the right to write there, then run again.",
    "EXDEV": "Step directories are never copied: keep all of the steps folder on one file system.",
}
