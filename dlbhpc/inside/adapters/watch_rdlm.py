"""Runs a command of the pinned rdlm and watches it: it has no hooks, and exits 0 whatever happens.

The watcher publishes the snapshots that rdlm saves for preemptions, and its checkpoints, as step
directories; on a request to stop it ends rdlm and keeps the newest. It believes neither rdlm's exit
status nor a file's name: success is a snapshot of the last step. rdlm counts the updates made, and
makes one more than ``training.n_iters``.

What rdlm resumes: weights, optimizer, EMA and step. It begins its data and random numbers anew at
every start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

from dlbhpc.exit_status import FENCED, REQUEUE, STORAGE
from dlbhpc.inside.context import AttemptContext
from dlbhpc.inside.latch import StopLatch
from dlbhpc.inside.progress import EventLog
from dlbhpc.inside.snapshots import SnapshotPublisher
from dlbhpc.steps import Fenced, StepError, StorageError

POLL_SECONDS = 1.0
KILL_SECONDS = 10.0
"""How long rdlm may take to end when it is told to."""
FAILURES_BEFORE_LEAVING = 3
"""Publications in a row that may fail before training on would risk more than it gains."""


def resume_snapshot(context: AttemptContext) -> Path:
    """Lay the recovered state where rdlm looks for it; without one, nothing may lie there.

    What lies there then is moved aside: it may be all that is left.
    """
    snapshot = context.output / "checkpoints-meta" / "checkpoint.pth"
    if context.resumed_from is None:
        # Of unknown origin, or torn: rdlm would go on from it, or never start again.
        if snapshot.exists():
            snapshot.replace(snapshot.with_name(f"set-aside-{context.attempt:05d}.pth"))
    else:
        snapshot.parent.mkdir(exist_ok=True)
        (context.output / "checkpoints" / "last.ckpt").replace(snapshot)
    return snapshot


def watch(program: subprocess.Popen[bytes], latch: StopLatch, publisher: SnapshotPublisher) -> None:
    """Publish snapshots until the program ends, by itself or because it was asked to.

    A publication that fails is tried again; raises OSError or StepError at the third in a row, and
    at the last one.
    """
    failures = 0
    while program.poll() is None and latch.requested() is None:
        try:
            publisher.look()
            failures = 0
        except (OSError, StorageError) as error:
            failures += 1
            publisher.events.write("save_failed", error=str(error))
            if failures == FAILURES_BEFORE_LEAVING:
                raise
        time.sleep(POLL_SECONDS)
    end(program)
    publisher.look()


def verdict(status: int, request: Optional[str], published: int, total: int) -> int:
    """The status to leave with, from facts alone."""
    if published >= total:
        return 0
    if request is not None:
        return REQUEUE
    # Its 0 says nothing: it catches every exception, and the ranks that it lost raise one.
    return status if status != 0 else 1


def main() -> int:
    """Run ``main.py`` and the words that follow; the status that the attempt ends with."""
    context = AttemptContext.from_environment()
    events = EventLog(context.events_file, context.attempt)
    latch = StopLatch(context.stop_file)
    latch.install()
    snapshot = resume_snapshot(context)
    publisher = SnapshotPublisher(
        context,
        events,
        lambda: [snapshot, *(context.output / "checkpoints").glob("checkpoint_*.pth")],
    )
    publisher.leave_out_present()
    events.write("start", resumed_from=context.resumed_from, world=context.world)
    running = subprocess.Popen([sys.executable, "-u", *sys.argv[1:]], start_new_session=True)
    try:
        watch(running, latch, publisher)
    except Fenced as error:
        events.say(f"a newer attempt owns this run: {error}")
        return FENCED
    except (OSError, StepError) as error:
        events.say(f"a snapshot could not be published: {error}")
        return STORAGE
    finally:
        end(running)
    code = running.returncode
    request = latch.requested()
    status = verdict(
        128 - code if code < 0 else code, request, publisher.published, context.total_steps
    )
    if request is not None:
        events.write("stop", request=request, step=publisher.published, signals=latch.signals)
    if publisher.published >= context.total_steps:
        events.write("finished", step=publisher.published)
    events.say(
        f"rdlm ended with status {code}; step {publisher.published} of {context.total_steps} "
        "is kept"
    )
    events.write("leaving", status=status)
    return status


def end(program: subprocess.Popen[bytes]) -> None:
    """End the program and its ranks, which are in a process group of their own."""
    for number, patience in ((signal.SIGTERM, KILL_SECONDS), (signal.SIGKILL, None)):
        try:
            os.killpg(program.pid, number)
        except ProcessLookupError:
            pass
        try:
            program.wait(patience)
        except subprocess.TimeoutExpired:
            continue


if __name__ == "__main__":
    sys.exit(main())
