"""``dlbhpc report``: a run in a few lines: attempts, steps repeated, evaluation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dlbhpc.errors import DlbhpcError
from dlbhpc.files import read_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dlbhpc.cli.runs import add_run_argument

    add_run_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    from dlbhpc.cli.runs import find_run
    from dlbhpc.layout import Layout

    report = report_of(find_run(args.run, Layout.at(args.root)))
    print(json.dumps(report, indent=1) if args.json else text_of(report))
    return 0


def report_of(output: Any) -> dict[str, Any]:
    """What happened to a run, as one object."""
    from dlbhpc.run.completion import read_completed
    from dlbhpc.run.history import read_attempts, steps_repeated
    from dlbhpc.scheduler.overview import run_state

    now = run_state(output)
    attempts = read_attempts(output)
    completed = read_completed(output)
    return {
        "run": str(output.folder),
        "state": now.state.name,
        "note": now.state.note,
        "job": now.job_id or None,
        "step": now.glance.step,
        "total_steps": now.glance.total,
        "attempts": [
            {
                "attempt": attempt.number,
                "from_step": attempt.resumed_from,
                "to_step": attempt.reached,
                "end": attempt.reason,
            }
            for attempt in attempts
        ],
        "steps_repeated": steps_repeated(attempts),
        "evaluations": [
            _evaluation(path) for path in sorted(output.evaluation.glob("step-*.json"))
        ],
        "checkpoint": completed and str(output.folder / completed["checkpoint"]),
    }


def text_of(report: dict[str, Any]) -> str:
    """The report for a reader."""
    lines = [
        f"{report['run']}: {report['state']}, step {report['step']}/{report['total_steps']}",
        *([f"  {report['note']}"] if report["note"] else []),
        *(
            f"  attempt {item['attempt']}: steps {item['from_step']} to {item['to_step']}, "
            f"{item['end'] or 'no end recorded'}"
            for item in report["attempts"]
        ),
        f"  optimizer steps repeated: {report['steps_repeated']}",
    ]
    for item in report["evaluations"]:
        lines.append(f"  validation perplexity at step {item['step']}: {item['val_ppl']:.1f}")
    for item in report["evaluations"]:
        if item.get("sample"):
            lines += ["  sampled text:", *(f"    {line}" for line in item["sample"].splitlines())]
    if report["checkpoint"]:
        lines.append(f"  checkpoint: {report['checkpoint']}")
    return "\n".join(lines)


def _evaluation(path: Path) -> dict[str, Any]:
    value = read_json(path)
    sample = value.get("sample")
    sound = isinstance(value.get("step"), int) and isinstance(value.get("val_ppl"), float)
    if not sound or not isinstance(sample, (str, type(None))):
        raise DlbhpcError(f"{path} is damaged: remove it, and submit again to evaluate anew")
    return value
