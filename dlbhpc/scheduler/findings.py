"""What `doctor` says: one finding for each thing it looked at."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
NOTE = "note"
PROBLEM = "problem"
"""A problem would lose work or keep a run from starting; a note is good to know."""


@dataclass(frozen=True)
class Finding:
    """What was found, what it means for a run, and what to change ("" for nothing)."""

    level: str
    found: str
    means: str
    change: str = ""
