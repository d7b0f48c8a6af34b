"""Processes of this machine, told apart for ever and found by what marks them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

from dlbhpc.scheduler.processes import ProcessId, marked, send

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


def sleeper(**variables: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(SLEEP, env=os.environ | variables, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # now its environment is its own
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_this_process_lives() -> None:
    own = ProcessId.of(os.getpid())
    assert own is not None
    assert own.alive()


def test_a_number_that_was_given_out_again_is_another_process() -> None:
    own = ProcessId.of(os.getpid())
    assert own is not None
    assert not ProcessId(own.pid, own.started + "0").alive()


def test_a_process_that_ended_is_gone_even_while_nobody_has_collected_it() -> None:
    process = sleeper()
    identity = ProcessId.of(process.pid)
    assert identity is not None
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert not identity.alive()
    end(process)
    assert ProcessId.of(process.pid) is None


def test_marked_processes_are_found_by_the_exact_value() -> None:
    mark = uuid.uuid4().hex
    one, other = sleeper(SOME_MARK=mark), sleeper(SOME_MARK=mark + "0")
    try:
        assert marked("SOME_MARK", mark) == [one.pid]
    finally:
        end(one)
        end(other)
    assert marked("SOME_MARK", mark) == []


def test_a_signal_to_a_process_that_has_gone_is_no_error() -> None:
    gone, alive = sleeper(), sleeper()
    end(gone)
    send([gone.pid, alive.pid], signal.SIGTERM)
    assert alive.wait(30) == -signal.SIGTERM
    alive.communicate()
