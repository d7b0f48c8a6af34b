"""Start a run afresh: what its earlier attempts left is moved away, and nothing is deleted."""

from __future__ import annotations

from pathlib import Path

from dlbhpc.layout import OutputLayout
from dlbhpc.steps.names import FENCE


def set_aside(output: OutputLayout) -> Path | None:
    """Start afresh (--no-resume): move what earlier attempts left away; nothing is deleted."""
    # Attempts first: their numbers must not be given out again. The fence stays where it is, or a
    # ghost of an earlier attempt would count as the newest.
    steps = sorted(path for path in output.steps.glob("*") if path.name != FENCE)
    leftovers = [
        path
        for path in (
            output.attempts,
            *steps,
            output.checkpoints,
            *output.upstream_saves,
            output.evaluation,
            output.composed_config,
            output.provenance,
        )
        if path.exists()
    ]
    if not leftovers:
        return None
    number = 1
    while (aside := output.folder / "set_aside" / f"{number:03d}").exists():
        number += 1
    aside.mkdir(parents=True)
    for path in leftovers:
        target = aside / path.relative_to(output.folder)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    return aside
