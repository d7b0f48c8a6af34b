"""Workers of data loaders outlive a stop signal, but not the process that owns them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, subprocess, sys
import torch
from torch.utils.data import DataLoader
from dlbhpc.inside.workers import protect_workers

chosen = []

def choose(worker):
    os.environ["CHOSEN"] = "yes"

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == 63 and sys.argv[2] == "stuck":
            signal.pause()
        return index, os.getpid(), os.environ.get("CHOSEN") == "yes"

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGUSR2, lambda *_: None)
    protect_workers()
    protect_workers()
    loader = DataLoader(
        Samples(), num_workers=2, multiprocessing_context=sys.argv[1], worker_init_fn=choose
    )
    batches = iter(loader)
    first = next(batches)
    for name in ("TERM", "USR2", "TERM"):
        kill = ["kill", "-" + name, "--", "-" + str(os.getpgrp())]
        subprocess.run(kill, start_new_session=True, check=True)
    seen = [first] + [next(batches) for _ in range(40)]
    assert all(bool(flag) for _, _, flag in seen), "the loader's own worker_init_fn did not run"
    assert loader.worker_init_fn is choose
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "the owner's signals stay blocked"
    print(*sorted({int(pid) for _, pid, _ in seen}), flush=True)
    # Ends with the workers alive: nothing but the owner's signal at exit ends them.
"""


@pytest.mark.parametrize("manner", ["idle", "stuck"])
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_outlive_signals_and_end_with_their_owner(tmp_path, context, manner):
    script = tmp_path / "loader.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, str(script), context, manner],
        env={**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 0, err
    workers = [int(pid) for pid in out.split()]
    assert len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_the_loader_of_torchdata_is_protected_where_it_is_imported(monkeypatch):
    """sdtt and di4c use it, and it starts its workers by code of its own."""
    import types

    from torch.utils.data import DataLoader

    from dlbhpc.inside.workers import protect_workers

    started = []

    class Iterator:
        def __init__(self, loader, next_iter_state):
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
            started.append((next_iter_state, {signal.SIGTERM, signal.SIGUSR2} <= blocked))

    module = types.ModuleType("torchdata.stateful_dataloader.stateful_dataloader")
    module._StatefulMultiProcessingDataLoaderIter = Iterator
    monkeypatch.setitem(sys.modules, module.__name__, module)
    protect_workers()
    Iterator(DataLoader([1]), "state")
    assert started == [("state", True)]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
