"""Amounts of memory as Slurm takes them (``man sbatch``, --mem)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlbhpc.errors import DlbhpcError

_FORM = re.compile(r"([0-9]+)([KMGT]?)")
_KILOBYTES = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}


@dataclass(frozen=True)
class Memory:
    """A whole number of K, M, G or T (powers of 1024 bytes), as written."""

    amount: int
    unit: str = "M"

    def __str__(self) -> str:
        return f"{self.amount}{self.unit}" if self.amount else "0"

    @property
    def kilobytes(self) -> int:
        return self.amount * _KILOBYTES[self.unit]

    def share(self, parts: int) -> Memory:
        """What each of so many gets: rounded up, in the unit as written."""
        return Memory(-(-self.amount // parts), self.unit)


def parse_memory(text: str) -> Memory:
    """A number with K, M, G or T behind it; megabytes without. Raises DlbhpcError."""
    match = _FORM.fullmatch(text.upper())
    if match is None:
        raise DlbhpcError(f"{text!r} is no amount of memory: write a whole number and K, M, G or T")
    return Memory(int(match[1]), match[2] or "M")
