"""``dlbhpc teacher``: look into a teacher's checkpoint, and adapt it for a student."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlbhpc.layout import OutputLayout

_TRUST = (
    "load the checkpoint in the ordinary way. A checkpoint is a pickle, and a pickle may name any "
    "function to call: whoever made the file can run whatever they like as you, read and delete "
    "your files included. Without this flag nothing of it is run; it is needed only where the "
    "tensors are hidden inside objects of some library"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    adapt = actions.add_parser("adapt", help="make a student's adapted teacher (as its run does)")
    adapt.add_argument("--recipe", required=True, help="the student's recipe")
    adapt.add_argument("--dataset", help="default: the recipe's first")
    adapt.add_argument("--teacher", type=Path, help="default: the base recipe's completed run")
    adapt.add_argument("--output", type=Path, help="the student's run folder (default: its own)")
    adapt.add_argument(
        "--trial",
        nargs="?",
        const="",
        metavar="KEY=VALUE,…",
        help="for a trial of the student, of these sizes",
    )
    adapt.add_argument("--root", type=Path, metavar="DIR", help="project root (the checkout)")
    inspect = actions.add_parser("inspect", help="print what a checkpoint holds")
    inspect.add_argument("file", type=Path)
    inspect.add_argument("--json", action="store_true", help="one JSON object")
    for action in (adapt, inspect):
        action.add_argument("--trust-checkpoint", action="store_true", help=_TRUST)


def run(args: argparse.Namespace) -> int:
    if args.action == "inspect":
        from dlbhpc.inputs.teacher.inspection import inspect

        _print(inspect(args.file, trusted=args.trust_checkpoint), as_json=args.json)
        return 0
    return _adapt(args)


def _adapt(args: argparse.Namespace) -> int:
    from dlbhpc.command import Request, plan_launch
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.inputs.teaching import adapt_teacher
    from dlbhpc.recipe import parse_sizes

    launch = plan_launch(
        Request(
            recipe=args.recipe,
            dataset=args.dataset,
            teacher=args.teacher,
            output=args.output,
            trial=None if args.trial is None else parse_sizes(args.trial),
            root=args.root,
        )
    )
    if launch.teacher is None or launch.adapted_teacher is None:
        raise DlbhpcError(f"{args.recipe} adapts no teacher: it has none, or uses it as it is")
    output = launch.output
    _check_free(output)
    record = adapt_teacher(launch.recipe, launch.teacher, output, trusted=args.trust_checkpoint)
    print(f"{record['transformation']}: {launch.teacher}")
    print(f"  adapted teacher {output.adapted_teacher}")
    print(f"  provenance      {output.adapted_teacher_provenance}")
    return 0


def _check_free(output: OutputLayout) -> None:
    """Refuse a folder whose run has used its adapted teacher, or is using it."""
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.scheduler.submission import live_lease

    if output.completed.exists():
        raise DlbhpcError(
            f"{output.folder} holds a completed run, whose teacher stays as it is: "
            "name another folder with --output"
        )
    if (lease := live_lease(output)) is not None:
        raise DlbhpcError(
            f"{output.folder} belongs to {lease.owner}, which adapts its teacher itself: "
            "name another folder with --output"
        )


def _print(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=1))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {'-' if value is None else value}")
