"""Why a job of Slurm's ends, by Slurm's own facts; what they do not tell is not guessed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dlbhpc.layout import OutputLayout
from dlbhpc.run.attempt import Job
from dlbhpc.run.history import Attempt, read_attempts
from dlbhpc.run.log import end_of_log
from dlbhpc.run.reasons import Cause, Reason, reason_without_word
from dlbhpc.run.record import read_run
from dlbhpc.scheduler.accounting import read_accounting
from dlbhpc.scheduler.control import take_preempted, was_cancelled
from dlbhpc.scheduler.queue import SlurmError, checked_id, slurm_command

_EARLY_SECONDS = 60
"""sbatch's manual: the signal of --signal may come so much earlier than asked for."""

# As a node's step daemon and srun write it: with cgroups, in short, and without cgroups.
_MEMORY = re.compile(
    r"^(slurmstepd|srun)\S*: error: .*(oom[-_ ]kill|out of memory|exceeded .*memory limit)",
    re.IGNORECASE | re.MULTILINE,
)


# A node's step daemon says so in the job's log when Slurm ends the job's tasks.
_DUE_TO = re.compile(
    r"^slurmstepd\S*: error: \*\*\* (?:JOB|STEP) .* DUE TO "
    r"(PREEMPTION|NODE FAILURE|TIME LIMIT)\b",
    re.MULTILINE,
)
_BY_WORDS = {
    "PREEMPTION": Reason.PREEMPTED,
    "NODE FAILURE": Reason.NODE_FAILURE,
    "TIME LIMIT": Reason.TIME_LIMIT,
}


@dataclass(frozen=True)
class JobNow:
    """A job as the controller sees it at this moment.

    ``restarts`` is how often it was requeued. ``preempted_at`` and ``ends_at`` (the limit, or the
    end itself) are seconds since the epoch, None where there is no such time.
    """

    state: str
    reason: str = ""
    restarts: int = 0
    preempted_at: float | None = None
    ends_at: float | None = None


def look_at(job_id: str) -> JobNow:
    """What the controller says of a job; where it says nothing, that is what is returned."""
    try:
        answer = slurm_command("scontrol", "--oneliner", "show", "job", checked_id(job_id))
    except SlurmError:
        return JobNow("UNKNOWN")
    return parse_job(answer)


def parse_job(answer: str) -> JobNow:
    """The job in what ``scontrol --oneliner show job`` printed."""
    fields = dict(word.split("=", 1) for word in answer.split() if "=" in word)
    restarts = fields.get("Restarts", "0")
    return JobNow(
        state=fields.get("JobState", "UNKNOWN"),
        reason=fields.get("Reason", ""),
        restarts=int(restarts) if restarts.isdecimal() else 0,
        preempted_at=_time(fields.get("PreemptTime", "")),
        ends_at=_time(fields.get("EndTime", "")),
    )


def cause_of(job: JobNow, restart_count: int, warning_seconds: int, now: float) -> Cause:
    """Why the tasks of this execution (by its restart count) have ended or were asked to.

    ``warning_seconds`` is the lead of --signal, ``now`` seconds since the epoch. A preemption is
    told from the time limit by Slurm's own times, never by the signal.
    """
    if job.restarts > restart_count:
        return Cause.TAKEN_BACK
    if job.state in _CAUSE_BY_STATE:
        return _CAUSE_BY_STATE[job.state]
    if job.reason in ("TimeLimit", "DeadLine"):
        return Cause.TIME_LIMIT
    if job.state in ("CANCELLED", "COMPLETING"):
        # At the end of its grace time a preempted job ends at the time of its preemption; one that
        # somebody cancels meanwhile ends later than that.
        preempted = job.preempted_at is not None and job.preempted_at == job.ends_at
        return Cause.PREEMPTION if preempted else Cause.CANCEL
    if job.preempted_at is not None:
        return Cause.PREEMPTION
    if job.ends_at is not None and job.ends_at - now <= warning_seconds + _EARLY_SECONDS:
        return Cause.TIME_LIMIT
    return Cause.NOTHING


_CAUSE_BY_STATE = {
    "UNKNOWN": Cause.UNKNOWN,
    "PREEMPTED": Cause.PREEMPTION,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
}


def has_lost_node(node_list: str) -> bool:
    """Whether one of these nodes (as Slurm lists them) is down now; False where nobody knows."""
    if not node_list:
        return False
    try:
        states = slurm_command("sinfo", "--noheader", f"--nodes={node_list}", "--format=%T")
    except SlurmError:
        return False
    return any(state.startswith("down") for state in states.split())


def memory_exceeded(output: OutputLayout, number: int) -> bool:
    """Whether Slurm wrote into the job's log that this attempt used too much memory."""
    return _MEMORY.search(end_of_log(output, number)) is not None


def told_in_log(output: OutputLayout, number: int) -> Reason | None:
    """Why Slurm ended an attempt's tasks, in its own words in the job's log; None without any."""
    found = _DUE_TO.search(end_of_log(output, number))
    return _BY_WORDS[found[1]] if found else None


def own_cause(output: OutputLayout, job: Job, number: int) -> Cause:
    """What its scheduler says of the job that this process runs in, whose tasks have ended.

    ``number`` is the attempt's.
    """
    if was_cancelled(output.job, job.job_id):
        return Cause.CANCEL
    # Slurm does not know of what we asked for; the local scheduler asks for nothing else.
    if take_preempted(output.job, job.job_id) or job.scheduler == "local":
        return Cause.PREEMPTION
    warning = read_run(output).grace_seconds
    cause = cause_of(look_at(job.job_id), job.restart_count, warning, time.time())
    if cause is not Cause.TAKEN_BACK:
        return cause
    # A job that is back in the queue shows nothing of why it was taken back.
    told = told_in_log(output, number)
    if told is Reason.PREEMPTED:
        return Cause.PREEMPTED_BACK
    lost = told is Reason.NODE_FAILURE or has_lost_node(job.node_list)
    return Cause.NODE_FAILURE if lost else Cause.TAKEN_BACK


def silent_reasons(output: OutputLayout) -> Callable[[Attempt], Reason]:
    """Tells why attempts ended that could not say so themselves, from one look at accounting."""
    silent = [attempt for attempt in read_attempts(output) if attempt.reason is None]
    accounted = read_accounting(attempt.job_id for attempt in silent if attempt.node_list)

    def why(attempt: Attempt) -> Reason:
        cancelled = was_cancelled(output.job, attempt.job_id)
        job = accounted.get(attempt.job_id)
        state = job.state_of(attempt.restart_count) if job else None
        if state is not None or cancelled:
            return reason_without_word(state, cancelled=cancelled)
        if told := told_in_log(output, attempt.number):
            return told
        # What is down now may have been up then, so that it counts last.
        return Reason.NODE_FAILURE if has_lost_node(attempt.node_list) else Reason.INTERRUPTED

    return why


def _time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None  # None, Unknown, or not in the answer
