"""Which ways of mounting an image a machine has, from what was found on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlbhpc.images.mounts import Means, look, mount_modes


@pytest.mark.parametrize(
    ("means", "modes"),
    [
        (Means(root=True, setuid=False, fuse=False, namespaces=True), ("kernel", "unpacked")),
        (
            Means(root=False, setuid=True, fuse=True, namespaces=True),
            ("kernel", "unpacked", "fuse"),
        ),
        (Means(root=False, setuid=False, fuse=True, namespaces=True), ("unpacked", "fuse")),
        (Means(root=False, setuid=False, fuse=False, namespaces=True), ("unpacked",)),
        (Means(root=False, setuid=False, fuse=True, namespaces=False), ()),
    ],
)
def test_the_ways_follow_from_the_means(means: Means, modes: tuple[str, ...]) -> None:
    assert mount_modes(means) == modes


@pytest.mark.parametrize("mode", [0o755, 0o4755])
def test_a_starter_counts_only_with_its_setuid_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    helpers = tmp_path / "libexec" / "apptainer" / "bin"
    helpers.mkdir(parents=True)
    for name in ("starter-suid", "squashfuse"):
        (helpers / name).touch()
        (helpers / name).chmod(0o755)
    (helpers / "starter-suid").chmod(mode)
    program = tmp_path / "apptainer"
    program.write_text(f"#!/bin/sh\necho {tmp_path}/libexec\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    means = look("apptainer")
    assert means.setuid is (mode == 0o4755 and os.geteuid() == 0)
    assert means.fuse is os.access("/dev/fuse", os.R_OK | os.W_OK)


def test_a_program_that_does_not_answer_offers_no_setuid() -> None:
    assert look("/nonexistent/apptainer").setuid is False


@pytest.mark.parametrize(("status", "there"), [(0, True), (1, False)])
def test_namespaces_are_tried_rather_than_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, there: bool
) -> None:
    """A kernel that allows some may still forbid them to this user."""
    program = tmp_path / "unshare"
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look("/nonexistent/apptainer").namespaces is there
