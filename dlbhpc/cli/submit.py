"""``dlbhpc submit``: train a recipe, or print what would be submitted."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.cli.launches import launch_of, launches_of_seeds, request_of, teacher_launch
from dlbhpc.cli.profile_flags import add_profile_arguments, chosen_profile
from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe.locked import LOCKED_FLAGS

if TYPE_CHECKING:
    from dlbhpc.command import Launch
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
    jobs = parser.add_argument_group("jobs", "on a cluster with Slurm; see docs/submitting.md")
    jobs.add_argument(
        "--chain",
        type=int,
        default=0,
        metavar="N",
        help="queue N more jobs behind it, which take the run over where it cannot requeue",
    )
    jobs.add_argument(
        "--with-teacher",
        action="store_true",
        help="train the teacher first, unless its run is complete",
    )
    jobs.add_argument("--seeds", metavar="LIST", help="one run for each seed, as an array: 1-8")
    jobs.add_argument(
        "--array-parallelism", type=int, metavar="K", help="run at most K of them at a time"
    )
    jobs.add_argument(
        "--soonest",
        action="store_true",
        help="take the exact geometry that the cluster would finish, or start, first",
    )


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
    from dlbhpc.cli.start import start, start_array

    _check_combination(args)
    profile = chosen_profile(args)
    request = request_of(args, profile)
    if args.soonest:
        from dlbhpc.cli.when import soonest_request

        request = soonest_request(request, profile)
    if args.seeds is not None:
        launches = launches_of_seeds(request, profile, args.seeds)
        if args.dry_run:
            return _dry_run_array(launches, profile, args.array_parallelism, args.json)
        return start_array(launches, profile, args.array_parallelism, args.retries)
    launch = launch_of(request, profile)
    teacher = teacher_launch(launch, profile) if args.with_teacher else None
    if args.dry_run:
        return _dry_run(launch, teacher, profile, args.json)
    return start(
        launch, profile, args.follow, links=args.chain, teacher=teacher, retries=args.retries
    )


def _check_combination(args: argparse.Namespace) -> None:
    """Refuse flags that do not go together. Raises DlbhpcError."""
    together = (
        (args.json and not args.dry_run, "--json goes with --dry-run: add it, or leave --json out"),
        (args.chain < 0, f"--chain is {args.chain}: it must be a number of jobs from 0 on"),
        (
            args.retries < 0,
            f"--retries is {args.retries}: it must be a whole number from 0 on",
        ),
        (
            args.array_parallelism is not None and args.seeds is None,
            "--array-parallelism goes with --seeds",
        ),
        (
            args.array_parallelism is not None and args.array_parallelism < 1,
            f"--array-parallelism is {args.array_parallelism}: at least one must run at a time",
        ),
        (
            args.with_teacher and args.teacher is not None,
            "--with-teacher trains the teacher, --teacher names one: leave one of them out",
        ),
    )
    for refused, sentence in together:
        if refused:
            raise DlbhpcError(sentence)
    if args.seeds is None:
        return
    of_one = {
        "--seed": args.seed is not None,
        "--chain": args.chain > 0,
        "--with-teacher": args.with_teacher,
        "--follow": args.follow,
        "--soonest": args.soonest,
    }
    for flag in (flag for flag, given in of_one.items() if given):
        raise DlbhpcError(f"--seeds makes several runs, {flag} is for one: leave one of them out")


def _dry_run(launch: Launch, teacher: Launch | None, profile: Profile, as_json: bool) -> int:
    from dlbhpc.command import dry_run_object
    from dlbhpc.scheduler.sbatch import render

    script = render(launch, profile)
    if as_json:
        print(json.dumps(dry_run_object(launch, script), indent=1))
        return 0
    if teacher is not None:
        print(f"first, unless it is complete: {teacher.recipe.name} in {teacher.output.folder}")
    print(summary(launch, script))
    return 0


def _dry_run_array(
    launches: Mapping[int, Launch], profile: Profile, parallelism: int | None, as_json: bool
) -> int:
    from dlbhpc.command import dry_run_object
    from dlbhpc.scheduler.arrays import array_script

    script = array_script(launches, profile, parallelism)
    if as_json:
        runs = [dry_run_object(launch, script) for launch in launches.values()]
        print(json.dumps(runs, indent=1))
        return 0
    for number, launch in launches.items():
        print(f"element {number}: seed {launch.seed}, {launch.output.folder}")
    print(summary(next(iter(launches.values())), script))
    return 0


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
