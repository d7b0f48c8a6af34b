"""``dlbhpc submit``: train a recipe, or print what would be submitted."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.cli.profile_flags import add_profile_arguments, check_limits, chosen_profile
from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe.locked import LOCKED_FLAGS

if TYPE_CHECKING:
    from dlbhpc.cli.follow import OnProgress
    from dlbhpc.command import Launch
    from dlbhpc.images.task import RunImage
    from dlbhpc.scheduler.profile import Profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_launch_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="print it; change nothing")
    parser.add_argument("--json", action="store_true", help="with --dry-run: one JSON object")
    parser.add_argument(
        "--retries",
        type=int,
        default=0,
        metavar="N",
        help="run again, at most N times, when the training program failed (default: 0)",
    )
    parser.add_argument("--follow", action="store_true", help="show the progress until the end")


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that decide what is launched."""
    parser.add_argument("--recipe", required=True, help="its name: see `dlbhpc recipes`")
    parser.add_argument("--dataset", help="default: the recipe's first")
    parser.add_argument("--nodes", type=int, help="default: the recipe's")
    parser.add_argument("--gpus-per-node", type=int, help="default: the recipe's")
    parser.add_argument("--per-device-batch-size", type=int, help="default: the recipe's")
    parser.add_argument("--teacher", type=Path, help="checkpoint to distil, inside the root")
    parser.add_argument("--output", type=Path, help="the run's folder, inside the root")
    parser.add_argument("--seed", type=int, help="default: the recipe's")
    parser.add_argument("--student-init", help="teacher, hf_small or scratch (di4c recipes)")
    parser.add_argument(
        "--no-resume", action="store_true", help="start at step 0; earlier steps are set aside"
    )
    parser.add_argument(
        "--trial",
        nargs="?",
        const="",
        metavar="KEY=VALUE,…",
        help="toy size, kept apart from the locked run",
    )
    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")
    add_profile_arguments(parser)
    locked = parser.add_argument_group("locked numbers", "accepted only with the locked value")
    for key, flag in LOCKED_FLAGS.items():
        locked.add_argument(flag, dest=f"locked_{key}", type=_number_or_text, metavar="VALUE")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.command import dry_run_object
    from dlbhpc.scheduler.sbatch import render

    if args.json and not args.dry_run:
        raise DlbhpcError("--json goes with --dry-run: add it, or leave --json out")
    profile = chosen_profile(args)
    launch = launch_of(args, profile)
    if args.dry_run:
        script = render(launch, profile)
        if args.json:
            print(json.dumps(dry_run_object(launch, script), indent=1))
        else:
            print(summary(launch, script))
        return 0
    if args.retries < 0:
        raise DlbhpcError(f"--retries is {args.retries}: it must be a whole number from 0 on")
    return start(launch, profile, follow=args.follow, retries=args.retries)


def launch_of(args: argparse.Namespace, profile: Profile) -> Launch:
    """The launch that the arguments describe. Pure: nothing but the package's own conf is read."""
    from dlbhpc.command import Request, plan_launch
    from dlbhpc.recipe import parse_sizes

    launch = plan_launch(
        Request(
            recipe=args.recipe,
            dataset=args.dataset,
            nodes=args.nodes,
            gpus_per_node=args.gpus_per_node,
            per_device_batch=args.per_device_batch_size,
            teacher=args.teacher,
            output=args.output,
            seed=args.seed,
            student_init=args.student_init,
            resume=not args.no_resume,
            trial=None if args.trial is None else parse_sizes(args.trial),
            root=args.root,
            locked={key: getattr(args, f"locked_{key}") for key in LOCKED_FLAGS},
            num_workers=profile.num_workers,
            accelerator=profile.accelerator,
        )
    )
    check_limits(launch, profile)
    return launch


def start(
    launch: Launch,
    profile: Profile,
    follow: bool,
    on_progress: OnProgress | None = None,
    retries: int = 0,
) -> int:
    """Submit a launch; returns 0 when it was submitted, is complete, or (followed) got complete."""
    from dlbhpc.records import to_plain
    from dlbhpc.run.inputs import prepare_run
    from dlbhpc.scheduler.queue import input_variables
    from dlbhpc.scheduler.submission import submit

    if profile.scheduler == "local" and launch.geometry.nodes != 1:
        raise DlbhpcError(
            f"the profile {profile.name} is one machine, the run wants {launch.geometry.nodes} "
            "nodes: choose --nodes 1 or another --cluster"
        )
    run = prepare_run(
        launch,
        profile.name,
        60 * profile.save_every_minutes,
        profile.grace_seconds,
        _image(launch, profile),
    )
    run = replace(run, retries=retries, cluster=to_plain(profile))
    submitted = submit(run, profile)
    folder = launch.output.folder
    if submitted.job_id is None:
        print(f"already complete: {launch.selected_checkpoint} (another --output trains it again)")
        return 0
    if submitted.taken_over:
        print(f"taking over from {submitted.taken_over}, which is gone")
    print(f"submitted {launch.recipe.name} on {launch.recipe.dataset.name} as {submitted.job_id}")
    print(f"  run folder: {folder}")
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


def _image(launch: Launch, profile: Profile) -> RunImage | None:
    """The image that the profile sends the run through, if it does."""
    if profile.container == "none":
        return None
    from dlbhpc.images.use import choose_image

    return choose_image(
        launch,
        profile.container,
        profile.container_mount,
        profile.container_gpu,
        profile.environment,
    )


def summary(launch: Launch, script: str) -> str:
    """The dry run for a reader: what would train, on what, with which command."""
    trial = ", a trial" if launch.trial else ""
    lines = [
        f"{launch.recipe.name} on {launch.recipe.dataset.name}{trial} "
        "(dry run: nothing was submitted)",
        f"  upstream  {launch.source} at {launch.source_commit}",
        f"  data      {launch.data}",
        f"  teacher   {launch.teacher or '-'}",
        f"  output    {launch.output.folder}",
        f"  batch     {launch.geometry.global_batch} = {launch.geometry}",
        "departures from the locked table:",
        *(f"  {item.key}={item.value}: {item.reason}" for item in launch.departures),
        "command:",
        *(f"  {word}" for word in launch.argv),
        "batch script:",
        *(f"  {line}" for line in script.splitlines()),
    ]
    return "\n".join(lines)


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
