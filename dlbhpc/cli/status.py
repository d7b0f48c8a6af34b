"""``dlbhpc status``: one table over all runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlbhpc.scheduler.overview import Damaged, RunState

_COLUMNS = {
    "run": "run",
    "recipe": "recipe",
    "dataset": "dataset",
    "state": "state",
    "job": "job",
    "progress": "step",
    "attempts": "attempts",
    "last_end": "last end",
    "eta": "ETA",
}
"""The table's columns: key of the row, and heading."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")
    parser.add_argument("--json", action="store_true", help="a list of JSON objects, with times")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.layout import Layout
    from dlbhpc.run.record import run_folders
    from dlbhpc.scheduler.overview import overview

    layout = Layout.at(args.root)
    rows = [_row(layout.root, found) for found in overview(run_folders(layout))]
    if args.json:
        print(json.dumps(rows, indent=1))
    elif rows:
        print("\n".join(_table(rows)))
    else:
        print(f"no runs under {layout.checkpoints}: `dlbhpc submit` starts one")
    return 0


def _row(root: Path, found: RunState | Damaged) -> dict[str, Any]:
    """What a machine reads; times in seconds since the epoch, None where unknown."""
    from dlbhpc.scheduler.overview import Damaged

    if isinstance(found, Damaged):
        # One damaged run must not hide the others.
        name = str(found.output.folder.relative_to(root))
        return {"run": name, "state": "damaged", "note": found.error}
    now, last = found.glance, found.glance.last
    running = found.state.name == "running"
    return {
        "run": str(now.output.folder.relative_to(root)),
        "recipe": now.recipe,
        "dataset": now.dataset,
        "trial": now.trial,
        "state": found.state.name,
        "note": "; ".join(filter(None, (found.state.note, _behind(found.links)))),
        "job": found.job_id or None,
        "links": list(found.links),
        "slurm_state": found.slurm_state,
        "slurm_reason": found.slurm_reason,
        "step": now.step,
        "total_steps": now.total,
        "attempts": now.attempt_count,
        "last_end": found.state.ended_as or now.last_end,
        "steps_per_second": now.pace,
        "training_seconds_left": now.seconds_left,
        "eta_seconds": now.seconds_left if running else None,
        "attempt_begun": last.begun if last else None,
        "attempt_ended": last.ended if last else None,
        "last_progress": last.told if last else None,
    }


def _behind(links: Sequence[str]) -> str:
    return f"behind it: {', '.join(links)}" if links else ""


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines for a reader: the table, then what there is to do or to know."""
    from dlbhpc.cli.follow import duration

    cells = [tuple(_COLUMNS.values())]
    for row in rows:
        eta, step = row.get("eta_seconds"), row.get("step")
        shown = row | {
            "progress": None if step is None else f"{step}/{row['total_steps']}",
            "eta": None if eta is None else duration(eta),
        }
        values = (shown.get(key) for key in _COLUMNS)
        cells.append(tuple("-" if value is None else str(value) for value in values))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    notes = [f"{row['run']}: {row['note']}" for row in rows if row["note"]]
    return [*lines, *([""] if notes else []), *notes]
