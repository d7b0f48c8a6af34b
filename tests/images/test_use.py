"""A run's image from submit to task: the profile chooses it, and nothing else takes its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.command import Launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.images.base import default_base, parse_base
from dlbhpc.images.build import build
from dlbhpc.images.record import read_record, write_record
from dlbhpc.images.spec import load_image
from dlbhpc.images.task import RunImage
from dlbhpc.images.use import check_image, choose_image, enter_image, other_inputs

HOST = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def built(
    launch: Launch, own_containers: Path, fake_apptainer: Path, monkeypatch: pytest.MonkeyPatch
) -> Launch:
    """A launch whose image is there, built by the stand-in."""
    monkeypatch.setattr("dlbhpc.images.build.resolve_digest", lambda _: "sha256:" + "d" * 64)
    spec = load_image("reference", own_containers)
    build(spec, default_base(spec), launch.layout, None, lambda text: None)
    return launch


def chosen(launch: Launch) -> RunImage:
    return choose_image(launch, "apptainer", "kernel", "none", ["SITE_PROXY", "A_VARIABLE"])


def test_a_run_remembers_the_content_and_how_its_site_enters_it(built: Launch) -> None:
    record = read_record(built.layout, "reference")
    assert chosen(built) == RunImage(
        name="reference",
        content_sha256=record.content_sha256,
        program="apptainer",
        mount="kernel",
        gpu="none",
        source="/opt/dlbhpc/upstream/reference/dlbhpc/reference",
        variables=("A_VARIABLE", "SITE_PROXY"),
    )


def test_an_image_that_is_not_built_says_how_to_build_it(launch: Launch) -> None:
    with pytest.raises(DlbhpcError, match="reference is not built: make image-reference"):
        chosen(launch)


def test_an_image_of_another_commit_is_refused(built: Launch) -> None:
    record = read_record(built.layout, "reference")
    write_record(built.layout, replace(record, commit="bundled-" + "0" * 64))
    with pytest.raises(DlbhpcError, match="the pin is bundled-"):
        chosen(built)


def test_an_image_of_other_content_does_not_go_on_with_the_run(
    built: Launch, write_sif: Callable[..., Path]
) -> None:
    image = replace(chosen(built), content_sha256="0" * 64)
    with pytest.raises(DlbhpcError, match="is another than this run began with"):
        check_image(image, built)


def test_a_node_without_the_program_says_what_to_install(built: Launch) -> None:
    with pytest.raises(DlbhpcError, match=r"apptainer is not on PATH on the node .*install"):
        enter_image(chosen(built), built, ["python"], {}, HOST)


def test_the_output_is_the_only_folder_that_is_written(
    built: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = {"PATH": str(tmp_path / "bin"), "DLBHPC_SCRATCH": "/scratch/7"}
    argv, environment = enter_image(chosen(built), built, ["python", "x"], {}, host)
    binds = [argv[place + 1] for place, word in enumerate(argv) if word == "--bind"]
    writable = [bind.partition(":")[0] for bind in binds if bind.endswith(":rw")]
    assert writable == [str(built.output.folder), "/scratch/7"]
    assert argv[argv.index("--home") + 1].startswith(str(built.output.folder))
    assert environment["APPTAINERENV_DLBHPC_SCRATCH"] == "/scratch/7"


def test_it_is_unpacked_to_the_sites_scratch_wherever_the_attempt_is(
    built: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Composing, before the tasks, goes through the image as well."""
    places: list[Path] = []

    def unpack(file: Path, content: str, program: str, place: Path) -> Path:
        places.append(place)
        return place

    monkeypatch.setattr("dlbhpc.images.use.unpacked", unpack)
    image = replace(chosen(built), mount="unpacked")
    host = {"PATH": str(tmp_path / "bin"), "DLBHPC_NODE_SCRATCH": "/local"}
    for more in ({}, {"DLBHPC_SCRATCH": "/local/dlbhpc-1-00001"}):
        enter_image(image, built, ["python"], {}, {**host, **more})
    assert places == [Path("/local"), Path("/local")]


def test_a_run_that_has_begun_stays_with_its_image_when_another_was_built(
    built: Launch,
    own_containers: Path,
    tmp_path: Path,
    write_sif: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = chosen(built)
    assert other_inputs(built.layout, first) is None
    other = write_sif(tmp_path / "other.sif", b"hsqs" + b"y" * 5000)
    monkeypatch.setenv("FAKE_SIF", str(other))
    spec = load_image("reference", own_containers)
    fewer = replace(spec, packages=spec.packages[:-1])
    base = parse_base(f"localimage:{other}", spec)
    build(fewer, base, built.layout, None, lambda text: None)
    again = choose_image(built, "apptainer", "kernel", "none", (), begun_with=first.content_sha256)
    assert again.content_sha256 == first.content_sha256
    new = chosen(built)
    assert new.content_sha256 != first.content_sha256
    note = other_inputs(built.layout, new)
    assert note is not None and "another lock than" in note and str(other) in note
