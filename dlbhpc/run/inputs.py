"""From a launch to a run: its inputs are verified, and what follows from them is computed."""

from __future__ import annotations

import sys
from pathlib import Path

from dlbhpc.command import Launch, student_init_snapshot
from dlbhpc.command.bundled import bundled_commit
from dlbhpc.data.bridge import ensure_bridge
from dlbhpc.data.manifest import Manifest, read_manifest
from dlbhpc.data.text_cache import ensure_text_cache
from dlbhpc.data.trial import pins_of
from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import epoch_plan, step_plan
from dlbhpc.images.task import RunImage
from dlbhpc.images.use import check_image
from dlbhpc.inputs.source import verify_checkout
from dlbhpc.inputs.teaching import check_launch_teacher, teacher_digest, teacher_is_there
from dlbhpc.inputs.tokenizers import check_tokenizers
from dlbhpc.layout import OutputLayout
from dlbhpc.run import completion
from dlbhpc.run.identity import known_identity
from dlbhpc.run.record import Run, read_run
from dlbhpc.run.teacher import pending_teacher

_INPUTS = ("source_commit", "data", "teacher", "adapter_version", "student_weights")
"""The fields of the identity that may have changed since the run was submitted."""


def verify_inputs(
    launch: Launch, image: RunImage | None, teacher_pending: bool = False
) -> Manifest:
    """Verify source, data and teacher as far as a look can; returns the data's manifest.

    A run that goes through an image brings its source in it. A teacher that is still in training
    (``teacher_pending``) is verified when it is there.
    """
    recipe = launch.recipe
    upstream = recipe.upstream
    if recipe.adapter is not None and not launch.entrypoint.is_file():
        raise DlbhpcError(
            f"the adapter {launch.entrypoint} is not in this version: it renders {recipe.name} "
            "(--dry-run), but cannot train it yet"
        )
    if image is not None:
        check_image(image, launch)
    elif upstream.commit is not None and upstream.repository is not None:
        verify_checkout(launch.source, upstream.commit, upstream.repository)
    manifest = read_manifest(launch.manifest, recipe.dataset.name, recipe.dataset.sequence_length)
    if launch.teacher is not None and not teacher_pending and not teacher_is_there(launch):
        raise DlbhpcError(
            f"the teacher {launch.teacher} is missing: add --with-teacher to train it first, or "
            "name a checkpoint with --teacher"
        )
    student_init_snapshot(launch)
    check_tokenizers(launch)
    return manifest


def ensure_data(launch: Launch) -> None:
    """Write the upstream's cache from the prepared data where it is not current."""
    recipe = launch.recipe
    if recipe.data_source == "training_cache":
        ensure_bridge(recipe.upstream.name, recipe.dataset, launch.layout, _say)
    elif recipe.data_source == "datasets_cache":
        pins = pins_of(recipe.dataset, launch.layout)
        ensure_text_cache(recipe.dataset.name, pins, launch.layout, _say)
    elif not launch.data.is_dir():
        raise DlbhpcError(
            f"the data {launch.data} is missing: "
            f"run python -m dlbhpc data prepare {recipe.dataset.name}"
        )


def prepare_run(
    launch: Launch,
    profile: str,
    save_every_seconds: int,
    grace_seconds: int,
    image: RunImage | None = None,
    teacher_run: Path | None = None,
) -> Run:
    """Verify the inputs of a launch and make its launch record; writes none of its output.

    ``teacher_run`` is the folder of the unfinished run that the teacher is to come from.
    Raises DlbhpcError naming the input that is missing or is not what it must be.
    """
    manifest = verify_inputs(launch, image, teacher_pending=teacher_run is not None)
    ensure_data(launch)
    if teacher_run is not None:
        teacher: str | None = pending_teacher(teacher_run)
    elif (teacher := teacher_digest(launch)) is not None:
        if not _began_with(launch, teacher):
            _verify_base_run(launch, teacher)
        check_launch_teacher(launch)
    plan_sha256, total_steps, milestones = _plan(launch, manifest)
    upstream = launch.recipe.upstream
    contract = {
        "plan_sha256": plan_sha256,
        "schema_sha256": manifest.schema_sha256,
        "manifest_sha256": manifest.sha256,
        "world": launch.geometry.world,
        "objective": upstream.objective or f"{upstream.name}@{upstream.commit}",
        "seed": launch.seed,
    }
    return Run(
        launch=launch,
        profile=profile,
        identity=known_identity(launch, manifest, teacher, image),
        contract=contract,
        total_steps=total_steps,
        milestones=milestones,
        save_every_seconds=save_every_seconds,
        grace_seconds=grace_seconds,
        image=image,
        teacher_run=teacher_run,
    )


