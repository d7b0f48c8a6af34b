"""Building, with a stand-in for Apptainer: what it is given, and what is left when it fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images import build as module
from dlbhpc.images.base import default_base, parse_base, read_base_lock
from dlbhpc.images.build import Built, build
from dlbhpc.images.definition import EPOCH
from dlbhpc.images.record import ImageRecord, read_record, read_record_of, verify
from dlbhpc.images.sif import read_digests
from dlbhpc.images.spec import ImageSpec, load_image
from dlbhpc.layout import Layout

DIGEST = "sha256:" + "d" * 64
Build = Callable[..., Built]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "root").mkdir()
    return Layout.at(tmp_path / "root")


@pytest.fixture
def spec(own_containers: Path) -> ImageSpec:
    return load_image("reference", own_containers)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A registry that answers; the references that it was asked for."""
    references: list[str] = []

    def answer(reference: str) -> str:
        references.append(reference)
        return DIGEST

    monkeypatch.setattr(module, "resolve_digest", answer)
    yield references


@pytest.fixture
def make(
    layout: Layout, spec: ImageSpec, fake_apptainer: Path, asked: list[str]
) -> Callable[..., Built]:
    def run(spec: ImageSpec = spec, wheelhouse: Path | None = None) -> Built:
        return build(spec, default_base(spec), layout, wheelhouse, lambda text: None)

    return run


def test_the_image_and_its_record_are_there(make: Build, layout: Layout) -> None:
    built = make()
    assert built.fresh
    assert built.path.parent == layout.images
    assert built.path.name.startswith("reference-")
    record = read_record(layout, "reference")
    assert record == built.record
    assert record.builder == "apptainer version 9.9.9"
    assert record.base_digest == DIGEST
    assert record.labels["dlbhpc.redistributable"] == "yes"
    kept = {path.name for path in layout.images.iterdir()}
    assert kept == {
        *(built.path.name, f"{built.path.stem}.def", "reference.json", ".cache"),
        *(f".{built.path.name}.digests.json", ".reference.lock"),
    }


def test_the_builder_sees_the_stage_and_builds_in_project_scratch(
    make: Build, layout: Layout, fake_apptainer: Path
) -> None:
    make()
    argv = fake_apptainer.read_text().split("\n")
    assert argv[:3] == ["build", "--notest", "--force"]
    assert argv[-2] == "image.def"
    stage = Path(f"{fake_apptainer}.stage")
    assert (stage / "source" / "dlbhpc" / "reference" / "main.py").is_file()
    assert "torch==" in (stage / "packages" / "wheels.txt").read_text()
    assert f"@{DIGEST}" in (stage / "image.def").read_text()
    assert (stage / "nothing").read_bytes() == b""
    environment = dict(
        line.split("=", 1)
        for line in Path(f"{fake_apptainer}.env").read_text().splitlines()
        if "=" in line
    )
    assert environment["SOURCE_DATE_EPOCH"] == str(EPOCH)
    for family in ("APPTAINER", "SINGULARITY"):
        assert Path(environment[f"{family}_CACHEDIR"]).is_relative_to(layout.images)
        assert Path(environment[f"{family}_TMPDIR"]).is_relative_to(layout.images)
    assert "SOURCE_DATE_EPOCH" not in os.environ


@pytest.mark.parametrize(("uid", "rootless"), [(0, False), (4242000, True)])
def test_only_root_builds_without_fakeroot(
    make: Build, fake_apptainer: Path, monkeypatch: pytest.MonkeyPatch, uid: int, rootless: bool
) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: uid)
    make()
    assert ("--fakeroot" in fake_apptainer.read_text().split("\n")) is rootless


def test_an_empty_folder_of_the_projects_hides_each_one_of_the_host(
    make: Build, layout: Layout, fake_apptainer: Path
) -> None:
    make()
    argv = fake_apptainer.read_text().split("\n")
    binds = dict(
        reversed(argv[place + 1].split(":", 1))
        for place, word in enumerate(argv)
        if word == "--bind"
    )
    assert set(binds) == {"/tmp", "/var/tmp"}
    assert len(set(binds.values())) == 2
    for folder in binds.values():
        assert Path(folder).is_relative_to(layout.images)


