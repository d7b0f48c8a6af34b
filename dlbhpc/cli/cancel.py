"""``dlbhpc cancel``: end a run; what it had reached is saved, and it is not requeued."""

from __future__ import annotations

import argparse

from dlbhpc.cli.preempt import add_arguments, ask

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    return ask(args, "cancel")
