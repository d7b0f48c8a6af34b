"""The submission ledger: how many jobs a submission was to make, and which it knows to have made.

It is written before the first job is made and after each, so that a submission that dies in between
can be told from one that is whole. The jobs themselves carry the lease's token as their tag.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from dlbhpc.files import read_json, write_json
from dlbhpc.layout import OutputLayout
from dlbhpc.records import from_plain, to_plain
from dlbhpc.scheduler.processes import ProcessId

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Ledger:
    """One submission: ``wanted`` jobs under one ``token``, a run's job and the links behind it.

    ``jobs`` are those whose id is known, in the order in which they run. The process that submits
    is named, since only its end makes an unfinished submission another one's business.
    """

    token: str
    wanted: int
    jobs: tuple[str, ...]
    host: str
    submitter: ProcessId

    @classmethod
    def new(cls, token: str, wanted: int) -> Ledger:
        submitter = ProcessId.of(os.getpid())
        assert submitter is not None, "a running process has an entry in /proc"
        return cls(token, wanted, (), socket.gethostname(), submitter)

    @property
    def missing(self) -> int:
        return max(0, self.wanted - len(self.jobs))

    def abandoned(self) -> bool:
        """Whether the submission died before it was whole; another host's cannot be seen."""
        here = self.host == socket.gethostname()
        return self.missing > 0 and here and not self.submitter.alive()

    def with_jobs(self, *job_ids: str) -> Ledger:
        return replace(self, jobs=tuple(dict.fromkeys((*self.jobs, *job_ids))))


def ledger_path(output: OutputLayout) -> Path:
    return output.job / "submission.json"


def write_ledger(output: OutputLayout, ledger: Ledger) -> None:
    """Write it, durably, before what it tells of is done."""
    plain = {"schema_version": SCHEMA_VERSION, **to_plain(ledger)}
    write_json(ledger_path(output), plain)


def read_ledger(output: OutputLayout, token: str) -> Ledger | None:
    """The ledger of the submission that the token names; None when there is none."""
    path = ledger_path(output)
    if not path.exists():
        return None
    values = read_json(path)
    values.pop("schema_version", None)
    ledger = from_plain(Ledger, values, str(path))
    return ledger if ledger.token == token else None
