"""Submit what was planned, and say what became of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.errors import DlbhpcError

if TYPE_CHECKING:
    from dlbhpc.cli.follow import OnProgress
    from dlbhpc.command import Launch
    from dlbhpc.images.task import RunImage
    from dlbhpc.run.record import Run
    from dlbhpc.scheduler.profile import Profile
    from dlbhpc.scheduler.submit import Submitted


def start(
    launch: Launch,
    profile: Profile,
    follow: bool,
    on_progress: OnProgress | None = None,
    links: int = 0,
    teacher: Launch | None = None,
    retries: int = 0,
) -> int:
    """Submit a launch; returns 0 when it was submitted, is complete, or (followed) got complete.

    ``links`` more jobs are queued behind it. ``teacher`` is trained first, unless it is complete.
    ``retries`` is how often it runs again after the upstream failed.
    """
    from dlbhpc.scheduler.queue import input_variables
    from dlbhpc.scheduler.submit import submit

    if teacher is None:
        submitted = submit(prepare(launch, profile, retries), profile, links)
    else:
        submitted = _submit_behind_teacher(launch, teacher, profile, links, retries)
    _tell(launch, submitted)
    if submitted.job_id is None:
        return 0
    folder = launch.output.folder
    if profile.scheduler == "slurm" and (left_out := input_variables()):
        print(f"  left out, as of another allocation: {', '.join(left_out)}")
    if not follow:
        print(f"  its log:    dlbhpc logs -f {folder}\n  all runs:   dlbhpc status")
        return 0
    from dlbhpc.cli.follow import follow as follow_job

    try:
        return follow_job(launch.output, submitted.job_id, on_progress)
    except KeyboardInterrupt:
        print(f"\nthe job goes on; to end it: dlbhpc cancel {folder}")
        return 130


def start_array(
    launches: Mapping[int, Launch], profile: Profile, parallelism: int | None, retries: int
) -> int:
    """Submit the launches as one array, each a run of its own; returns 0."""
    from dlbhpc.scheduler.arrays import submit_array

    runs = {number: prepare(launch, profile, retries) for number, launch in launches.items()}
    submitted = submit_array(runs, profile, parallelism)
    for number, launch in launches.items():
        job_id = submitted.jobs.get(number)
        became = f"submitted as {job_id}" if job_id else "already complete"
        print(f"seed {launch.seed}: {became}  {launch.output.folder}")
    print("  all runs:   dlbhpc status")
    return 0


def prepare(
    launch: Launch, profile: Profile, retries: int = 0, teacher_run: Path | None = None
) -> Run:
    """The run of a launch on a profile: inputs verified, saving interval chosen."""
    from dlbhpc.records import to_plain
    from dlbhpc.run.inputs import prepare_run
    from dlbhpc.run.interval import Bounds, interval_of

    if profile.scheduler == "local" and launch.geometry.nodes != 1:
        raise DlbhpcError(
            f"the profile {profile.name} is one machine, the run wants {launch.geometry.nodes} "
            "nodes: choose --nodes 1 or another --cluster"
        )
    usual = profile.save_every_minutes
    bounds = Bounds(
        default=60 * usual,
        least=60 * (profile.min_save_every_minutes or 1),
        # What a lost node may cost is the user's to say: never more than that unless allowed.
        most=60 * (profile.max_save_every_minutes or usual),
    )
    interval = interval_of(launch, profile.name, bounds)
    run = prepare_run(
        launch,
        profile.name,
        interval.seconds,
        profile.grace_seconds,
        _image(launch, profile),
        teacher_run,
    )
    return replace(run, save_every_why=interval.why, retries=retries, cluster=to_plain(profile))


def _submit_behind_teacher(
    launch: Launch, teacher: Launch, profile: Profile, links: int, retries: int
) -> Submitted:
    from dlbhpc.run.lease import LeaseHeld
    from dlbhpc.scheduler.chain import unfinished_jobs
    from dlbhpc.scheduler.submit import check_output, check_scheduler, submit

    teacher_run = prepare(teacher, profile, retries)
    if check_output(teacher_run):
        return submit(prepare(launch, profile, retries), profile, links)
    # The student first: nothing is trained for one that could not be submitted.
    run = prepare(launch, profile, retries, teacher.output.folder)
    if check_output(run):
        return submit(run, profile)
    check_scheduler(profile, needs_slurm=True)
    try:
        _tell(teacher, submit(teacher_run, profile, links))
    except LeaseHeld:
        print(f"the teacher is in a job already: {teacher.output.folder}")
    return submit(run, profile, links, after=unfinished_jobs(teacher.output))


def _tell(launch: Launch, submitted: Submitted) -> None:
    if submitted.job_id is None:
        print(f"already complete: {launch.selected_checkpoint} (another --output trains it again)")
        return
    if submitted.taken_over:
        print(f"taking over from {submitted.taken_over}, which is gone")
    name = f"{launch.recipe.name} on {launch.recipe.dataset.name}"
    if submitted.adopted:
        print(f"{name} was submitted by a command that died: its job is {submitted.job_id}")
    else:
        print(f"submitted {name} as {submitted.job_id}")
    if submitted.links:
        print(f"  behind it:  {', '.join(submitted.links)}")
    print(f"  run folder: {launch.output.folder}")


def _image(launch: Launch, profile: Profile) -> RunImage | None:
    """The image that the profile sends the run through, if it does."""
    if profile.container == "none":
        return None
    from dlbhpc.images.use import choose_image, other_inputs
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.sbatch import variables

    mount, gpu = profile.container_mount, profile.container_gpu
    begun = read_run(launch.output).image if launch.resume and launch.output.run.exists() else None
    image = choose_image(
        launch,
        profile.container,
        mount,
        gpu,
        variables(profile),
        begun_with=begun.content_sha256 if begun else None,
    )
    if note := other_inputs(launch.layout, image):
        print(f"note: {note}", file=sys.stderr)
    return image