def check_same_inputs(run: Run, manifest: Manifest) -> None:
    """Refuse an attempt whose inputs are no longer those that its run's identity names.

    Raises DlbhpcError naming what differs.
    """
    launch = run.launch
    teacher = teacher_digest(launch, begun_with=run.identity.get("teacher"))
    now = known_identity(launch, manifest, teacher, run.image)
    if launch.recipe.upstream.commit is None:
        now["source_commit"] = bundled_commit()
    changed = [
        f"{name}: {_short(run.identity.get(name))} then, {_short(now[name])} now"
        for name in _INPUTS
        if run.identity.get(name) != now[name]
    ]
    if changed:
        raise DlbhpcError(
            f"the run {launch.output.folder} began with other inputs ({'; '.join(changed)}): put "
            "back what it began with and submit it again, or start another with --output"
        )


def planned_steps(launch: Launch) -> int | None:
    """The last optimizer step of a launch; None where it follows from data that is not there.

    Raises DlbhpcError for a geometry that cannot take the data in whole steps.
    """
    if launch.recipe.steps is not None and launch.recipe.upstream.commit is not None:
        return launch.recipe.steps
    dataset = launch.recipe.dataset
    try:
        manifest = read_manifest(launch.manifest, dataset.name, dataset.sequence_length)
    except DlbhpcError:
        return launch.recipe.steps
    return _plan(launch, manifest)[1]


def _plan(launch: Launch, manifest: Manifest) -> tuple[str, int, tuple[int, ...]]:
    """Digest, last step and milestones of the run's plan: one epoch, or a number of steps."""
    recipe, geometry = launch.recipe, launch.geometry
    if recipe.upstream.commit is None:
        # The bundled upstream pads and drops nothing, a trial of a few steps included.
        epoch = epoch_plan(
            manifest.split("train").samples,
            geometry.world,
            geometry.per_device_batch,
            geometry.accumulation,
        )
        if recipe.steps is None:
            return epoch.sha256, epoch.steps, epoch.quarter_steps
    assert recipe.steps is not None, "only the bundled recipe trains for one epoch"
    steps = step_plan(recipe.steps, recipe.global_batch, recipe.milestone_every)
    milestones = {*steps.milestones, recipe.selected_step or recipe.steps}
    # An upstream that makes a step more also saves at each milestone a step later.
    extra = recipe.upstream.extra_steps
    return steps.sha256, steps.steps + extra, tuple(sorted(step + extra for step in milestones))


def _began_with(launch: Launch, teacher: str) -> bool:
    """Whether the run that is there already was submitted with this teacher, and so proved it."""
    output = launch.output
    return output.run.exists() and read_run(output).identity.get("teacher") == teacher


def _verify_base_run(launch: Launch, sha256: str) -> None:
    """Refuse the base recipe's own result unless its run is complete and names this very file.

    A checkpoint from elsewhere, which ``--teacher`` names, needs no run.
    """
    recipe, teacher = launch.recipe, launch.recipe.teacher
    assert teacher is not None and launch.teacher is not None, "only a distilled recipe has one"
    trial = recipe.trial is not None
    base = OutputLayout(launch.layout.run_folder(recipe.dataset.name, teacher.recipe, trial=trial))
    if not launch.teacher.is_relative_to(base.folder):
        return
    if not base.run.exists():
        raise DlbhpcError(
            f"nothing says where {launch.teacher} is from: {base.folder} holds no run of "
            f"{teacher.recipe}. Add --with-teacher to train it, or keep a checkpoint of your own "
            "in another folder of the project and name it with --teacher"
        )
    run = read_run(base)
    trained = (run.launch.recipe.name, run.launch.recipe.dataset.name)
    if trained != (teacher.recipe, recipe.dataset.name) or (run.launch.trial is not None) != trial:
        raise DlbhpcError(
            f"{base.folder} holds a run of {' on '.join(trained)}, the teacher of {recipe.name} is "
            f"{teacher.recipe} on {recipe.dataset.name}: name a checkpoint elsewhere with --teacher"
        )
    # The run may have been made in another place: only the name in its folder counts.
    selected = run.launch.selected_checkpoint.relative_to(run.launch.output.folder)
    if launch.teacher != base.folder / selected:
        return
    completed = completion.read_completed(base)
    if completed is None:
        raise DlbhpcError(
            f"the run {base.folder} is not complete, so {launch.teacher} is not its result: "
            f"submit {teacher.recipe} again, or name another checkpoint with --teacher"
        )
    if completed["checkpoint_sha256"] != sha256:
        raise DlbhpcError(
            f"{launch.teacher}: sha256 differs from that in {base.completed}, expected "
            f"{completed['checkpoint_sha256']}, found {sha256}: it is damaged or was replaced"
        )


def _say(text: str) -> None:
    # Standard output is spoken for where an attempt begins.
    print(f"dlbhpc: {text}", file=sys.stderr, flush=True)


def _short(value: object) -> str:
    return str(value)[:20]
