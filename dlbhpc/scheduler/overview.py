"""All runs at once: one look at Slurm's queue and at most one at its accounting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import OutputLayout
from dlbhpc.run.glance import Glance, glance
from dlbhpc.run.lease import Lease, read_lease
from dlbhpc.scheduler.accounting import Accounted, read_accounting
from dlbhpc.scheduler.control import was_cancelled
from dlbhpc.scheduler.queue import QueuedJob, SlurmError
from dlbhpc.scheduler.state import Facts, State, state_of
from dlbhpc.scheduler.submission import Jobs, log_path


@dataclass(frozen=True)
class RunState:
    """One run as it stands; ``job_id`` is its live job or else its last one, "" for none.

    ``slurm_state`` and ``slurm_reason`` are squeue's own words, None where it said nothing.
    ``links`` are the jobs that wait behind that one, in their order.
    """

    glance: Glance
    state: State
    job_id: str
    slurm_state: str | None
    slurm_reason: str | None
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class Damaged:
    """A run whose records cannot be read, and the sentence that says which and why."""

    output: OutputLayout
    error: str


@dataclass(frozen=True)
class _Seen:
    """One run's folder and job, before accounting was asked."""

    glance: Glance
    lease: Lease | None
    answered: bool
    owned: bool
    queued: QueuedJob | None
    links: tuple[str, ...] = ()

    @property
    def job_id(self) -> str:
        if self.queued is not None:
            return self.queued.job_id
        if self.lease is not None and (self.lease.job_id or self.owned):
            return self.lease.job_id
        return self.glance.last.job_id if self.glance.last else ""

    @property
    def is_unexplained(self) -> bool:
        """Whether the last job is one of Slurm's that ended without a word of ours."""
        if self.glance.completed or not self.answered or self.owned or self.lease is None:
            return False
        last = self.glance.last
        silent = last is None or last.reason is None or last.job_id != self.job_id
        return silent and self.lease.scheduler == "slurm" and bool(self.job_id)


def overview(outputs: Sequence[OutputLayout]) -> list[RunState | Damaged]:
    """The state of each run, in the order given; one damaged run hides no other."""
    jobs = Jobs()
    seen: list[_Seen | Damaged] = []
    for output in outputs:
        try:
            seen.append(_look(output, jobs))
        except DlbhpcError as error:
            seen.append(Damaged(output, str(error)))
    accounting = read_accounting(
        [item.job_id for item in seen if isinstance(item, _Seen) and item.is_unexplained]
    )
    return [item if isinstance(item, Damaged) else _judge(item, accounting) for item in seen]


def run_state(output: OutputLayout) -> RunState:
    """The state of one run; raises DlbhpcError where its records are damaged."""
    (found,) = overview([output])
    if isinstance(found, Damaged):
        raise DlbhpcError(found.error)
    return found


def _look(output: OutputLayout, jobs: Jobs) -> _Seen:
    now = glance(output)
    lease = read_lease(output.lease)
    try:
        live = jobs.live(output)
        queued = jobs.queued(live) if live else None
        tagged = jobs.tagged(live) if live else []
    except SlurmError:
        return _Seen(now, lease, answered=False, owned=True, queued=None)
    links = tuple(job.job_id for job in tagged if job != queued)
    return _Seen(now, live or lease, True, live is not None, queued, links)


def _judge(seen: _Seen, accounting: Mapping[str, Accounted]) -> RunState:
    output, last, job_id = seen.glance.output, seen.glance.last, seen.job_id
    log = log_path(output, job_id)
    accounted = accounting.get(job_id)
    queued = seen.queued
    facts = Facts(
        completed=seen.glance.completed,
        answered=seen.answered,
        queued=queued,
        owned=seen.owned,
        job_id=job_id,
        attempt_of=last.job_id if last else None,
        reason=last.reason if last else None,
        refused=last.requeue_wanted if last else False,
        cancelled=bool(job_id) and was_cancelled(output.job, job_id),
        accounted=accounted.state if accounted else "",
        lasted=accounted.seconds if accounted else None,
        log=str(log),
        log_exists=log.exists(),
    )
    return RunState(
        glance=seen.glance,
        state=state_of(facts),
        job_id=job_id,
        slurm_state=queued.state if queued else None,
        slurm_reason=queued.reason if queued else None,
        links=seen.links,
    )
