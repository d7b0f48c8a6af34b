"""Images as Apptainer really builds them: whole, the same each time, and apart from the host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.images.base import Base
from dlbhpc.images.build import Built, build_argv
from dlbhpc.images.program import run
from dlbhpc.images.record import read_record
from dlbhpc.images.sif import content_partition
from dlbhpc.images.spec import ImageSpec
from dlbhpc.layout import Layout

pytestmark = [pytest.mark.apptainer, pytest.mark.slow]

APART = ("--containall", "--cleanenv", "--no-home")
IMPORTS = "import torch, lightning, datasets; print(torch.__version__)"


def said(*argv: str, cwd: str | None = None) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_passes_its_own_test(apptainer: str, image: Path, spec: ImageSpec) -> None:
    words = said(apptainer, "test", *APART, str(image))
    versions = {package.name: package.version for package in spec.packages}
    assert f"torch {versions['torch']}\n" in words
    assert words.endswith("the entry point imports\n")


def test_the_image_carries_its_labels_and_a_source_that_nobody_writes(
    apptainer: str, image: Path
) -> None:
    record = read_record(Layout.at(image.parents[1]), "reference")
    labels = said(apptainer, "inspect", "--labels", str(image))
    assert f"dlbhpc.commit: {record.commit}\n" in labels
    assert f"dlbhpc.lock: {record.lock_sha256}\n" in labels
    script = "find /opt/dlbhpc /opt/dlbhpc/upstream -perm /222 ! -type l -path '*upstream/*'"
    assert said(apptainer, "exec", *APART, str(image), "sh", "-c", script) == ""


def test_it_runs_the_entry_point_and_opens_a_shell(
    apptainer: str, image: Path, put_image: Callable[[Path], Path], tmp_path: Path
) -> None:
    assert "sampling_steps: 128\n" in said(apptainer, "run", *APART, str(image), "--cfg", "job")
    put_image(tmp_path)
    argv = [sys.executable, "-m", "dlbhpc", "image", "shell", "reference", "--root", str(tmp_path)]
    script = "command -v python; echo $NOT_NAMED; exit 3\n"
    environment = {**os.environ, "NOT_NAMED": "leaks"}
    done = subprocess.run(argv, input=script, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (3, "/opt/venv/bin/python\n\n")


def test_a_fresh_debian_holds_neither_its_builders_names_nor_what_apt_fetched(
    image: Path, base: Base
) -> None:
    """Read from the file: over an image that runs, the host's own files are mounted."""
    if base.kind != "debootstrap" or shutil.which("unsquashfs") is None:
        pytest.skip("it takes a debootstrap base, and unsquashfs")
    read = ["unsquashfs", "-offset", str(content_partition(image).offset)]
    for name in ("etc/hostname", "etc/resolv.conf"):
        assert said(*read, "-cat", str(image), name) == ""
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
        listed = said(*read, "-lls", str(image), folder).splitlines()
        assert [line for line in listed if line.startswith("-")] == []
        assert any(line.startswith("d") for line in listed)


@pytest.mark.parametrize("status", [0, 1, 75, 135])
def test_exit_statuses_pass_through(apptainer: str, image: Path, status: int) -> None:
    argv = [apptainer, "exec", *APART, str(image), "sh", "-c", f"exit {status}"]
    assert subprocess.run(argv).returncode == status


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
@pytest.mark.parametrize("mount", ["fuse", "unpacked"])
def test_it_runs_for_a_user_without_privileges(apptainer: str, image: Path, mount: str) -> None:
    if mount == "fuse" and Path("/dev/fuse").stat().st_mode & 0o006 != 0o006:
        pytest.skip("/dev/fuse is open to root only")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        copy = Path(shutil.copy(image, Path(folder, "image.sif")))
        shutil.chown(folder, "nobody")
        user = ["runuser", "-u", "nobody", "--", "env", f"HOME={folder}"]
        user += [f"APPTAINER_TMPDIR={folder}", f"APPTAINER_CACHEDIR={folder}"]
        if mount == "unpacked":
            said(*user, apptainer, "build", "--sandbox", f"{folder}/image", str(copy), cwd="/")
            copy = Path(folder, "image")
        argv = [apptainer, "exec", *APART, str(copy)]
        assert said(*user, *argv, "id", "-un", cwd="/") == "nobody\n"
        as_root = said(*argv, "python", "-c", IMPORTS)
        assert said(*user, *argv, "python", "-c", IMPORTS, cwd="/") == as_root


def test_a_second_build_gives_the_same_content_and_a_changed_byte_is_refused(
    image: Path,
    build_in: Callable[[Path], Built],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = read_record(Layout.at(image.parents[1]), "reference")
    again = build_in(tmp_path / "root")
    assert again.fresh
    assert again.record.content_sha256 == first.content_sha256
    assert not build_in(tmp_path / "root").fresh

    verify = ["image", "verify", "reference", "--root", str(tmp_path / "root")]
    assert main(verify) == 0
    with again.path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    capsys.readouterr()
    assert main(verify) == 2
    assert "is not the one that was built: the sha256 of its content" in capsys.readouterr().err


@pytest.fixture
def canaries() -> Iterator[list[Path]]:
    """A file of the host's in each folder that Apptainer would mount into a build."""
    folders = (Path("/tmp"), Path("/var/tmp"))
    paths = [Path(tempfile.mkstemp(prefix="dlbhpc-canary-", dir=folder)[1]) for folder in folders]
    yield paths
    for path in paths:
        path.unlink(missing_ok=True)


def test_a_build_neither_sees_nor_touches_the_hosts_temporary_folders(
    apptainer: str, image: Path, tmp_path: Path, canaries: list[Path]
) -> None:
    (tmp_path / "image.def").write_text(
        f"Bootstrap: localimage\nFrom: {image}\n\n%post\n"
        "    echo seen: $(ls -A /tmp /var/tmp)\n"
        + "".join(f"    test ! -e {path}\n    touch {path}.written\n" for path in canaries)
    )
    (tmp_path / "tmp").mkdir()
    lines: list[str] = []
    argv = build_argv(apptainer, tmp_path / "image", tmp_path, None)
    argv.insert(2, "--sandbox")  # %post is what matters, and a folder is made sooner than a file
    run(argv, tmp_path, {"APPTAINER_TMPDIR": str(tmp_path / "tmp")}, lines.append)
    assert "seen: /tmp: /var/tmp:" in lines
    for path in canaries:
        assert path.exists()
        assert not path.with_name(f"{path.name}.written").exists()
    shutil.rmtree(tmp_path)
