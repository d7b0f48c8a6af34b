"""What this machine means for a run, in sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlbhpc.scheduler.findings import NOTE, OK, PROBLEM
from dlbhpc.scheduler.host import Answer, SharedTrial, TrialWrite
from dlbhpc.scheduler.host_checks import (
    HOST_CHECKS,
    Host,
    check_container,
    check_controller,
    check_mounts,
    check_munge,
    check_shared,
    check_space,
)

GIB = 1 << 30
WRITE = TrialWrite(bytes=1 << 20, seconds=0.1, free_bytes=10 * GIB)
LOCAL = Host(root="/runs", slurm=False, file_system="ext4", write=WRITE)
UP, DOWN = Answer(0, "Slurmctld(primary) at ctl is UP\n"), Answer(1, "Unable to contact\nmore")
SLURM = replace(LOCAL, slurm=True, controller=UP, munge=Answer(0, "STATUS: Success (0)"))


def test_without_slurm_there_is_nothing_wrong_and_it_says_so() -> None:
    findings = [check(LOCAL) for check in HOST_CHECKS.values()]
    assert PROBLEM not in [finding.level for finding in findings if finding]
    assert "Slurm is not needed" in check_controller(LOCAL).means


def test_a_controller_that_does_not_answer_is_a_problem() -> None:
    assert check_controller(SLURM).level == OK
    finding = check_controller(replace(SLURM, controller=DOWN))
    assert (finding.level, "Unable to contact" in finding.found) == (PROBLEM, True)


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        (Answer(0, "fine"), OK),
        (Answer(1, "munge: Error: Failed to connect"), PROBLEM),
        (Answer(None, "munge is not installed here"), NOTE),
    ],
)
def test_munge(answer: Answer, level: str) -> None:
    finding = check_munge(replace(SLURM, munge=answer))
    assert finding is not None
    assert finding.level == level


@pytest.mark.parametrize(
    ("host", "level", "words"),
    [
        (LOCAL, OK, "this machine"),
        (SLURM, NOTE, "--run-job"),
        (replace(SLURM, file_system="nfs4"), NOTE, "a type that is shared"),
        (replace(SLURM, shared=SharedTrial(2, 2, 2)), OK, "2 nodes read and wrote it"),
        (replace(SLURM, shared=SharedTrial(1, 1, 1)), OK, "1 node read and wrote it"),
        (replace(SLURM, shared=SharedTrial(2, 1, 1)), PROBLEM, "1 of 2 nodes read"),
        (replace(SLURM, shared=SharedTrial(2, 2, 1)), PROBLEM, "what 1 of them wrote"),
        (replace(SLURM, shared=SharedTrial(2, 0, 0, "no nodes free")), NOTE, "no nodes free"),
    ],
)
def test_whether_the_nodes_see_the_project_root(host: Host, level: str, words: str) -> None:
    finding = check_shared(host)
    assert finding.level == level
    assert words in f"{finding.found} {finding.means} {finding.change}"


@pytest.mark.parametrize(
    ("write", "checkpoint", "level", "words"),
    [
        (WRITE, None, OK, "after the first save"),
        (WRITE, 3 * GIB, OK, "3.0 GiB"),
        (WRITE, 4 * GIB, PROBLEM, "12.0 GiB"),
        (replace(WRITE, error="Disk quota exceeded"), None, PROBLEM, "Disk quota exceeded"),
    ],
)
def test_space_and_quota(write: TrialWrite, checkpoint: int | None, level: str, words: str) -> None:
    finding = check_space(replace(LOCAL, write=write, checkpoint_bytes=checkpoint))
    assert finding.level == level
    assert words in f"{finding.found} {finding.means}"


@pytest.mark.parametrize(
    ("container", "level"),
    [
        (None, NOTE),
        (("apptainer", Answer(0, "apptainer version 1.3.0")), OK),
        (("singularity", Answer(127, "libc: not found")), PROBLEM),
    ],
)
def test_containers(container: tuple[str, Answer] | None, level: str) -> None:
    assert check_container(replace(LOCAL, container=container)).level == level


@pytest.mark.parametrize(("modules", "level"), [(False, PROBLEM), (True, NOTE)])
def test_a_profile_that_wants_a_program_which_is_not_here(modules: bool, level: str) -> None:
    host = replace(LOCAL, wanted_container="singularity", wanted_mount="kernel", modules=modules)
    finding = check_container(host)
    assert (finding.level, "singularity is not on PATH" in finding.found) == (level, True)


APPTAINER = ("apptainer", Answer(0, "apptainer version 1.3.0"))


@pytest.mark.parametrize(
    ("mounts", "wanted", "level", "change"),
    [
        (("kernel", "unpacked"), "kernel", OK, ""),
        (("kernel", "unpacked"), None, OK, ""),
        (("unpacked", "fuse"), "kernel", PROBLEM, "container_mount: unpacked"),
        (("unpacked", "fuse"), "fuse", NOTE, "container_mount: unpacked"),
        ((), "kernel", PROBLEM, "ask for user namespaces"),
        ((), None, NOTE, "ask for user namespaces"),
    ],
)
def test_how_images_are_mounted(
    mounts: tuple[str, ...], wanted: str | None, level: str, change: str
) -> None:
    host = replace(LOCAL, container=APPTAINER, mounts=mounts, wanted_mount=wanted)
    finding = check_mounts(host)
    assert finding is not None
    assert (finding.level, finding.change.partition(",")[0]) == (level, change)


def test_without_a_program_nothing_is_said_of_mounts() -> None:
    assert check_mounts(LOCAL) is None
