"""``dlbhpc image`` and ``make image-NAME``: what they say, build and refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.cli.start import prepare
from dlbhpc.command import Launch
from dlbhpc.images.base import default_base
from dlbhpc.images.build import build
from dlbhpc.images.spec import list_images, load_image
from dlbhpc.layout import CHECKOUT, Layout
from dlbhpc.scheduler.profile import load_profile
from tests.images.conftest import fake_apptainer, own_containers, write_sif

__all__ = ["fake_apptainer", "own_containers", "write_sif"]

NO_BUILDER = "neither Apptainer nor Singularity is here: install"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH: it has what make needs, and no builder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "make"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def built(
    root: Path, own_containers: Path, fake_apptainer: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The bundled upstream's image, of a stand-in; returns its file."""
    monkeypatch.setattr("dlbhpc.images.build.resolve_digest", lambda _: "sha256:" + "d" * 64)
    spec = load_image("reference", own_containers)
    return build(spec, default_base(spec), Layout.at(root), None, lambda text: None).path


@pytest.mark.parametrize("name", list_images())
def test_the_definition_is_printed_without_a_builder(
    name: str, programs: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "build", name, "--print", "--root", str(root)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"# {name} ")
    assert "%post" in text
    assert not (root / "images").exists()


def test_building_without_a_builder_says_what_to_install(
    programs: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "build", "duo", "--root", str(root)]) == 2
    assert NO_BUILDER in capsys.readouterr().err


@pytest.mark.parametrize("target", ["image-duo", "images", "test-apptainer"])
def test_make_fails_at_once_before_it_installs_anything(
    target: str, programs: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["make", "--file", str(CHECKOUT / "Makefile"), target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"ERROR: {NO_BUILDER}" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize("program", ["apptainer", "singularity"])
def test_either_program_will_do(program: str, programs: Path) -> None:
    (programs / program).symlink_to("/bin/true")
    argv = ["make", "--file", str(CHECKOUT / "Makefile"), "builder"]
    assert subprocess.run(argv, cwd=programs, capture_output=True).returncode == 0


def test_make_passes_the_base_and_the_wheelhouse_on(tmp_path: Path) -> None:
    argv = ["make", "--dry-run", "image-duo", "BASE=localimage:a b.sif", "WHEELHOUSE=/w h"]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    options = "--base 'localimage:a b.sif' --wheelhouse '/w h'"
    assert f"-m dlbhpc image build duo {options}\n" in done.stdout


def test_an_unknown_image_is_told_with_the_known_ones(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "build", "dou", "--print", "--root", str(root)]) == 2
    assert "there is no image 'dou': choose one of candi, di4c, duo" in capsys.readouterr().err


def test_a_base_with_a_newline_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = "docker:python:3.11\n%post\n    touch /tmp/x"
    arguments = ["image", "build", "reference", "--print", "--base", base, "--root", str(root)]
    assert main(arguments) == 2
    assert "is not a base: write docker:REFERENCE" in capsys.readouterr().err


def test_the_list_tells_what_is_built_and_what_may_not_be_passed_on(
    built: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "list", "--root", str(root)]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert set(rows) == set(list_images())
    assert built.name in rows["reference"]
    assert rows["duo"].endswith("not built")
    unlicensed = {name for name in list_images() if not load_image(name).redistributable}
    assert {name for name, row in rows.items() if " none " in row} == unlicensed != set()


def test_verify_proves_the_image_and_refuses_a_changed_byte(
    built: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify = ["image", "verify", "reference", "--root", str(root)]
    assert main(verify) == 0
    assert "is the image that was built" in capsys.readouterr().out
    status = built.stat()
    content = bytearray(built.read_bytes())
    content[-1] ^= 1
    built.write_bytes(content)
    # A full reading does not go by size and time.
    os.utime(built, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert main(verify) == 2
    assert "the sha256 of its content (squashfs partition) is" in capsys.readouterr().err


def test_verify_of_what_is_not_built_says_how_to_build_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "verify", "duo", "--root", str(root)]) == 2
    assert "the image duo is not built: make image-duo" in capsys.readouterr().err


def test_a_shell_opens_in_the_image_without_the_users_home_and_environment(
    built: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execvpe", lambda _, argv, variables: started.append((argv, variables)))
    monkeypatch.setenv("APPTAINER_BIND", "/home/somebody:/opt/venv")
    monkeypatch.chdir(root)  # and back
    main(["image", "shell", "reference", "--root", str(root)])
    assert Path.cwd() == Path("/"), "the folder that it starts from would be mounted"
    ((argv, variables),) = started
    source = "/opt/dlbhpc/upstream/reference/dlbhpc/reference"
    options = ["--cleanenv", "--no-home", "--bind", f"{root}:{root}:ro", "--pwd", source]
    assert argv == ["apptainer", "shell", *options, str(built)]
    assert "APPTAINER_BIND" not in variables


def test_all_are_built_one_after_the_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("dlbhpc.cli.image._build", lambda spec, *_: asked.append(spec.name))
    assert main(["image", "build", "all", "--root", str(root)]) == 0
    assert asked == list_images()


def test_what_the_profile_sets_enters_the_image_of_its_runs(built: Path, launch: Launch) -> None:
    folder = launch.layout.root / "slurm" / "profiles"
    folder.mkdir(parents=True)
    lines = ["container: apptainer", "network_interface: ib0", "environment: {SITE: here}"]
    text = "\n".join(["defaults: [local, _self_]", *lines])
    (folder / "frozen.yaml").write_text(text + "\n")
    image = prepare(launch, load_profile("frozen", launch.layout.root)).image
    assert image is not None
    assert image.program == "apptainer"
    assert image.variables == ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "SITE")
