"""What the launcher tells the training process about the attempt that it belongs to."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dlbhpc.errors import DlbhpcError

ATTEMPT_FILE_VARIABLE = "DLBHPC_ATTEMPT_FILE"
"""Environment variable with the absolute path of the attempt's file."""


class ContextError(DlbhpcError):
    """The attempt's file is missing or is not what this version reads."""


@dataclasses.dataclass(frozen=True)
class AttemptContext:
    """One attempt, as the launcher wrote it before it started the upstream.

    ``total_steps`` counts optimizer steps. The milestones are the steps of ``milestones`` and the
    multiples of ``milestone_every``. ``save_every_seconds`` bounds what a crash can lose;
    ``resumed_from`` is the step that the upstream is to load, None on a fresh start.
    """

    attempt: int
    output: Path
    steps_dir: Path
    stop_file: Path
    progress_file: Path
    events_file: Path
    contract: Mapping[str, Any]
    nodes: int
    gpus_per_node: int
    total_steps: int
    milestones: frozenset[int]
    milestone_every: int | None
    save_every_seconds: float
    keep_last: int
    export_bf16: bool
    resumed_from: int | None

    @property
    def world(self) -> int:
        """Processes that train together, one per device."""
        return self.nodes * self.gpus_per_node

    def is_milestone(self, step: int) -> bool:
        """Whether this step's directory is kept for good."""
        return step in self.milestones or (
            self.milestone_every is not None and step % self.milestone_every == 0
        )

    @classmethod
    def from_environment(cls) -> AttemptContext:
        """Read the file that the environment names.

        Raises ContextError where the variable is unset or the file is not sound.
        """
        path = os.environ.get(ATTEMPT_FILE_VARIABLE)
        if not path:
            raise ContextError(
                f"{ATTEMPT_FILE_VARIABLE} is not set: the step callback runs inside an attempt. "
                "Start the run with 'dlbhpc submit', or leave the callback out"
            )
        return cls.from_file(Path(path))

    @classmethod
    def from_file(cls, path: Path) -> AttemptContext:
        """Read an attempt's file; keys that this version does not know are ignored."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ContextError(f"cannot read the attempt's file {path}: {error}") from error
        if not isinstance(content, dict):
            raise ContextError(f"the attempt's file {path} does not hold a JSON object")
        found = _Values(path, content)
        milestones = found.get("milestones", list) or []
        if not all(type(step) is int for step in milestones):
            raise ContextError(f"the attempt's file {path} holds milestones that are no numbers")
        return cls(
            attempt=found.size("attempt"),
            output=Path(found.need("output", str)),
            steps_dir=Path(found.need("steps_dir", str)),
            stop_file=Path(found.need("stop_file", str)),
            progress_file=Path(found.need("progress_file", str)),
            events_file=Path(found.need("events_file", str)),
            contract=found.need("contract", dict),
            nodes=found.size("nodes"),
            gpus_per_node=found.size("gpus_per_node"),
            total_steps=found.size("total_steps"),
            milestones=frozenset(milestones),
            milestone_every=found.size("milestone_every") if found.has("milestone_every") else None,
            save_every_seconds=float(found.need("save_every_seconds", int, float)),
            keep_last=found.size("keep_last"),
            export_bf16=found.need("export_bf16", bool),
            resumed_from=found.size("resumed_from") if found.has("resumed_from") else None,
        )


@dataclasses.dataclass(frozen=True)
class _Values:
    """Typed access to the object in an attempt's file."""

    path: Path
    content: Mapping[str, Any]

    def has(self, name: str) -> bool:
        return self.content.get(name) is not None

    def get(self, name: str, *kinds: type) -> Any:
        return self.need(name, *kinds) if self.has(name) else None

    def need(self, name: str, *kinds: type) -> Any:
        value = self.content.get(name)
        # By exact type: True is an int to isinstance.
        if type(value) not in kinds:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ContextError(
                f"the attempt's file {self.path} holds {value!r} as {name!r}, not {wanted}"
            )
        return value

    def size(self, name: str) -> int:
        value = cast(int, self.need(name, int))
        if value < 1:
            raise ContextError(f"the attempt's file {self.path}: {name!r} is {value}, below 1")
        return value
