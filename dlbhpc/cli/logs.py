"""``dlbhpc logs``: print what a run's training printed."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbhpc.layout import OutputLayout
    from dlbhpc.run.log import LogPart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dlbhpc.cli.runs import add_run_argument

    add_run_argument(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument(
        "--attempt", type=int, metavar="K", help="only what attempt K printed (default: all)"
    )
    parser.add_argument(
        "--rank",
        type=int,
        default=0,
        metavar="R",
        help="what rank R of the newest attempt, or of K, printed (default: 0, the job's log)",
    )


def run(args: argparse.Namespace) -> int:
    import time

    from dlbhpc.cli.follow import Tail
    from dlbhpc.cli.runs import find_run
    from dlbhpc.layout import Layout
    from dlbhpc.scheduler.submission import Watch

    output = find_run(args.run, Layout.at(args.root))
    part = _part(output, args.attempt, args.rank)
    tail, watch = Tail(part.path, part.start, part.stop), Watch(output)
    alive = True
    while alive:
        alive = args.follow and part.stop is None and watch.alive()
        for line in tail.lines():
            print(line)
        sys.stdout.flush()
        if alive:
            time.sleep(0.2)
    if rest := tail.rest():
        print(rest)
    return 0


def _part(output: OutputLayout, attempt: int | None, rank: int) -> LogPart:
    """The file, and the part of it, that was asked for; raises DlbhpcError where it is not."""
    from dlbhpc.errors import DlbhpcError
    from dlbhpc.run.log import LogPart, attempt_numbers, log_part, rank_log
    from dlbhpc.scheduler.overview import run_state
    from dlbhpc.scheduler.submission import log_path

    numbers = attempt_numbers(output)
    if attempt is not None and attempt not in numbers:
        known = f"it has {', '.join(map(str, numbers))}" if numbers else "none has begun"
        raise DlbhpcError(f"{output.folder} has no attempt {attempt}: {known}")
    if rank != 0:
        if not numbers:
            raise DlbhpcError(f"{output.folder} has no attempt yet: no rank has printed anything")
        path = rank_log(output.attempt(attempt or numbers[-1]), rank)
        if not path.exists():
            raise DlbhpcError(
                f"there is no {path}: the attempt has no rank {rank}, or its tasks have not "
                "started; rank 0 prints to the job's log (without --rank)"
            )
        return LogPart(path, 0)
    if attempt is not None:
        part = log_part(output, attempt)
        if part is None:
            raise DlbhpcError(
                f"attempt {attempt} does not say where its log lies: without --attempt the whole "
                "log is printed"
            )
        return part
    now = run_state(output)
    last = now.glance.last
    recorded = log_part(output, last.number) if last and last.job_id == now.job_id else None
    path = recorded.path if recorded else log_path(output, now.job_id)
    if not path.exists():
        note = now.state.note or "the job has not begun"
        raise DlbhpcError(f"there is no log {path}: {note}")
    return LogPart(path, 0)
