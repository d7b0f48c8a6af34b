"""Starts trainings quickly: a process that has the libraries imported, and forks.

A line of JSON on the standard input asks for processes: a list of {"argv", "environment", "log"}.
When all of them ended, the answer is the list of their exit statuses (negative for a signal).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from typing import Any, NoReturn

# What main.py imports as it goes, imported once.
import datasets  # noqa: F401
import torch
import torch._dynamo
import torch.distributed
import torch.testing

import dlbhpc.inside.step_callback
import dlbhpc.reference.train  # noqa: F401


def become(request: dict[str, Any]) -> NoReturn:
    """Turn this forked process into the training, and end with it."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    status: object = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # The interpreter's own end takes seconds with all that is imported here.
    os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        pids = []
        for request in json.loads(line):
            pid = os.fork()
            if pid == 0:
                become(request)
            pids.append(pid)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(statuses), flush=True)


if __name__ == "__main__":
    main()
