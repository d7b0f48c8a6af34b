"""From a launch to a run: its inputs are verified, and what follows from them is computed."""

from __future__ import annotations

from typing import Any

from dlbhpc.command import Launch, student_init_snapshot
from dlbhpc.data.manifest import Manifest, read_manifest
from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import epoch_plan, step_plan
from dlbhpc.images.task import RunImage
from dlbhpc.images.use import check_image
from dlbhpc.inputs.source import verify_checkout
from dlbhpc.run.files import digest, file_digest
from dlbhpc.run.identity import identity_command
from dlbhpc.run.record import Run

_PROSE = frozenset(
    "summary evidence disclosures unverified resume trial_defaults num_workers "
    "refused_datasets".split()
)
"""What a recipe says about itself, or that does not change the result: outside the identity."""


def verify_inputs(launch: Launch, image: RunImage | None) -> Manifest:
    """Verify source, data and teacher as far as a look can; returns the data's manifest.

    A run that goes through an image brings its source in it.
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
    if not launch.data.is_dir():
        raise DlbhpcError(
            f"the data {launch.data} is missing: "
            f"run python -m dlbhpc data prepare {recipe.dataset.name}"
        )
    if launch.teacher is not None and not launch.teacher.is_file():
        raise DlbhpcError(
            f"the teacher {launch.teacher} is missing: train it first, or name a checkpoint with "
            "--teacher (--with-teacher, which will chain the two, is not in this version)"
        )
    if launch.adapted_teacher is not None and not launch.adapted_teacher.is_file():
        raise DlbhpcError(
            f"the adapted teacher {launch.adapted_teacher} is missing, and this version cannot "
            f"adapt {launch.teacher} yet"
        )
    student_init_snapshot(launch)
    return manifest


def prepare_run(
    launch: Launch,
    profile: str,
    save_every_seconds: int,
    grace_seconds: int,
    image: RunImage | None = None,
) -> Run:
    """Verify the inputs of a launch and make its launch record; writes nothing.

    Raises DlbhpcError naming the input that is missing or is not what it must be.
    """
    manifest = verify_inputs(launch, image)
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
        identity=_known_identity(launch, manifest, image),
        contract=contract,
        total_steps=total_steps,
        milestones=milestones,
        save_every_seconds=save_every_seconds,
        grace_seconds=grace_seconds,
        image=image,
    )


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
    return steps.sha256, steps.steps, steps.milestones


def _known_identity(launch: Launch, manifest: Manifest, image: RunImage | None) -> dict[str, Any]:
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
        "teacher": file_digest(launch.teacher) if launch.teacher else None,
        "adapter_version": None,
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
