"""When a cluster would start, and finish, each exact geometry of a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import Geometry, exact_geometries

if TYPE_CHECKING:
    from dlbhpc.command import Launch, Request
    from dlbhpc.scheduler.profile import Profile
    from dlbhpc.scheduler.soonest import Expected

MAX_NODES = 8
"""How many nodes are considered when neither the user nor the profile names a number."""


def soonest_request(request: Request, profile: Profile) -> Request:
    """The request with the geometry that the cluster would finish, or start, first.

    What the user fixed of the geometry stays, and so does that of a run that has begun, since it is
    part of what the run is. Raises DlbhpcError when there is none.
    """
    from dlbhpc.command import plan_launch
    from dlbhpc.recipe import load_recipe, trial_of
    from dlbhpc.run.record import read_run
    from dlbhpc.scheduler.soonest import soonest

    recipe = load_recipe(request.recipe, request.dataset)
    if request.trial is not None:
        recipe = trial_of(recipe, request.trial)
    most_nodes = request.nodes or MAX_NODES
    per_device = request.per_device_batch or (
        recipe.global_batch if recipe.trial else recipe.per_device_batch
    )
    geometries = [
        geometry
        for geometry in exact_geometries(
            recipe.global_batch,
            min(most_nodes, recipe.max_nodes or most_nodes),
            request.gpus_per_node,
            min(per_device, recipe.max_per_device_batch or per_device),
        )
        if request.nodes in (None, geometry.nodes)
        and request.per_device_batch in (None, geometry.per_device_batch)
    ]
    if not geometries:
        raise DlbhpcError(f"no geometry of {recipe.name} is exact within what the flags fix")
    launch = plan_launch(_of_geometry(request, geometries[0]))
    if launch.output.run.exists():
        begun = read_run(launch.output).launch.geometry
        print(f"the run in {launch.output.folder} goes on as it began: {begun}", file=sys.stderr)
        return _of_geometry(request, begun)
    chosen = soonest(expectations(launch, profile, geometries))
    print(f"soonest: {line_of(chosen)}", file=sys.stderr)
    return _of_geometry(request, chosen.geometry)


def expectations(
    launch: Launch, profile: Profile, geometries: Sequence[Geometry]
) -> list[Expected]:
    """What Slurm expects of each shape of the geometries (best first), within the profile's limits.

    The pace is known where an earlier run trained the same on the same geometry.
    """
    from dlbhpc.run.inputs import planned_steps
    from dlbhpc.run.measured import measured_runs, pace, same_training
    from dlbhpc.scheduler.sbatch import render
    from dlbhpc.scheduler.soonest import Expected, ask, expected, shapes

    if profile.scheduler != "slurm":
        raise DlbhpcError(
            f"the profile {profile.name} is this machine alone, where a job starts at once: "
            "choose a --cluster with Slurm"
        )
    asked: list[tuple[Geometry, int | None]] = []
    refused: list[Expected] = []
    for geometry in shapes([item for item in geometries if _fits(item, profile)]):
        try:
            asked.append((geometry, planned_steps(replace(launch, geometry=geometry))))
        except DlbhpcError as error:
            refused.append(Expected(geometry, None, None, str(error)))
    answers = ask([render(replace(launch, geometry=item), profile) for item, _ in asked])
    runs = measured_runs(launch.layout, lambda run: same_training(launch, run))
    return [
        *(
            expected(geometry, answer, steps, pace(geometry, runs))
            for (geometry, steps), answer in zip(asked, answers, strict=True)
        ),
        *refused,
    ]


def line_of(expected: Expected) -> str:
    """One geometry with its expected start and finish, or with Slurm's refusal."""
    geometry = expected.geometry
    size = (
        f"{geometry.nodes} x {geometry.gpus_per_node} GPUs, {geometry.per_device_batch} per device"
    )
    if expected.start is None:
        return f"{size}: {expected.refusal}"
    return f"{size}: start {_shown(expected.start)}, finish {_shown(expected.finish)}"


def as_json(expected: Expected) -> dict[str, Any]:
    """The expectation as plain data; times are the cluster's own, null where unknown."""
    return {
        "nodes": expected.geometry.nodes,
        "gpus_per_node": expected.geometry.gpus_per_node,
        "per_device_batch": expected.geometry.per_device_batch,
        "accumulation": expected.geometry.accumulation,
        "world": expected.geometry.world,
        "start": expected.start and expected.start.isoformat(),
        "finish": expected.finish and expected.finish.isoformat(timespec="seconds"),
        "refusal": expected.refusal or None,
    }


def _shown(time: datetime | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M") if time else "-"


def _fits(geometry: Geometry, profile: Profile) -> bool:
    gpus, nodes = profile.gpus_per_node, profile.max_nodes
    return (gpus is None or geometry.gpus_per_node <= gpus) and (
        nodes is None or geometry.nodes <= nodes
    )


def _of_geometry(request: Request, geometry: Geometry) -> Request:
    return replace(
        request,
        nodes=geometry.nodes,
        gpus_per_node=geometry.gpus_per_node,
        per_device_batch=geometry.per_device_batch,
    )
