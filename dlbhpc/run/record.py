"""The launch record of a run: everything that an attempt needs, on whichever host it begins."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import read_json, write_bytes, write_json
from dlbhpc.images.task import RunImage
from dlbhpc.layout import Layout, OutputLayout
from dlbhpc.records import from_plain, to_plain

SCHEMA_VERSION = 1
KEEP_LAST = 2
"""Newest step directories that retention keeps besides the milestones: one may turn out torn."""


@dataclass(frozen=True)
class Run:
    """One run as it was submitted.

    ``identity`` holds the fields of the identity that are known before the upstream composes its
    configuration. ``contract`` is what every step directory of the run must carry. ``total_steps``
    is the last optimizer step; ``milestones`` are the steps that retention never removes.
    ``retries`` is how often a submission runs again after the upstream failed. ``cluster`` is the
    whole cluster profile as it was, with what flags had changed; empty in records of before.
    ``image`` is what it goes through, None where the host's own Python trains. ``save_every_why``
    says what the saving interval was chosen from. ``teacher_run`` is the folder of the run that the
    teacher comes from, where that was not complete yet.
    """

    launch: Launch
    profile: str
    identity: Mapping[str, Any]
    contract: Mapping[str, Any]
    total_steps: int
    milestones: tuple[int, ...]
    save_every_seconds: int
    grace_seconds: int
    retries: int = 0
    cluster: Mapping[str, Any] = field(default_factory=dict)
    image: RunImage | None = None
    save_every_why: str = "the profile's"
    teacher_run: Path | None = None

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain


def write_records(run: Run) -> None:
    """Write run.json, recipe.json and launch_argv.json into the output folder."""
    output = run.launch.output
    recipe = {
        "recipe": run.launch.recipe.to_json(),
        "departures": [departure.to_json() for departure in run.launch.departures],
        "trial": run.launch.trial is not None,
    }
    write_json(output.recipe, recipe)
    write_bytes(output.launch_argv, (json.dumps(list(run.launch.argv), indent=1) + "\n").encode())
    # Last: a folder with run.json has all of its launch records.
    write_json(output.run, {"schema_version": SCHEMA_VERSION, "run": run.to_json()})


def read_run(output: OutputLayout) -> Run:
    """The run that was submitted into this folder; raises DlbhpcError when there is none."""
    if not output.run.exists():
        raise DlbhpcError(f"{output.folder} holds no run: {output.run.name} is missing")
    values = read_json(output.run)
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DlbhpcError(
            f"{output.run} has schema version {version!r}, this dlbhpc reads {SCHEMA_VERSION}: "
            "go on with the version that submitted the run"
        )
    return from_plain(Run, values.get("run"), str(output.run))


def run_folders(layout: Layout) -> list[OutputLayout]:
    """Every run under the root's checkpoints folder, in the order of their paths."""
    found = []
    for folder, below, names in os.walk(layout.checkpoints):
        if "run.json" in names:
            found.append(Path(folder))
            below.clear()  # a run's own folders may be many, and hold no other run
    return [OutputLayout(folder) for folder in sorted(found)]
