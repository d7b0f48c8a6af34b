"""How long `status` takes over 200 runs, against one command of Slurm's and Python's own start.

Promise: under 2 seconds. The runs have three attempts and four step directories each; Slurm's
commands are stand-ins that answer at once, so that what is measured is ours. The ratio is to what
any such command costs: a Python that starts, reads nothing, and runs one stand-in.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dlbhpc.command import Request, plan_launch
from dlbhpc.files import write_json
from dlbhpc.layout import OutputLayout
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.record import write_records
from dlbhpc.steps import begin_attempt, open_publication

RUNS = 200
ATTEMPTS = 3
EVENTS = 200
ROUNDS = 7
CHECKOUT = Path(__file__).resolve().parents[1]


def make_runs(root: Path) -> None:
    """Runs in all states: a third complete, a third in the queue, a third interrupted."""
    manifest = {
        "schema_version": 1,
        "dataset": "pydoc",
        "sequence_length": 128,
        "vocab_size": 1024,
        "splits": {"train": {"samples": 100, "sha256": "0" * 64}},
        "features": {"input_ids": "int32"},
        "tokenizer_revision": "1" * 64,
    }
    (root / "data/manifests").mkdir(parents=True)
    (root / "data/processed/pydoc-bpe-128").mkdir(parents=True)
    write_json(root / "data/manifests/pydoc.json", manifest)
    for number in range(RUNS):
        make_run(root, number)


def make_run(root: Path, number: int) -> None:
    """One run with its attempts, steps and lease, as a week of training leaves them."""
    output = OutputLayout(root / "checkpoints" / f"run-{number:03d}")
    launch = plan_launch(Request(recipe="reference_mdlm", root=root, output=output.folder))
    run = prepare_run(launch, "slurm", save_every_seconds=300, grace_seconds=30)
    output.job.mkdir(parents=True)
    write_records(run)
    for attempt in range(1, ATTEMPTS + 1):
        assert begin_attempt(output.steps) == attempt
        folder, start = output.attempt(attempt), attempt - 1
        begun = {"attempt": attempt, "job_id": str(number), "resumed_from": start or None}
        folder.mkdir(parents=True)
        write_json(folder / "attempt.json", {**begun, "time": 1000.0 * attempt})
        event = {"event": "start", "time": 1000.0 * attempt, "attempt": attempt}
        (folder / "events.jsonl").write_text(f"{json.dumps(event)}\n" * EVENTS)
        write_json(folder / "progress.json", {"step": attempt, "time": 1000.0 * attempt + 500})
        with open_publication(output.steps, step=attempt, attempt=attempt) as publication:
            with publication.create("training_state.pt") as file:
                file.write(b"0" * 1000)
            publication.commit(contract=dict(run.contract), world=1)
        if attempt < ATTEMPTS:
            write_json(folder / "end.json", {"reason": "preempted", "status": 75, "time": 1.0})
    lease = {"token": f"t{number}", "scheduler": "slurm", "host": "login", "job_id": str(number)}
    write_json(output.lease, {**lease, "pid": 0, "pid_started": "", "time": 0.0})


def stand_ins(folder: Path) -> None:
    """squeue knows every second job, sacct says of the others that their time was up."""
    folder.mkdir()
    queue = "".join(f"{n}|RUNNING|None|dlbhpc-job|dlbhpc:t{n}\n" for n in range(0, RUNS, 2))
    ended = "".join(f"{n}|TIMEOUT|3600\n" for n in range(1, RUNS, 2))
    for name, text in (("squeue", queue), ("sacct", ended)):
        (folder / f"{name}.txt").write_text(text)
        (folder / name).write_text(f"#!/bin/bash\ncat {folder / name}.txt\n")
        (folder / name).chmod(0o755)


def seconds(*arguments: str, environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=CHECKOUT,
        env=environment,
    )
    return time.perf_counter() - begun


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_runs(folder / "root")
        stand_ins(folder / "bin")
        environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        status = ("-m", "dlbhpc", "status", "--root", str(folder / "root"))
        baseline = ("-c", "import subprocess; subprocess.run(['squeue'], capture_output=True)")
        times, ratios = [], []
        for _ in range(ROUNDS):
            floor = seconds(*baseline, environment=environment)
            times.append(seconds(*status, environment=environment))
            ratios.append(times[-1] / floor)
        print(f"status over {RUNS} runs: {statistics.median(times):.2f} s (promised: 2)")
        print(f"{statistics.median(ratios):.1f} x a bare Python that runs one squeue")


if __name__ == "__main__":
    main()
