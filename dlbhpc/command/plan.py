"""From a request to a launch: recipe + geometry + layout -> the upstream's argv and environment.

Nothing is written, and nothing is read but dlbhpc/conf, symlinks on the way of paths, and the
package's own files for the bundled upstream's digest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dlbhpc.command.bundled import bundled_commit
from dlbhpc.command.launch import Launch, Request
from dlbhpc.command.render import render, selected_checkpoint
from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import (
    Geometry,
    InexactBatch,
    check_eval_batch,
    exact_geometries,
    require_positive,
    solve,
)
from dlbhpc.layout import ADAPTERS, CONF, REFERENCE, Layout, OutputLayout
from dlbhpc.recipe import (
    SNAPSHOT_INIT,
    Recipe,
    check_locked,
    list_datasets,
    load_recipe,
    read_recipe,
    trial_of,
)

_LARGEST_SEED = 2**32 - 1
"""numpy's generators, which the upstreams seed, take no larger one."""


def plan_launch(
    request: Request,
    conf_dir: Path = CONF,
    load: Callable[[str, str | None, Path], Recipe] = load_recipe,
) -> Launch:
    """The launch that ``request`` asks for; ``load`` reads its recipe.

    Raises :class:`DlbhpcError` for what is refused.
    """
    recipe = load(request.recipe, request.dataset, conf_dir)
    layout = Layout.at(request.root)
    if request.trial is not None:
        recipe = trial_of(recipe, request.trial, request.accelerator)
        if recipe.trial and recipe.trial.dataset:
            layout = layout.of_trials()
    for key, given in request.locked.items():
        if given is not None:
            check_locked(recipe, key, given)
    trial = recipe.trial is not None
    folder = request.output or layout.run_folder(recipe.dataset.name, recipe.name, trial=trial)
    output = OutputLayout(layout.output(folder, trial=trial))
    source = layout.upstream(recipe.upstream.name) if recipe.upstream.commit else REFERENCE
    entrypoint = source / recipe.upstream.entrypoint
    launch = Launch(
        recipe=recipe,
        geometry=_geometry(recipe, request),
        layout=layout,
        output=output,
        source=source,
        source_commit=recipe.upstream.commit or bundled_commit(),
        entrypoint=ADAPTERS / f"{recipe.adapter}.py" if recipe.adapter else entrypoint,
        data=_data(recipe, layout),
        manifest=layout.manifest(recipe.dataset.name),
        teacher=_teacher(recipe, request, layout, conf_dir),
        adapted_teacher=(
            output.adapted_teacher if recipe.teacher and recipe.teacher.adapter else None
        ),
        selected_checkpoint=selected_checkpoint(recipe, output),
        argv=(),
        environment={},
        departures=(),
        seed=_seed(recipe, request),
        student_init=_student_init(recipe, request),
        resume=request.resume,
        num_workers=recipe.num_workers if request.num_workers is None else request.num_workers,
    )
    return render(launch, list_datasets(conf_dir))


def student_init_snapshot(launch: Launch) -> Path | None:
    """The local weights that the student starts from; None where it starts from none.

    A revision may be a branch: the commit that it resolved to is what ``refs`` recorded when it was
    fetched. Raises :class:`DlbhpcError` when the snapshot is not there.
    """
    init = launch.recipe.student_init
    if init is None or launch.student_init != SNAPSHOT_INIT:
        return None
    pinned = init.snapshot
    folder = launch.layout.snapshot(pinned.repository, pinned.revision).parents[1]
    ref = folder / "refs" / pinned.revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else None
    weights = folder / "snapshots" / commit / "model.safetensors" if commit else None
    if weights is None or not weights.is_file():
        raise DlbhpcError(
            f"--student-init {SNAPSHOT_INIT} needs {pinned.repository} at {pinned.revision} under "
            f"{folder}, which is missing: fetch it with python -m dlbhpc data fetch "
            f"{SNAPSHOT_INIT}, or choose another --student-init"
        )
    return weights.parent


