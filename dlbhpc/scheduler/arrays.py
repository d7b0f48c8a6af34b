"""Several seeds of one recipe as one array of Slurm's: each element is a run of its own."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import write_bytes
from dlbhpc.layout import OutputLayout
from dlbhpc.run.lease import Lease, acquire
from dlbhpc.run.record import Run, write_records
from dlbhpc.scheduler.aside import set_aside
from dlbhpc.scheduler.ledger import Ledger, write_ledger
from dlbhpc.scheduler.profile import Profile
from dlbhpc.scheduler.queue import SlurmError
from dlbhpc.scheduler.sbatch import render
from dlbhpc.scheduler.start import adopt, find_lost, give_back, note_job
from dlbhpc.scheduler.submission import Jobs, array_of, check_tagged
from dlbhpc.scheduler.submit import check_fresh, check_output, check_scheduler, new_lease

LARGEST_SEED_RANGE = 100_000
"""More than any cluster takes in one array: a slip of the pen, refused before it is listed."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of ``1-8``, ``1,3,5`` or a mixture, in the order written.

    Raises DlbhpcError for anything else, and for a seed that is named twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = (first, last) if dash else (first, first)
        if not all(bound.isascii() and bound.isdecimal() for bound in bounds):
            raise DlbhpcError(f"--seeds {text!r}: write it as 1-8, or 1,3,5, or 1-4,7")
        low, high = int(bounds[0]), int(bounds[1])
        if not 0 <= high - low < LARGEST_SEED_RANGE:
            raise DlbhpcError(
                f"--seeds {text!r}: {part.strip()} must go upwards, over fewer than "
                f"{LARGEST_SEED_RANGE} seeds"
            )
        seeds += range(low, high + 1)
    if twice := sorted(seed for seed, times in Counter(seeds).items() if times > 1):
        raise DlbhpcError(f"--seeds {text!r} names {', '.join(map(str, twice))} twice")
    return tuple(seeds)


