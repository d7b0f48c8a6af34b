"""Every name inside a steps folder, and nothing else.

::

    steps/step-00000042/{training_state.pt, model_bf16.pt, COMPLETE.json}
    steps/latest.json           the pointer: a hint, never an authority
    steps/fence/00002.json      the attempts that began
    steps/holds/NAME.json       steps that retention must keep
    steps/quarantine/           what was moved aside, each with a reason
    steps/.work-00002-…         work in progress of attempt 2
"""

from __future__ import annotations

import os
import re
import secrets
import socket

STATE = "training_state.pt"
EXPORT = "model_bf16.pt"
COMPLETE = "COMPLETE.json"

POINTER = "latest.json"
FENCE = "fence"
HOLDS = "holds"
QUARANTINE = "quarantine"

LAST_STEP = 99_999_999
"""The largest step that eight digits can name."""

NOBODY = 0
"""The attempt that owns what is only waiting to be deleted: older than every real one."""

_STEP = re.compile(r"step-([0-9]{8})")
_FENCE = re.compile(r"([0-9]{5,9})\.json")
_WORK = re.compile(r"\.work-([0-9]{5,9})-.+")


def step_name(step: int) -> str:
    """The folder of ``step``."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder's name stands for, or None when it is not such a name."""
    return _number(_STEP, name)


def fence_name(attempt: int) -> str:
    """The file by which ``attempt`` shuts older ones out."""
    return f"{attempt:05d}.json"


def attempt_of_fence(name: str) -> int | None:
    """The attempt that a fence file's name stands for, or None."""
    return _number(_FENCE, name)


def work_name(attempt: int, subject: str) -> str:
    """A fresh temporary name that says who owns it: attempt, host, process."""
    return f".work-{attempt:05d}-{subject}-{owner()}"


def owner() -> str:
    """This process among all others, and this call among all of its own."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def aside_name(name: str) -> str:
    """A fresh name in quarantine for what was called ``name``."""
    return f"{name}.{secrets.token_hex(4)}"


def attempt_of_work(name: str) -> int | None:
    """The attempt that owns a temporary name, or None when the name is not one of ours."""
    return _number(_WORK, name)


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return int(match[1]) if match else None
