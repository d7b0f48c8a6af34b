"""What a submission asks for, and the launch that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlbhpc.geometry import Geometry
from dlbhpc.layout import Layout, OutputLayout
from dlbhpc.recipe import Departure, Recipe, Trial
from dlbhpc.records import from_plain, to_plain

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Request:
    """A submission as the user wrote it; None is what was left out.

    ``trial`` holds the sizes given with ``--trial``: empty for a plain one, None for no trial.
    ``locked`` holds the values of flags that name locked numbers (keys of LOCKED_FLAGS).
    ``accelerator`` (``cuda`` or ``cpu``) is what a trial trains on: a locked run needs GPUs.
    """

    recipe: str
    dataset: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    per_device_batch: int | None = None
    teacher: Path | None = None
    output: Path | None = None
    seed: int | None = None
    student_init: str | None = None
    resume: bool = True
    trial: Mapping[str, int] | None = None
    root: Path | None = None
    locked: Mapping[str, object] = field(default_factory=dict)
    num_workers: int | None = None
    accelerator: str = "cuda"


@dataclass(frozen=True)
class Launch:
    """Everything that decides how the upstream is started; complete, and plain enough for JSON.

    ``argv`` is the command as it is recorded and as the identity sees it. ``departures`` have their
    placeholders filled in. ``adapted_teacher`` is None where the teacher is used as it is.
    """

    recipe: Recipe
    geometry: Geometry
    layout: Layout
    output: OutputLayout
    source: Path
    source_commit: str
    entrypoint: Path
    data: Path
    manifest: Path
    teacher: Path | None
    adapted_teacher: Path | None
    selected_checkpoint: Path
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    departures: tuple[Departure, ...]
    seed: int
    student_init: str | None
    resume: bool
    num_workers: int

    @property
    def trial(self) -> Trial | None:
        return self.recipe.trial

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_json(cls, data: object, where: str = "the launch record") -> Launch:
        """Raises :class:`dlbhpc.records.RecordError` for data of another shape."""
        return from_plain(cls, data, where)


def dry_run_object(launch: Launch, sbatch: str | None) -> dict[str, Any]:
    """What ``submit --dry-run --json`` prints; ``sbatch`` is the text of the batch script."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dry_run": True,
        "model": launch.recipe.name,
        "dataset": launch.recipe.dataset.name,
        "source": str(launch.source),
        "source_commit": launch.source_commit,
        "entrypoint": str(launch.entrypoint),
        "data": str(launch.data),
        "teacher": to_plain(launch.teacher),
        "adapted_teacher": to_plain(launch.adapted_teacher),
        "output": str(launch.output.folder),
        "command": list(launch.argv),
        "effective_global_batch_size": launch.geometry.global_batch,
        "gradient_accumulation": launch.geometry.accumulation,
        "recipe": launch.recipe.to_json(),
        "departures": [departure.to_json() for departure in launch.departures],
        "sbatch": sbatch,
    }