def array_option(numbers: Sequence[int], parallelism: int | None) -> str:
    """sbatch's --array: the numbers with their runs folded, and how many may run at a time."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    listed = ",".join("-".join(map(str, part)) for part in parts)
    return f"{listed}%{parallelism}" if parallelism else listed


def array_script(
    launches: Mapping[int, Launch],
    profile: Profile,
    parallelism: int | None,
    token: str | None = None,
) -> str:
    """The batch script of an array: every element runs it, and picks its run by its number."""
    some = next(iter(launches.values()))
    return render(
        replace(some, output=array_of(some.output)),
        profile,
        token,
        array=array_option(list(launches), parallelism),
        elements={number: launch.output.folder for number, launch in launches.items()},
    )


@dataclass(frozen=True)
class SubmittedArray:
    """Element numbers by what became of them: the jobs that were made, and the complete runs."""

    jobs: Mapping[int, str]
    complete: tuple[int, ...]


def submit_array(
    runs: Mapping[int, Run], profile: Profile, parallelism: int | None = None
) -> SubmittedArray:
    """Submit the runs as one array; their numbers become the elements'.

    The runs differ in nothing but what their records say, and lie in one folder, which holds what
    they share. What is complete is left out. Raises LeaseHeld naming the runs that live jobs own,
    and DlbhpcError when the array cannot be submitted: then no run of it is.
    """
    complete = [number for number, run in runs.items() if check_output(run)]
    for number in complete:
        check_fresh(runs[number])
    wanted = {number: run for number, run in runs.items() if number not in complete}
    if not wanted:
        return SubmittedArray({}, tuple(complete))
    check_scheduler(profile, needs_slurm=True)
    jobs = _adopted(wanted)
    wanted = {number: run for number, run in wanted.items() if number not in jobs}
    _check_free(wanted)
    if wanted:
        jobs |= _submit(wanted, profile, parallelism)
    return SubmittedArray(jobs, tuple(complete))


def _adopted(runs: Mapping[int, Run]) -> dict[int, str]:
    """The jobs of those runs whose submission died after it had made them."""
    jobs = {}
    for number, run in runs.items():
        adopted = adopt(run.launch.output)
        if adopted:
            jobs[number] = adopted[0]
    return jobs


def _check_free(runs: Mapping[int, Run]) -> None:
    jobs = Jobs()
    owners = {number: jobs.live(run.launch.output) for number, run in runs.items()}
    held = {number: lease for number, lease in owners.items() if lease is not None}
    if not held:
        return
    free = [str(run.launch.seed) for number, run in runs.items() if number not in held]
    names = ", ".join(
        f"{runs[number].launch.seed} ({lease.owner})" for number, lease in held.items()
    )
    rest = f": submit the others with --seeds {','.join(free)}" if free else ""
    raise DlbhpcError(f"these seeds are in live jobs already: {names}{rest}")


def _submit(runs: Mapping[int, Run], profile: Profile, parallelism: int | None) -> dict[int, str]:
    token = uuid.uuid4().hex
    leases: dict[int, Lease] = {}
    try:
        for number, run in runs.items():
            lease = new_lease(profile, f"{token}_{number}")
            run.launch.output.folder.mkdir(parents=True, exist_ok=True)
            acquire(run.launch.output.lease, lease, Jobs().is_alive)
            leases[number] = lease
        # Again, now that nobody else can complete them.
        late = [number for number, run in runs.items() if check_output(run)]
        if late:
            names = ", ".join(str(runs[number].launch.seed) for number in late)
            raise DlbhpcError(f"seeds {names} were completed this moment: submit again")
        return _start(runs, leases, token, profile, parallelism)
    except BaseException:
        for number, lease in leases.items():
            _let_go(runs[number].launch.output, lease)
        raise


def _start(
    runs: Mapping[int, Run],
    leases: Mapping[int, Lease],
    token: str,
    profile: Profile,
    parallelism: int | None,
) -> dict[int, str]:
    """Write the records of all, and make the array's one script its jobs; returns their ids."""
    launches = {number: run.launch for number, run in runs.items()}
    outputs = {number: launch.output for number, launch in launches.items()}
    script = array_script(launches, profile, parallelism, token)
    shared = array_of(next(iter(outputs.values())))
    shared.job.mkdir(exist_ok=True)
    write_bytes(shared.batch_script, script.encode())
    ledgers = {number: Ledger.new(lease.token, wanted=1) for number, lease in leases.items()}
    for number, run in runs.items():
        if not run.launch.resume:
            set_aside(outputs[number])
        outputs[number].job.mkdir(exist_ok=True)
        # For going on by itself: the next array in this folder replaces the shared script.
        alone = render(run.launch, profile, leases[number].token)
        write_bytes(outputs[number].batch_script, alone.encode())
        write_ledger(outputs[number], ledgers[number])
        write_records(run)
    jobs = _sbatch(shared, script, outputs, leases)
    for number, job_id in jobs.items():
        note_job(outputs[number], leases[number], job_id)
        write_ledger(outputs[number], ledgers[number].with_jobs(job_id))
    return jobs


def _sbatch(
    shared: OutputLayout,
    script: str,
    outputs: Mapping[int, OutputLayout],
    leases: Mapping[int, Lease],
) -> dict[int, str]:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from dlbhpc.scheduler.slurm import SlurmBatch, SlurmExecutor

    batches = {number: SlurmBatch(output) for number, output in outputs.items()}
    try:
        handles = SlurmExecutor(shared.job, script).submit_elements(batches)
    except (FailedJobError, FailedSubmissionError) as error:
        jobs = {}
        for number, lease in leases.items():
            found = find_lost(lease, ())
            check_tagged(outputs[number], found, 1)
            if not found:
                raise DlbhpcError(f"sbatch refused the array: {error}") from error
            jobs[number] = found[0].job_id
        return jobs
    return {number: handle.job_id for number, handle in handles.items()}


def _let_go(output: OutputLayout, lease: Lease) -> None:
    """Give a run back, unless a job of it was made, or Slurm cannot say whether one was."""
    try:
        made = Jobs().tagged(lease)
    except SlurmError:
        return
    if not made:
        give_back(output, lease)
