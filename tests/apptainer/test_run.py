"""Runs that go through an image end with the same bits as runs that do not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbhpc.images.mounts import look, mount_modes
from dlbhpc.images.record import read_record
from dlbhpc.layout import Layout
from dlbhpc.run.history import read_attempts
from dlbhpc.run.record import read_run
from dlbhpc.scheduler.processes import send
from slurm.devcluster.cluster import Cluster
from tests.project import Project, eventually, identical
from tests.slurm.conftest import cluster, project, straight, worker_cluster
from tests.slurm.test_preemption import preempt

__all__ = ["cluster", "project", "straight", "worker_cluster"]

pytestmark = [pytest.mark.apptainer, pytest.mark.slow]
pytest.importorskip("torch", reason="trains a real model")

SHAPE = ("--nodes", "2", "--gpus-per-node", "1")
SIZES = "steps=30,batch=8"
PutImage = Callable[[Path], Path]


def write_profile(root: Path, name: str, base: str, program: str, mount: str) -> None:
    """A profile of the project's own that sends runs through the image."""
    folder = root / "slurm" / "profiles"
    folder.mkdir(parents=True)
    lines = [
        f"defaults: [{base}, _self_]",
        f"container: {Path(program).name}",
        f"container_mount: {mount}",
        "container_gpu: none",
        "environment: {SITE_VARIABLE: enters}",
    ]
    if mount == "fuse":
        # Root, too, then mounts as a user without privileges does.
        lines[-1] = "environment: {SITE_VARIABLE: enters, APPTAINER_USERNS: '1'}"
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")


def environment_inside(project: Project, attempt: int) -> dict[str, str]:
    """The environment of one training process, as the kernel tells it."""
    (pid, *_) = project.training(attempt)
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def by_fuse(project: Project, attempt: int) -> bool:
    """Whether the attempt's training sees its image through FUSE."""
    (pid, *_) = project.training(attempt)
    return " - fuse." in Path(f"/proc/{pid}/mountinfo").read_text()


@pytest.mark.slurm
def test_preempted_on_slurm_it_requeues_and_ends_with_the_bits_of_a_run_outside(
    apptainer: str,
    put_image: PutImage,
    cluster: Cluster,
    project: Project,
    straight: Callable[[int, str], Project],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOT_NAMED", "stays outside")
    image = put_image(project.root)
    write_profile(project.root, "frozen", "devcluster", apptainer, "kernel")
    frozen = Project(project.root, cluster="frozen")
    frozen.start(*SHAPE, sizes=SIZES)
    frozen.freeze_at(1, 2)
    inside = environment_inside(frozen, 1)
    assert inside["APPTAINER_CONTAINER"] == str(image)
    assert inside["SITE_VARIABLE"] == "enters"
    assert inside["SLURM_PROCID"] in ("0", "1")
    assert "NOT_NAMED" not in inside
    assert inside["HOME"] == str(frozen.output.temporary / "home")
    assert not by_fuse(frozen, 1)
    # Slurm continues what stands still before it asks it to stop.
    preempt(cluster)
    frozen.wait_for_end()
    report = frozen.report()
    assert report["state"] == "completed"
    assert frozen.ends() == ["preempted", "completed"]
    assert report["steps_repeated"] == 0
    assert read_attempts(frozen.output)[1].job_id == read_attempts(frozen.output)[0].job_id
    chosen = read_run(frozen.output).image
    assert chosen is not None
    built = read_record(Layout.at(project.root), "reference")
    assert chosen.content_sha256 == built.content_sha256
    assert identical(frozen.state(), straight(2, SIZES).state())


@pytest.mark.slurm
def test_mounted_by_fuse_it_is_asked_to_stop_by_a_file_and_survives_a_signal_that_unmounts_it(
    apptainer: str,
    put_image: PutImage,
    cluster: Cluster,
    project: Project,
    straight: Callable[[int, str], Project],
) -> None:
    if "fuse" not in mount_modes(look(apptainer)):
        pytest.skip("images cannot be mounted by FUSE here")
    put_image(project.root)
    write_profile(project.root, "frozen", "devcluster", apptainer, "fuse")
    frozen = Project(project.root, cluster="frozen")
    frozen.start(*SHAPE, sizes=SIZES)
    # Before its time is over, the batch shell alone is told: the image stays.
    frozen.freeze_at(1, 2)
    assert by_fuse(frozen, 1)
    job = read_attempts(frozen.output)[0].job_id
    cluster.run("scontrol", "update", f"jobid={job}", "TimeLimit=1")
    eventually((frozen.output.attempt(1) / "stop").exists, "the warning has come")
    send(frozen.training(1), signal.SIGCONT)
    eventually(lambda: "Restarts=1 " in cluster.run("scontrol", "show", "job", job), "it requeues")
    cluster.run("scontrol", "update", f"jobid={job}", "TimeLimit=60")
    # A preemption reaches the helper that mounts the image, too.
    record = frozen.output.attempt(2) / "attempt.json"
    eventually(record.exists, "attempt 2 begins")
    first = read_attempts(frozen.output)[0]
    begun = json.loads(record.read_text())["resumed_from"]
    assert begun == first.reached, "the checkpoint was written whole"
    frozen.freeze_at(2, begun + 1)
    preempt(cluster)
    frozen.wait_for_end()
    assert frozen.ends() == ["time limit", "preempted", "completed"]
    assert identical(frozen.state(), straight(2, SIZES).state())


@pytest.mark.parametrize("mount", ["kernel", "unpacked"])
def test_stopped_on_this_machine_it_goes_on_to_the_end(
    apptainer: str,
    put_image: PutImage,
    new_project: Callable[..., Project],
    mount: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if mount == "kernel" and os.geteuid() != 0:
        pytest.skip("only root, or a setuid installation, mounts images with the kernel")
    # Where unpacked images lie: gone with the test.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    project = new_project("project", cluster="frozen")
    put_image(project.root)
    write_profile(project.root, "frozen", "local", apptainer, mount)
    project.start("--gpus-per-node", "1", sizes=SIZES)
    project.freeze_at(1, 2)
    done = project.dlbhpc("preempt", str(project.output.folder))
    assert done.returncode == 0, done.stderr
    project.wait_for_end()
    assert project.report()["state"] == "completed"
    assert project.ends()[-1] == "completed"
    assert len(project.ends()) == 2
