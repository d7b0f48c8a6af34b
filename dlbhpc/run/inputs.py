"""From a launch to a run: its inputs are verified, and what follows from them is computed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dlbhpc.command import Launch, student_init_snapshot
from dlbhpc.data.bridge import ensure_bridge
from dlbhpc.data.manifest import Manifest, read_manifest
from dlbhpc.data.text_cache import ensure_text_cache
from dlbhpc.data.trial import pins_of
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import digest, file_digest
from dlbhpc.geometry import epoch_plan, step_plan
from dlbhpc.images.task import RunImage
from dlbhpc.images.use import check_image
from dlbhpc.inputs.source import verify_checkout
from dlbhpc.inputs.teacher.adapt import version_digest
from dlbhpc.inputs.teaching import check_launch_teacher
from dlbhpc.layout import OutputLayout
from dlbhpc.run import completion
from dlbhpc.run.identity import identity_command
from dlbhpc.run.record import Run, read_run
from dlbhpc.run.teacher import pending_teacher

_PROSE = frozenset(
    "summary evidence disclosures unverified resume trial_defaults num_workers "
    "refused_datasets".split()
)
"""What a recipe says about itself, or that does not change the result: outside the identity."""


def verify_inputs(
    launch: Launch, image: RunImage | None, teacher_pending: bool = False
) -> Manifest:
    """Verify source, data and teacher as far as a look can; returns the data's manifest.

    A run that goes through an image brings its source in it. The upstream's cache is written from
    the prepared data where it is not current. A teacher that is still in training
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
    if launch.teacher is not None and not teacher_pending and not launch.teacher.is_file():
        raise DlbhpcError(
            f"the teacher {launch.teacher} is missing: add --with-teacher to train it first, or "
            "name a checkpoint with --teacher"
        )
    student_init_snapshot(launch)
    if recipe.data_source == "training_cache":
        ensure_bridge(upstream.name, recipe.dataset, launch.layout, _say)
    elif recipe.data_source == "datasets_cache":
        pins = pins_of(recipe.dataset, launch.layout)
        ensure_text_cache(recipe.dataset.name, pins, launch.layout, _say)
    elif not launch.data.is_dir():
        raise DlbhpcError(
            f"the data {launch.data} is missing: "
            f"run python -m dlbhpc data prepare {recipe.dataset.name}"
        )
    return manifest


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
    if teacher_run is not None:
        teacher: str | None = pending_teacher(teacher_run)
    elif launch.teacher is not None:
        teacher = file_digest(launch.teacher)
        _verify_base_run(launch, teacher)
        check_launch_teacher(launch)
    else:
        teacher = None
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
        identity=_known_identity(launch, manifest, teacher, image),
        contract=contract,
        total_steps=total_steps,
        milestones=milestones,
        save_every_seconds=save_every_seconds,
        grace_seconds=grace_seconds,
        image=image,
        teacher_run=teacher_run,
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
    return steps.sha256, steps.steps + recipe.upstream.extra_steps, tuple(sorted(milestones))


def _verify_base_run(launch: Launch, sha256: str) -> None:
    """Refuse the base recipe's own result unless its run is complete and names this very file.

    An explicit checkpoint from elsewhere needs no run.
    """
    recipe, teacher = launch.recipe, launch.recipe.teacher
    assert teacher is not None and launch.teacher is not None, "only a distilled recipe has one"
    trial = recipe.trial is not None
    base = OutputLayout(launch.layout.run_folder(recipe.dataset.name, teacher.recipe, trial=trial))
    if not launch.teacher.is_relative_to(base.folder) or not base.run.exists():
        return
    run = read_run(base)
    if launch.teacher != run.launch.selected_checkpoint:
        return
    trained = (run.launch.recipe.name, run.launch.recipe.dataset.name)
    if trained != (teacher.recipe, recipe.dataset.name) or (run.launch.trial is not None) != trial:
        raise DlbhpcError(
            f"{base.folder} holds a run of {' on '.join(trained)}, the teacher of {recipe.name} is "
            f"{teacher.recipe} on {recipe.dataset.name}: name a checkpoint with --teacher"
        )
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


def _adapter_version(launch: Launch) -> str | None:
    """The digest of our own code that takes part in the result beside the upstream's."""
    parts = {}
    if launch.adapted_teacher is not None:
        parts["teacher"] = version_digest()
    if launch.recipe.adapter is not None:
        parts["entrypoint"] = file_digest(launch.entrypoint)
    return digest(parts) if parts else None


def _say(text: str) -> None:
    # Standard output is spoken for where an attempt begins.
    print(f"dlbhpc: {text}", file=sys.stderr, flush=True)


def _known_identity(
    launch: Launch, manifest: Manifest, teacher: str | None, image: RunImage | None
) -> dict[str, Any]:
    """The fields of the identity that need no composed configuration."""
    geometry = launch.geometry
    weights = student_init_snapshot(launch)
    return {
        "recipe": digest(
            {key: value for key, value in launch.recipe.to_json().items() if key not in _PROSE}
        ),
        "command": identity_command(launch.argv),
        "working_directory": str(launch.source),
        "source_commit": launch.source_commit,
        "data": manifest.sha256,
        "teacher": teacher,
        "adapter_version": _adapter_version(launch),
        # The commit that a branch of published weights resolved to when they were fetched.
        "student_weights": weights.name if weights else None,
        "image": image.content_sha256 if image else None,
        "seed": launch.seed,
        "geometry": {
            "nodes": geometry.nodes,
            "gpus_per_node": geometry.gpus_per_node,
            "per_device_batch": geometry.per_device_batch,
            "accumulation": geometry.accumulation,
        },
        "trial": launch.trial is not None,
    }
