"""The lease: one output folder has one live job.

It is a file made by exclusive creation, since file locks do nothing on some shared file systems,
and so is the right to take over a dead one. What it cannot exclude, a job that lives on where
nobody can see it, the fences of the step directories do.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import canonical, read_json, write_json
from dlbhpc.records import from_plain

_TRIES = 5


class LeaseHeld(DlbhpcError):
    """Another job owns the run."""


@dataclass(frozen=True)
class Lease:
    """Who owns a run. ``token`` stays the same from the submission to the job it made."""

    token: str
    scheduler: str
    host: str
    job_id: str
    pid: int
    pid_started: str
    time: float

    @classmethod
    def new(cls, scheduler: str, job_id: str, pid: int, pid_started: str, token: str = "") -> Lease:
        return cls(
            token=token or uuid.uuid4().hex,
            scheduler=scheduler,
            host=socket.gethostname(),
            job_id=job_id,
            pid=pid,
            pid_started=pid_started,
            time=time.time(),
        )

    @property
    def owner(self) -> str:
        job = f"job {self.job_id}" if self.job_id else "submission in progress"
        return f"{self.scheduler} {job} on {self.host}"


def read_lease(path: Path) -> Lease | None:
    """The lease as it stands; None when there is none. A damaged one is an error that names it."""
    try:
        return from_plain(Lease, read_json(path), str(path))
    except DlbhpcError as error:
        if not path.exists():
            return None
        raise DlbhpcError(f"{error}: if no job of this run is alive, remove it") from error


def acquire(path: Path, lease: Lease, is_alive: Callable[[Lease], bool]) -> Lease | None:
    """Take the run for ``lease``; returns the dead lease that was taken over, if any.

    Raises LeaseHeld, naming job and host, when a live job holds it.
    """
    temporary = path.with_name(f".{path.name}.{lease.token}")
    try:
        temporary.write_bytes(canonical(asdict(lease)))
        for _ in range(_TRIES):
            try:
                # A link appears with its content, or not at all.
                os.link(temporary, path)
            except FileExistsError:
                dead = _take_over(path, temporary, lease, is_alive)
                if dead is not None:
                    return dead
            # A file system may make a link and still say that it could not.
            held = read_lease(path)
            if held is not None and held.token == lease.token:
                return None
        raise LeaseHeld(f"{path} changes hands all the time: wait a moment and try again")
    finally:
        temporary.unlink(missing_ok=True)


def _take_over(
    path: Path, temporary: Path, lease: Lease, is_alive: Callable[[Lease], bool]
) -> Lease | None:
    """Put ``temporary`` in the place of a dead lease; None where another was faster.

    Each dead lease has one successor: who makes the link that is named after it. One that died
    between its link and its turn is a dead lease as well, and has one successor. The links go when
    the place is taken, so that whoever comes late makes one, but finds another in the place.
    """
    seen = read_lease(path)
    if seen is None or seen.token == lease.token:
        return None
    claim, successor = path, seen
    while successor.token != lease.token:
        _refuse_if_alive(claim, successor, is_alive)
        claim = path.with_name(f".{path.name}.after-{successor.token}")
        try:
            os.link(temporary, claim)
        except FileExistsError:
            earlier = read_lease(claim)
            if earlier is None:
                return None
            successor = earlier
        else:
            break
    held = read_lease(path)
    if held is None or held.token != seen.token:
        claim.unlink(missing_ok=True)
        return None
    temporary.replace(path)
    for claim in path.parent.glob(f".{path.name}.after-*"):
        claim.unlink(missing_ok=True)
    return seen


def _refuse_if_alive(file: Path, held: Lease, is_alive: Callable[[Lease], bool]) -> None:
    if not is_alive(held):
        return
    here = held.scheduler == "slurm" or held.host == socket.gethostname()
    state = "which is still alive" if here else "which nobody can see from here"
    advice = "" if here else f"; if that host is gone for good, remove {file}"
    raise LeaseHeld(
        f"{file.parent} belongs to {held.owner}, {state}: wait for it, or end it first "
        f"(dlbhpc cancel {file.parent}){advice}"
    )


def rewrite(path: Path, lease: Lease) -> None:
    """The job that a submission made puts its own name in; raises LeaseHeld for another token."""
    held = read_lease(path)
    if held is not None and held.token != lease.token:
        raise LeaseHeld(f"{path.parent} belongs to {held.owner}, which is not this job")
    write_json(path, asdict(lease))


def release(path: Path, token: str) -> None:
    """Give the run back, unless it belongs to somebody else by now."""
    held = read_lease(path)
    if held is not None and held.token == token:
        path.unlink(missing_ok=True)
