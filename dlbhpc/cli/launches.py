"""From the arguments of a submission to its launches."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from dlbhpc.cli.profile_flags import check_limits
from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe.locked import LOCKED_FLAGS

if TYPE_CHECKING:
    from dlbhpc.command import Launch, Request
    from dlbhpc.scheduler.profile import Profile


def request_of(args: argparse.Namespace, profile: Profile) -> Request:
    """What the arguments ask for, before anything is looked up."""
    from dlbhpc.command import Request
    from dlbhpc.recipe import parse_sizes

    return Request(
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


def launch_of(request: Request, profile: Profile) -> Launch:
    """The launch that a request describes, within the profile's limits.

    Pure: nothing but the package's own conf is read.
    """
    from dlbhpc.command import plan_launch

    launch = plan_launch(request)
    check_limits(launch, profile)
    return launch


def launches_of_seeds(request: Request, profile: Profile, text: str) -> dict[int, Launch]:
    """One launch for each seed, numbered from 1 as written, in a folder that holds them all."""
    from dlbhpc.layout import Layout
    from dlbhpc.scheduler.arrays import parse_seeds

    seeds = parse_seeds(text)
    some = launch_of(replace(request, seed=seeds[0]), profile)
    folder = request.output or Layout.at(request.root).seeds_folder(
        some.recipe.dataset.name, some.recipe.name, trial=some.trial is not None
    )
    return {
        number: launch_of(replace(request, seed=seed, output=folder / f"seed-{seed}"), profile)
        for number, seed in enumerate(seeds, start=1)
    }


def teacher_launch(launch: Launch, profile: Profile) -> Launch:
    """The launch of the run that a student's teacher comes from: the base recipe as it is locked.

    A trial's teacher is a trial of the same sizes, as far as the base recipe knows them.
    """
    from dlbhpc.command import Request
    from dlbhpc.recipe import read_recipe

    recipe = launch.recipe
    if recipe.teacher is None:
        raise DlbhpcError(f"{recipe.name} has no teacher: leave --with-teacher out")
    trial = None
    if launch.trial is not None:
        defaults = read_recipe(recipe.teacher.recipe, recipe.dataset.name).trial_defaults
        known = defaults.sizes if defaults else {}
        trial = {key: size for key, size in launch.trial.sizes.items() if key in known}
    request = Request(
        recipe=recipe.teacher.recipe,
        dataset=recipe.dataset.name,
        trial=trial,
        root=launch.layout.root,
        num_workers=profile.num_workers,
        accelerator=profile.accelerator,
    )
    try:
        return launch_of(request, profile)
    except DlbhpcError as error:
        raise DlbhpcError(
            f"the teacher cannot be submitted as it is locked ({error}): submit "
            f"{recipe.teacher.recipe} first by itself"
        ) from error
