"""How the commands name a run, and what they say of its state."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import Layout, OutputLayout
from dlbhpc.run.completion import read_completed
from dlbhpc.run.history import Attempt, read_attempts, read_progress
from dlbhpc.run.lease import Lease
from dlbhpc.run.reasons import Reason

if TYPE_CHECKING:
    from dlbhpc.scheduler.submission import Jobs


@dataclass(frozen=True)
class RunState:
    """One run as it stands: `state` is complete, running, or why its last attempt ended."""

    output: OutputLayout
    state: str
    job_id: str
    step: int
    total: int
    attempts: tuple[Attempt, ...]
    lease: Lease | None


def add_run_argument(parser: argparse.ArgumentParser) -> None:
    """The arguments that name one run."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder, DATASET/RECIPE, or RECIPE (trials/DATASET/RECIPE for a trial)",
    )
    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")


def find_runs(layout: Layout) -> list[OutputLayout]:
    """Every run under the root's checkpoints folder, in the order of their paths."""
    if not layout.checkpoints.is_dir():
        return []
    return [OutputLayout(path.parent) for path in sorted(layout.checkpoints.glob("**/run.json"))]


def find_run(name: str, layout: Layout) -> OutputLayout:
    """The run that a user names; raises DlbhpcError when there is none, or more than one."""
    for folder in (Path(name), layout.root / name):
        if (folder / "run.json").is_file():
            return OutputLayout(folder.resolve())
    wanted = Path(name).parts
    runs = find_runs(layout)
    found = [run for run in runs if run.folder.parts[-len(wanted) :] == wanted]
    # A name without `trials` in it means the locked run where there is one.
    found = [run for run in found if not run.folder.is_relative_to(layout.trials)] or found
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(run.folder.relative_to(layout.root)) for run in found)
        raise DlbhpcError(f"{name} names more than one run: {names}; give the folder")
    raise DlbhpcError(
        f"there is no run {name} under {layout.checkpoints}: `dlbhpc status` lists them"
    )


def state_of(output: OutputLayout, jobs: Jobs | None = None) -> RunState:
    """The run's state, from its records and its job; `jobs` shares one look at the queue."""
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.control import was_cancelled
    from dlbhpc.scheduler.queue import SlurmError
    from dlbhpc.scheduler.submission import Jobs
    from dlbhpc.steps import list_steps

    total = read_run(output).total_steps
    attempts = read_attempts(output)
    jobs = jobs or Jobs()
    unknown = False
    try:
        lease = jobs.live(output)
    except SlurmError:
        # A controller that does not answer says nothing about the job.
        lease, unknown = None, True
    completed = read_completed(output)
    steps = [record.step for record in list_steps(output.steps)]
    if attempts:
        steps.append(read_progress(attempts[-1].folder).get("step", 0))
    if completed is not None:
        state, step = Reason.COMPLETED.value, int(completed["step"])
    else:
        step = max(steps, default=0)
        if unknown:
            state = "unknown"
        elif lease is not None:
            job = jobs.queued(lease)
            state = job.state.lower() if job else "running"
        elif attempts and attempts[-1].reason is None:
            cancelled = was_cancelled(output.job, attempts[-1].job_id)
            state = (Reason.CANCELLED if cancelled else Reason.INTERRUPTED).value
        elif attempts and attempts[-1].reason != Reason.COMPLETED.value:
            state = str(attempts[-1].reason)
        elif attempts:
            state = Reason.INTERRUPTED.value  # completed.json is gone: not complete
        else:
            state = "not begun"
    return RunState(
        output=output,
        state=state,
        job_id=lease.job_id if lease else (attempts[-1].job_id if attempts else ""),
        step=step,
        total=total,
        attempts=tuple(attempts),
        lease=lease,
    )
