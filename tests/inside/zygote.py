"""Starts toy trainers quickly: a process that has torch and Lightning imported, and forks.

A line on the standard input asks for a run: {"options", "environment", "log"}; the answer is its
process id. The line "wait" is answered when all runs ended, with their exit statuses by process
id (negative for a signal).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import sys
import threading
import traceback
from pathlib import Path

# What every run needs, imported once; the second half is what a training imports as it goes.
import torch
import torch._dynamo
import torch.distributed
import torch.testing

import dlbhpc.inside.step_callback  # noqa: F401

for name in ("omegaconf", "torch.profiler"):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

TOY = str(Path(__file__).with_name("toy.py"))


def become(request: dict) -> int:
    """Turn this forked process into the run; its exit status."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"])
    sys.argv = [TOY, json.dumps(request["options"])]
    status = 0
    try:
        runpy.run_path(TOY, run_name="__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    return status


def main() -> None:
    torch.set_num_threads(1)
    gc.freeze()
    running: dict[int, None] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request == "wait":
            results = {}
            while running:
                pid, status = os.wait()
                running.pop(pid)
                results[pid] = os.waitstatus_to_exitcode(status)
            print(json.dumps(results), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            status = become(request)
            sys.stdout.flush()
            sys.stderr.flush()
            # All of an exit but the teardown of the modules, which takes longer than the run.
            os._exit(status)
        running[pid] = None
        print(pid, flush=True)


if __name__ == "__main__":
    main()
