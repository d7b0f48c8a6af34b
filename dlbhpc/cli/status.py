"""``dlbhpc status``: one table over all runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlbhpc.layout import OutputLayout
    from dlbhpc.scheduler.submission import Jobs

_COLUMNS = ("run", "state", "job", "step", "attempts", "last_end")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")
    parser.add_argument("--json", action="store_true", help="a list of JSON objects")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.cli.runs import find_runs
    from dlbhpc.layout import Layout
    from dlbhpc.scheduler.submission import Jobs

    layout = Layout.at(args.root)
    jobs = Jobs()
    rows = [_row(layout.root, output, jobs) for output in find_runs(layout)]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    if not rows:
        print(f"no runs under {layout.checkpoints}: `dlbhpc submit` starts one")
        return 0
    table = [_COLUMNS, *(tuple(str(row[column]) for column in _COLUMNS) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(map(str.ljust, line, widths)).rstrip())
    return 0


def _row(root: Path, output: OutputLayout, jobs: Jobs) -> dict[str, Any]:
    from dlbhpc.cli.runs import state_of
    from dlbhpc.errors import DlbhpcError

    name = str(output.folder.relative_to(root))
    try:
        state = state_of(output, jobs)
    except DlbhpcError as error:
        # One damaged run must not hide the others.
        return dict.fromkeys(_COLUMNS, "-") | {"run": name, "state": f"damaged: {error}"}
    ended = [attempt.reason for attempt in state.attempts if attempt.reason]
    return {
        "run": name,
        "state": state.state,
        "job": state.job_id or "-",
        "step": f"{state.step}/{state.total}",
        "attempts": len(state.attempts),
        "last_end": ended[-1] if ended else "-",
    }
