"""A student submitted together with its teacher, on a real Slurm: it never starts without it."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlbhpc.cli.start import start
from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.files import file_digest, read_json
from dlbhpc.layout import CONF
from dlbhpc.run.history import read_attempts
from dlbhpc.run.record import read_run
from dlbhpc.scheduler.processes import send
from dlbhpc.scheduler.profile import Profile, load_profile
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually, kill_job

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SIZES = {"steps": 20, "batch": 8}


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """The package's recipes, and a student of the bundled one."""
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    teacher = (conf / "recipe" / "reference_mdlm.yaml").read_text(encoding="utf-8")
    student = (
        teacher.replace("  sizes:\n", "  sizes:\n    blocks: 2\n    heads: 2\n")
        + "teacher:\n  recipe: reference_mdlm\n  family: masked_mdlm\n  adapter: null\n"
    )
    (conf / "recipe" / "reference_student.yaml").write_text(student, encoding="utf-8")
    return conf


@dataclass(frozen=True)
class Pair:
    """A student and its teacher; the project is the teacher's."""

    teacher: Project
    student: Project
    launches: tuple[Launch, Launch]
    profile: Profile

    def submit(self) -> None:
        teacher, student = self.launches
        assert start(student, self.profile, follow=False, teacher=teacher) == 0


@pytest.fixture
def pair(cluster: Cluster, project: Project, recipes: Path) -> Pair:
    teacher, student = (
        plan_launch(Request(recipe=name, trial=SIZES, root=project.root), recipes)
        for name in ("reference_mdlm", "reference_student")
    )
    other = Project(project.root, cluster="devcluster", recipe="reference_student")
    return Pair(project, other, (teacher, student), load_profile("devcluster", project.root))


def job_of(project: Project) -> str:
    return str(read_json(project.output.lease)["job_id"])


def state(cluster: Cluster, job: str) -> str:
    return cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%T %r").strip()


def test_the_student_waits_while_its_teacher_is_preempted_and_requeued(
    cluster: Cluster, pair: Pair
) -> None:
    pair.submit()
    student = job_of(pair.student)
    pair.teacher.freeze_at(attempt=1, step=1)
    assert state(cluster, student) == "PENDING Dependency"
    assert "pending: " in read_run(pair.student.output).identity["teacher"]
    cluster.run(
        "sbatch", "--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null",
        "--wrap=sleep 1",
    )  # fmt: skip
    eventually(lambda: pair.teacher.output.attempt(2).exists(), "the teacher runs again")
    assert state(cluster, student) == "PENDING Dependency"
    pair.teacher.wait_for_end()
    pair.student.wait_for_end()
    assert pair.teacher.report()["state"] == "completed"
    assert [attempt.job_id for attempt in read_attempts(pair.student.output)] == [student]
    assert pair.student.report()["state"] == "completed"
    digest = file_digest(pair.launches[0].selected_checkpoint)
    assert read_run(pair.student.output).identity["teacher"] == digest
    fields = read_json(pair.student.output.provenance)["identity_fields"]
    assert fields["teacher"] == digest
    pair.submit()
    assert len(read_attempts(pair.student.output)) == 1, "both are complete: nothing is done"


def cancelled(pair: Pair) -> None:
    assert pair.teacher.dlbhpc("cancel", str(pair.teacher.output.folder)).returncode == 0


def crashed(pair: Pair) -> None:
    send(pair.teacher.training(1), signal.SIGKILL)


@pytest.mark.parametrize(("end", "reason"), [(cancelled, "cancelled"), (crashed, "killed")])
def test_the_student_of_a_teacher_that_failed_for_good_ends_and_says_why(
    cluster: Cluster, pair: Pair, end: Callable[[Pair], None], reason: str
) -> None:
    pair.submit()
    student = job_of(pair.student)
    pair.teacher.freeze_at(attempt=1, step=1)
    end(pair)
    pair.teacher.wait_for_end()
    pair.student.wait_for_end()
    (attempt,) = pair.student.report()["attempts"]
    assert attempt["end"] == "could not begin"
    record = read_json(pair.student.output.attempt(1) / "end.json")
    assert f"the teacher failed: {reason}" in record["advice"]
    assert "Restarts=0 " in cluster.run("scontrol", "show", "job", student)
    assert "ExitCode=2:0" in cluster.run("scontrol", "show", "job", student)


def test_a_student_whose_teacher_is_in_another_job_by_now_goes_behind_that(
    cluster: Cluster, pair: Pair
) -> None:
    """The teacher died without a word and was submitted again before the student could begin."""
    pair.submit()
    first, student = job_of(pair.teacher), job_of(pair.student)
    cluster.run("scontrol", "hold", student)
    pair.teacher.freeze_at(attempt=1, step=5)
    kill_job(first)
    pair.teacher.wait_for_end()
    assert start(pair.launches[0], pair.profile, follow=False) == 0
    pair.teacher.freeze_at(attempt=2, step=6)
    cluster.run("scontrol", "release", student)
    eventually(lambda: job_of(pair.student) != student, "another job of the student waits")
    second = job_of(pair.student)
    assert state(cluster, second) == "PENDING Dependency"
    eventually(lambda: not state(cluster, student), "the first has left")
    send(pair.teacher.training(2), signal.SIGCONT)
    pair.teacher.wait_for_end()
    pair.student.wait_for_end()
    assert [attempt.job_id for attempt in read_attempts(pair.student.output)] == [second]
    assert pair.student.report()["state"] == "completed"
