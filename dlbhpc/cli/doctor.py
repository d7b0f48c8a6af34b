"""``dlbhpc doctor``: what this machine and its cluster mean for a run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbhpc.scheduler.findings import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dlbhpc.cli.profile_flags import add_profile_arguments

    parser.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")
    add_profile_arguments(parser)
    parser.add_argument("--json", action="store_true", help="a list of JSON objects")
    parser.add_argument(
        "--run-job",
        action="store_true",
        help="also run a job of a few seconds on two nodes: do they see the project root?",
    )


def run(args: argparse.Namespace) -> int:
    """Exit status 0 when nothing would lose work, 1 when something would."""
    from dlbhpc.cli.profile_flags import chosen_profile
    from dlbhpc.layout import Layout
    from dlbhpc.run.measured import worst_saves
    from dlbhpc.run.record import run_folders
    from dlbhpc.scheduler.doctor import examine
    from dlbhpc.scheduler.findings import PROBLEM

    layout = Layout.at(args.root)
    saves = worst_saves(run_folders(layout))
    findings = examine(layout.root, chosen_profile(args), saves, args.run_job)
    if args.json:
        rows = [{"check": name, **asdict(finding)} for name, finding in findings.items()]
        print(json.dumps(rows, indent=1))
    else:
        print("\n".join(_lines(findings)))
    return int(any(finding.level == PROBLEM for finding in findings.values()))


def _lines(findings: dict[str, Finding]) -> list[str]:
    lines = []
    width = max(map(len, findings))
    for name, finding in findings.items():
        lines.append(f"{finding.level:<8} {name:<{width}}  {finding.found}")
        indent = " " * (width + 11)
        lines.append(f"{indent}{finding.means}")
        if finding.change:
            lines.append(f"{indent}-> {finding.change}")
    return lines