def test_the_finished_image_is_tested_apart_from_the_host(
    make: Build, fake_apptainer: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TEST_FAILS", "yes")
    with pytest.raises(DlbhpcError, match=r"(?s)apptainer test failed.*No module named torch"):
        make()
    argv = Path(f"{fake_apptainer}.test").read_text().split()
    assert argv[1:-1] == ["--containall", "--cleanenv", "--no-home"]
    assert {path.name for path in layout.images.iterdir()} == {".cache", ".reference.lock"}


def test_the_same_inputs_are_not_built_again(make: Build, fake_apptainer: Path) -> None:
    first = make()
    fake_apptainer.unlink()
    second = make()
    assert not second.fresh
    assert second.record == first.record
    assert not fake_apptainer.exists()


@pytest.mark.parametrize("change", ["lock", "file", "record"])
def test_anything_else_is_built(
    make: Build, spec: ImageSpec, layout: Layout, fake_apptainer: Path, change: str
) -> None:
    path = make().path
    if change == "lock":
        spec = replace(spec, packages=spec.packages[:-1])
    elif change == "file":
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        os.utime(path, ns=(1, 1))
    else:
        (layout.images / "reference.json").unlink()
    assert make(spec).fresh


def test_the_first_build_writes_the_bases_digest_and_the_next_ones_require_it(
    make: Build, spec: ImageSpec, asked: list[str], layout: Layout
) -> None:
    make()
    assert asked == [spec.environment.base]
    assert read_base_lock(spec.base_lock) == {spec.environment.base: DIGEST}
    shutil.rmtree(layout.images)
    make()
    assert asked == [spec.environment.base]


def test_a_failed_build_leaves_no_image_and_tells_the_last_words(
    make: Build, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", "yes")
    with pytest.raises(DlbhpcError, match=r"(?s)exit status 255.*FATAL: no such thing"):
        make()
    assert {path.name for path in layout.images.iterdir()} == {".cache", ".reference.lock"}


def test_a_failed_build_that_is_not_roots_says_what_it_may_lack(
    make: Build, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", "yes")
    monkeypatch.setattr(module.os, "geteuid", lambda: 4242000)
    with pytest.raises(DlbhpcError, match=r"(?s)FATAL: no such thing.*4242000 has none in /etc/"):
        make()


def test_a_failed_build_leaves_the_earlier_image(
    make: Build, spec: ImageSpec, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    record: ImageRecord = make().record
    monkeypatch.setenv("FAKE_FAILS", "yes")
    with pytest.raises(DlbhpcError):
        make(replace(spec, packages=spec.packages[:-1]))
    assert read_record(layout, "reference") == record
    assert (layout.images / record.file).is_file()


def test_an_image_of_other_content_is_kept_for_the_runs_that_go_through_it(
    make: Build,
    spec: ImageSpec,
    layout: Layout,
    tmp_path: Path,
    write_sif: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first: ImageRecord = make().record
    monkeypatch.setenv("FAKE_SIF", str(write_sif(tmp_path / "other.sif", b"hsqs" + b"y" * 5000)))
    second: ImageRecord = make(replace(spec, packages=spec.packages[:-1])).record
    assert second.content_sha256 != first.content_sha256
    for record in (first, second):
        found = read_record_of(layout, "reference", record.content_sha256)
        assert found.content_sha256 == record.content_sha256
        verify(layout, found, afresh=True)
    assert read_record(layout, "reference") == second


def test_an_image_is_kept_also_where_its_record_cannot_be_read(
    make: Build,
    layout: Layout,
    tmp_path: Path,
    write_sif: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torn, or of another version of dlbhpc: the file is what runs go through."""
    first = make().record
    (layout.images / "reference.json").write_text("{}")
    monkeypatch.setenv("FAKE_SIF", str(write_sif(tmp_path / "other.sif", b"hsqs" + b"y" * 5000)))
    second = make().record
    assert second.content_sha256 != first.content_sha256
    found = {read_digests(path).content for path in layout.images.glob("*.sif")}
    assert found == {first.content_sha256, second.content_sha256}


def test_a_base_that_is_named_by_its_digest_is_taken_as_it_is(
    layout: Layout, spec: ImageSpec, fake_apptainer: Path, asked: list[str]
) -> None:
    base = parse_base(f"docker:docker.io/library/python@{DIGEST}", spec)
    built = build(spec, base, layout, None, lambda text: None)
    assert built.record.base_digest == DIGEST
    assert asked == []
    assert read_base_lock(spec.base_lock) == {}
    assert not build(spec, base, layout, None, lambda text: None).fresh


def test_an_image_that_is_no_sif_is_refused(
    make: Build, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = tmp_path / "torn"
    torn.write_bytes(b"half")
    monkeypatch.setenv("FAKE_SIF", str(torn))
    with pytest.raises(DlbhpcError, match="is damaged: it is too short"):
        make()
    assert not list(layout.images.glob("*.sif"))


def test_too_little_room_is_told_before_anything_is_fetched(
    make: Build, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1 << 30})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DlbhpcError, match=r"wants 12 GiB of free space in .*images, there are 1"):
        make()
    assert asked == []


def test_an_incomplete_wheelhouse_is_told_before_the_build(
    make: Build, fake_apptainer: Path, tmp_path: Path
) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(DlbhpcError, match=r"does not hold the files of .*requirements.lock"):
        make(wheelhouse=tmp_path / "wheels")
    assert not fake_apptainer.exists()


def test_without_a_builder_nothing_is_done(
    layout: Layout, spec: ImageSpec, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(DlbhpcError, match="neither Apptainer nor Singularity is here: install"):
        build(spec, default_base(spec), layout, None, print)
    assert asked == []
    assert not layout.images.exists()