def _geometry(recipe: Recipe, request: Request) -> Geometry:
    nodes = recipe.nodes if request.nodes is None else request.nodes
    gpus = recipe.gpus_per_node if request.gpus_per_node is None else request.gpus_per_node
    require_positive("--nodes", nodes)
    require_positive("--gpus-per-node", gpus)
    per_device = request.per_device_batch
    if per_device is None:
        # A trial's batch is toy size: what each device gets of it follows from the batch.
        share = max(1, recipe.global_batch // (nodes * gpus))
        most = recipe.max_per_device_batch or share
        per_device = min(share, most) if recipe.trial else recipe.per_device_batch
    require_positive("--per-device-batch-size", per_device)
    for name, flag, value in (
        ("nodes", "--nodes", nodes),
        ("per_device_batch", "--per-device-batch-size", per_device),
    ):
        limit = recipe.limits.get(name)
        if limit and value > limit.most:
            raise DlbhpcError(
                f"{flag} {value} is too much for {recipe.name}, at most {limit.most}: "
                f"{limit.reason}"
            )
    try:
        geometry = solve(
            recipe.global_batch,
            nodes,
            gpus,
            per_device,
            max_nodes=recipe.max_nodes,
            max_per_device_batch=recipe.max_per_device_batch,
        )
    except InexactBatch as error:
        same_shape = [
            str(exact.per_device_batch)
            for exact in exact_geometries(recipe.global_batch, nodes, gpus, per_device)
            if exact.nodes == nodes
        ]
        if request.per_device_batch is None and same_shape:
            raise InexactBatch(
                f"{error}. {per_device} per device is the recipe's; on the same GPUs "
                f"--per-device-batch-size {' or '.join(same_shape)} is exact"
            ) from None
        raise
    check_eval_batch(recipe.global_batch, geometry)
    return geometry


def _seed(recipe: Recipe, request: Request) -> int:
    seed = recipe.seed if request.seed is None else request.seed
    if not 0 <= seed <= _LARGEST_SEED:
        raise DlbhpcError(f"--seed {seed}: it must lie between 0 and {_LARGEST_SEED}")
    return seed


def _student_init(recipe: Recipe, request: Request) -> str | None:
    init = recipe.student_init
    if init is None:
        if request.student_init is not None:
            raise DlbhpcError(
                f"{recipe.name} takes no --student-init: only duo_di4c and mdlm_di4c do"
            )
        return None
    chosen = init.default if request.student_init is None else request.student_init
    if chosen not in init.allowed:
        raise DlbhpcError(
            f"--student-init {chosen!r} is not known to {recipe.name}: choose "
            f"{' or '.join(init.allowed)}"
        )
    return chosen


def _data(recipe: Recipe, layout: Layout) -> Path:
    sources = {
        "training_cache": layout.training_cache(recipe.upstream.name, recipe.dataset.name),
        "datasets_cache": layout.hf_datasets_cache,
        "processed": layout.processed(recipe.dataset.processed),
    }
    if recipe.data_source not in sources:
        raise DlbhpcError(
            f"recipe {recipe.name}: data_source {recipe.data_source!r} is none of "
            f"{', '.join(sources)}"
        )
    return sources[recipe.data_source]


def _teacher(recipe: Recipe, request: Request, layout: Layout, conf_dir: Path) -> Path | None:
    if recipe.teacher is None:
        if request.teacher is not None:
            raise DlbhpcError(f"{recipe.name} has no teacher: leave --teacher out")
        return None
    trial = recipe.trial is not None
    if request.teacher is None:
        base = read_recipe(recipe.teacher.recipe, recipe.dataset.name, conf_dir)
        folder = layout.run_folder(base.dataset.name, base.name, trial=trial)
        return layout.inside(selected_checkpoint(base, OutputLayout(folder)), "the teacher")
    teacher = layout.inside(request.teacher, "the teacher")
    if teacher.is_relative_to(layout.trials) and not trial:
        raise DlbhpcError(
            f"the teacher {request.teacher} comes from a trial, which is never the teacher of a "
            "locked run"
        )
    return teacher
