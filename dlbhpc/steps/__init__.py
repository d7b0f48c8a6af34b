"""Crash-safe step directories: publish, recover, retain. Standard library only, Python 3.9.

A run's checkpoints are folders ``steps/step-00000042``. A step is either wholly there or not at
all, whatever is killed, full or lost: see :mod:`dlbhpc.steps.publish` for why, and
:mod:`dlbhpc.steps.names` for what lies where.
"""

from dlbhpc.steps.errors import Fenced, InvalidStep, OtherContract, StepError, StorageError
from dlbhpc.steps.fence import begin_attempt, newest_attempt
from dlbhpc.steps.names import COMPLETE, EXPORT, STATE, step_name
from dlbhpc.steps.pointer import Pointer, read_pointer
from dlbhpc.steps.publish import Publication, open_publication
from dlbhpc.steps.record import StepRecord, read_record, verify
from dlbhpc.steps.recover import Recovery, Skipped, find_newest, list_steps, recover
from dlbhpc.steps.retain import retain

__all__ = [
    "COMPLETE",
    "EXPORT",
    "STATE",
    "Fenced",
    "InvalidStep",
    "OtherContract",
    "Pointer",
    "Publication",
    "Recovery",
    "Skipped",
    "StepError",
    "StepRecord",
    "StorageError",
    "begin_attempt",
    "find_newest",
    "list_steps",
    "newest_attempt",
    "open_publication",
    "read_pointer",
    "read_record",
    "recover",
    "retain",
    "step_name",
    "verify",
]
