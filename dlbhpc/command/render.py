"""Rendering a launch: its tables of overrides and variables, with the placeholders filled in."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dlbhpc.command.launch import Launch
from dlbhpc.command.overrides import fill, override
from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import CHECKOUT, Layout, OutputLayout
from dlbhpc.recipe import Dataset, Recipe, Value


def render(launch: Launch, datasets: Iterable[Dataset]) -> Launch:
    """The launch with its argv, environment and departures. Pure.

    ``datasets`` are all there are: a recipe may name another dataset's tokenizer. Raises
    :class:`DlbhpcError` for a placeholder that does not exist or that this recipe has no value for.
    """
    recipe = launch.recipe
    values = _placeholders(launch, datasets)
    departures = tuple(
        replace(departure, value=fill(departure.key, departure.value, values))
        for departure in recipe.departures
    )
    overrides = {key: fill(key, value, values) for key, value in recipe.overrides.items()}
    environment = {key: str(fill(key, value, values)) for key, value in recipe.environment.items()}
    for departure in departures:
        if departure.kind == "environment":
            environment[departure.key] = str(departure.value)
        else:
            overrides[departure.key] = departure.value
    environment["PYTHONPATH"] = _python_path(launch)
    words = [override(key, value) for key, value in overrides.items()]
    return replace(
        launch,
        argv=("python", "-u", str(launch.entrypoint), *words),
        environment=environment,
        departures=departures,
    )


def selected_checkpoint(recipe: Recipe, output: OutputLayout) -> Path:
    """Where a completed run of the recipe publishes its result."""
    every = recipe.milestone_every
    values = _known(
        selected_step=recipe.selected_step or recipe.steps,
        milestones=recipe.steps // every if recipe.steps and every else None,
    )
    return output.folder / str(fill("selected_checkpoint", recipe.selected_checkpoint, values))


def _placeholders(launch: Launch, datasets: Iterable[Dataset]) -> dict[str, Value]:
    recipe, geometry, layout = launch.recipe, launch.geometry, launch.layout
    tokenizer = recipe.dataset.tokenizer
    return {
        # Paths
        "root": str(layout.root),
        "source": str(launch.source),
        "data": str(launch.data),
        "hf_home": str(layout.hf_home),
        "datasets_cache": str(layout.hf_datasets_cache),
        "tokenizer": str(_tokenizer(recipe.dataset, layout)),
        **{f"tokenizer_{other.name}": str(_tokenizer(other, layout)) for other in datasets},
        "output": str(launch.output.folder),
        "temporary": str(launch.output.temporary),
        "last_checkpoint": str(launch.output.last_checkpoint),
        # The recipe's numbers
        "dataset": recipe.dataset.name,
        "sequence_length": recipe.dataset.sequence_length,
        "base_vocab": recipe.dataset.base_vocab,
        "learning_rate": recipe.learning_rate,
        "warmup_steps": recipe.warmup_steps,
        "optimizer": recipe.optimizer,
        "precision": recipe.precision,
        # The geometry
        "global_batch": geometry.global_batch,
        "per_device_batch": geometry.per_device_batch,
        "accumulation": geometry.accumulation,
        "gpus_per_node": geometry.gpus_per_node,
        "nodes": geometry.nodes,
        # The request
        "resume": launch.resume,
        "seed": launch.seed,
        "num_workers": launch.num_workers,
        **_known(
            steps=recipe.steps,
            milestone_every=recipe.milestone_every,
            steps_per_round=recipe.steps_per_round,
            tokenizer_name=tokenizer.repository if tokenizer else None,
            teacher=_path(launch.teacher),
            adapted_teacher=_path(launch.adapted_teacher),
            student_init=launch.student_init,
        ),
        **({**recipe.trial.sizes, "accelerator": recipe.trial.accelerator} if recipe.trial else {}),
    }


def _tokenizer(dataset: Dataset, layout: Layout) -> Path:
    if dataset.tokenizer is None:
        return layout.processed(dataset.processed) / "tokenizer"
    return layout.snapshot(dataset.tokenizer.repository, dataset.tokenizer.revision)


def _python_path(launch: Launch) -> str:
    root = launch.recipe.upstream.import_root
    # The upstream's own modules come first; the checkout is there for what we inject.
    roots = [launch.source / root] if root is not None else []
    paths = [str(path) for path in (*roots, CHECKOUT)]
    for path in paths:
        if os.pathsep in path:
            raise DlbhpcError(f"{path} contains {os.pathsep!r}, which PYTHONPATH cannot hold")
    return os.pathsep.join(paths)


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _known(**values: Value) -> dict[str, Value]:
    """Without those that this recipe does not have: asking for one of them is an error."""
    return {name: value for name, value in values.items() if value is not None}
