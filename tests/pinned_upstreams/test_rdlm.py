"""The pinned rdlm behind its watcher. It begins its data and random numbers anew at every start."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pinned_upstreams.conftest import (
    finish,
    frozen_after,
    log,
    require_checkout,
    tail,
    wait_until_frozen,
)
from tests.project import Project

SIZES = "steps=15,milestone=5,blocks=1"
"""It makes 16 updates, and saves behind 1, 6, 11 and 16 of them."""


@pytest.fixture
def rdlm(trials: Project, tmp_path: Path) -> Iterator[Project]:
    require_checkout("rdlm")
    for part in ("upstreams", "data"):
        shutil.copytree(trials.root / part, tmp_path / part, symlinks=True)
    run = replace(trials, recipe="rdlm", root=tmp_path)
    yield run
    run.kill_everything()


def test_preempted_and_killed_it_goes_on_from_its_newest_snapshot(rdlm: Project) -> None:
    run = frozen_after(rdlm, 8, 3)
    run.start(sizes=SIZES)
    wait_until_frozen(run, 1)
    assert run.dlbhpc("preempt", str(run.output.folder)).returncode == 0
    wait_until_frozen(run, 2)
    run.kill_everything()
    # Hazard 29: as when it was killed while it saved, from which it would never start again.
    snapshot = run.output.folder / "checkpoints-meta" / "checkpoint.pth"
    snapshot.write_bytes(snapshot.read_bytes()[:-1000])
    finish(run, sizes=SIZES)
    told = [
        (attempt["from_step"], attempt["to_step"], attempt["end"])
        for attempt in run.report()["attempts"]
    ]
    assert told == [(0, 6, "preempted"), (6, 6, "interrupted"), (6, 16, "completed")], tail(run)
    assert json.loads(run.output.completed.read_text())["checkpoint"] == (
        "checkpoints/checkpoint_3.pth"
    )
    # Its optimizer and its average count their own updates: both came back at every start.
    state = run.load(run.output.folder / "checkpoints" / "checkpoint_3.pth")
    adam = state["optimizer"]["state"][0]
    assert (state["step"], adam["step"], state["ema"]["num_updates"]) == (16, 16, 16)


def test_hazard_3_its_exit_status_0_on_a_failure_is_not_believed(rdlm: Project) -> None:
    (named,) = rdlm.root.glob("data/trials/**/models--bert-base-uncased/refs/main")
    named.write_text("lost")  # It asks for its tokenizer by name.
    done = rdlm.submit("--follow", sizes=SIZES)
    assert done.returncode != 0
    assert "rdlm ended with status 0; step 0 of 16 is kept" in log(rdlm), tail(rdlm)
    assert rdlm.ends() == ["upstream failed"]
    assert not rdlm.output.completed.exists()
