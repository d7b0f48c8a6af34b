"""Time limits in the forms that Slurm takes (``man sbatch``, --time)."""

from __future__ import annotations

import re

from dlbhpc.errors import DlbhpcError

_DAYS = re.compile(r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?")
_HOURS = re.compile(r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)")
_MINUTES = re.compile(r"(?P<m>\d+)(:(?P<s>\d+))?")
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_LARGEST = 2**31 - 1
"""Slurm counts a limit in a signed 32-bit number of seconds."""


def parse_time(text: str) -> int | None:
    """The seconds of a time limit; None where there is none (UNLIMITED, INFINITE or 0).

    Takes minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS. As with Slurm, a part may be
    larger than its place (90:00 are 90 minutes). Raises DlbhpcError for anything else.
    """
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return None
    for form in (_DAYS, _HOURS, _MINUTES):
        match = form.fullmatch(text) if text.isascii() else None
        if match:
            parts = match.groupdict(default="0").items()
            seconds = sum(int(number) * _SECONDS[unit] for unit, number in parts)
            if seconds > _LARGEST:
                raise DlbhpcError(f"{text!r} is longer than Slurm can count: write UNLIMITED")
            return seconds or None
    raise DlbhpcError(
        f"{text!r} is no time: write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS "
        "or UNLIMITED"
    )


def format_time(seconds: int | None) -> str:
    """``HH:MM:SS``, from a day on ``D-HH:MM:SS``, without a limit ``UNLIMITED``."""
    if not seconds:
        return "UNLIMITED"
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def round_up_to_minutes(seconds: int) -> int:
    """The limit that Slurm enforces, in seconds: it counts in whole minutes."""
    return -(-seconds // 60) * 60
