"""A run that goes through an image: its identity holds the content, each attempt asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import read_json, write_json
from dlbhpc.images.base import default_base
from dlbhpc.images.build import build
from dlbhpc.images.record import read_record
from dlbhpc.images.spec import load_image
from dlbhpc.images.use import choose_image
from dlbhpc.run.attempt import Job, begin
from dlbhpc.run.ending import end
from dlbhpc.run.history import read_attempts
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.reasons import Cause, Reason
from dlbhpc.run.record import Run, write_records
from tests.images.conftest import fake_apptainer, own_containers, write_sif

__all__ = ["fake_apptainer", "own_containers", "write_sif"]

BuildImage = Callable[[bytes], str]


@pytest.fixture
def build_image(
    launch: Launch,
    own_containers: Path,
    fake_apptainer: Path,
    write_sif: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> BuildImage:
    """Builds the bundled upstream's image with a stand-in; returns the digest of its content."""
    monkeypatch.setattr("dlbhpc.images.build.resolve_digest", lambda _: "sha256:" + "d" * 64)
    spec = load_image("reference", own_containers)

    def run(content: bytes) -> str:
        monkeypatch.setenv("FAKE_SIF", str(write_sif(tmp_path / "made.sif", b"hsqs" + content)))
        # Of other inputs, or it would not be built again.
        changed = replace(spec, packages=spec.packages[: -len(content)])
        built = build(changed, default_base(spec), launch.layout, None, lambda text: None)
        return built.record.content_sha256

    return run


@pytest.fixture
def frozen(launch: Launch, build_image: BuildImage) -> Run:
    """A submitted run that goes through the image."""
    build_image(b"1")
    image = choose_image(launch, "apptainer", "kernel", "none", ())
    launch.output.folder.mkdir(parents=True)
    run = prepare_run(launch, "local", 300, 30, image)
    write_records(run)
    return run


def test_the_identity_holds_the_digest_of_the_images_content(frozen: Run) -> None:
    record = read_record(frozen.launch.layout, "reference")
    assert frozen.identity["image"] == record.content_sha256
    outside = prepare_run(frozen.launch, "local", 300, 30).identity
    assert {key for key in outside if outside[key] != frozen.identity[key]} == {"image"}


def test_an_attempt_proves_the_file(frozen: Run) -> None:
    record = read_record(frozen.launch.layout, "reference")
    path = frozen.launch.layout.images / record.file
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(DlbhpcError, match="is not the one that was built"):
        begin(frozen.launch.output, Job("7", 0), print)
    assert [item.reason for item in read_attempts(frozen.launch.output)] == ["could not begin"]


def test_an_image_that_was_built_since_is_not_taken_for_the_runs_own(
    frozen: Run, build_image: BuildImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert build_image(b"22") != frozen.identity["image"]
    monkeypatch.setenv("PATH", "/nonexistent")
    # It finds the one that it began with, which was kept, and fails only behind it.
    with pytest.raises(DlbhpcError, match="is not on PATH"):
        begin(frozen.launch.output, Job("7", 0), print)
    for kept in frozen.launch.layout.images.glob("reference-*-*.sif"):
        kept.unlink()
    with pytest.raises(DlbhpcError, match=r"image .* is missing: make image-reference"):
        begin(frozen.launch.output, Job("7", 0), print)


@pytest.mark.parametrize(
    ("mount", "reason"), [("fuse", Reason.UNKNOWN), ("unpacked", Reason.UPSTREAM_FAILED)]
)
def test_a_failure_after_a_request_to_stop_may_be_the_vanished_image(
    frozen: Run, mount: str, reason: Reason
) -> None:
    assert frozen.image is not None
    write_records(replace(frozen, image=replace(frozen.image, mount=mount)))
    folder = frozen.launch.output.attempt(1)
    folder.mkdir(parents=True)
    record = {"attempt": 1, "output": str(frozen.launch.output.folder), **Job("7", 0).record()}
    write_json(folder / "attempt.json", record)
    (folder / "stop").touch()
    end(folder, 1, Cause.NOTHING, print)
    assert [item.reason for item in read_attempts(frozen.launch.output)] == [reason.value]


def test_a_node_without_the_program_ends_the_attempt_before_it_began(
    frozen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DlbhpcError, match=r"apptainer is not on PATH on the node .* install"):
        begin(frozen.launch.output, Job("7", 0), print)
    (attempt,) = read_attempts(frozen.launch.output)
    assert attempt.reason == "could not begin"
    end = read_json(attempt.folder / "end.json")
    assert "is not on PATH on the node" in end["advice"]
