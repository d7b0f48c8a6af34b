"""A real process that publishes in a loop, killed at random moments."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlbhpc.steps import begin_attempt, recover

PUBLISHER = """
import sys
from pathlib import Path
from dlbhpc.steps import open_publication, retain

steps_dir, attempt, step = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
while True:
    step += 1
    with open_publication(steps_dir, step=step, attempt=attempt) as publication:
        for name in ("training_state.pt", "model_bf16.pt"):
            with publication.create(name) as file:
                for _ in range(4):
                    file.write(step.to_bytes(8, "big") * (1 << 15))
        publication.commit(contract={"seed": 42}, world=1)
    print(step, flush=True)
    retain(steps_dir, milestones=lambda step: step % 10 == 0)
"""


def publisher(
    pytestconfig: pytest.Config, steps_dir: Path, attempt: int, step: int
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, str(steps_dir), str(attempt), str(step)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=pytestconfig.rootpath,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_published_step_is_lost_to_sigkill(
    tmp_path: Path, seed: int, pytestconfig: pytest.Config
) -> None:
    chance = random.Random(seed)
    steps_dir = tmp_path / "steps"
    reached = 0
    for _ in range(8):
        attempt = begin_attempt(steps_dir)
        with publisher(pytestconfig, steps_dir, attempt, reached) as child:
            assert child.stdout is not None
            for _ in range(chance.randint(1, 3)):
                reported = int(child.stdout.readline())
            time.sleep(chance.uniform(0, 0.03))  # a moment in the publication of the next one
            child.kill()
            rest = child.stdout.read().split()
        reported = int(rest[-1]) if rest else reported

        begin_attempt(steps_dir)
        recovery = recover(steps_dir, contract={"seed": 42}, world=1)
        assert recovery.record is not None
        assert recovery.path is not None
        assert recovery.record.step in (reported, reported + 1)
        assert recovery.skipped == ()
        reached = recovery.record.step
        state = (recovery.path / "training_state.pt").read_bytes()
        assert state == reached.to_bytes(8, "big") * (1 << 17)
        assert not list(steps_dir.glob(".work-*"))
        assert not (steps_dir / "quarantine").exists()
        milestones = set(range(10, reached, 10))
        kept = {int(path.name[5:]) for path in steps_dir.glob("step-*")}
        assert milestones <= kept
        assert len(kept - milestones) <= 3


@pytest.mark.slow
def test_an_attempt_that_lives_on_cannot_spoil_its_successors_run(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    steps_dir = tmp_path / "steps"
    attempt, reached = begin_attempt(steps_dir), 0
    for _ in range(6):
        with publisher(pytestconfig, steps_dir, attempt, reached) as ghost:
            assert ghost.stdout is not None
            assert ghost.stderr is not None
            reported = int(ghost.stdout.readline())
            attempt = begin_attempt(steps_dir)
            found = recover(steps_dir, contract={"seed": 42}, world=1)
            ghost.stdout.read()
            assert "Fenced" in ghost.stderr.read()
        assert found.record is not None
        assert found.record.step >= reported
        # Whatever the ghost still renamed, the successor's answer stands.
        assert recover(steps_dir, contract={"seed": 42}, world=1).record == found.record
        reached = found.record.step
