"""``dlbhpc logs``: print the log of a run."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dlbhpc.cli.runs import add_run_argument

    add_run_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")


def run(args: argparse.Namespace) -> int:
    import time

    from dlbhpc.cli.follow import Tail
    from dlbhpc.cli.runs import find_run, state_of
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.layout import Layout
    from dlbhpc.scheduler.submission import Watch, log_path

    output = find_run(args.run, Layout.at(args.root))
    path = log_path(output, state_of(output).job_id)
    if not path.exists():
        raise DlbhpcError(f"there is no log {path}: the job has not begun")
    tail, watch = Tail(path), Watch(output)
    alive = True
    while alive:
        alive = args.follow and watch.alive()
        for line in tail.lines():
            print(line)
        sys.stdout.flush()
        if alive:
            time.sleep(0.2)
    return 0
