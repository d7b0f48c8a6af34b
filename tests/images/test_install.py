"""pip, as the definition calls it, takes the file that the lock names by its hash and no other."""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from dlbhpc.files import file_digest
from dlbhpc.images.base import default_base
from dlbhpc.images.definition import render, staged_packages
from dlbhpc.images.lock import Locked
from dlbhpc.images.spec import ImageSpec

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("pip", "setuptools"))),
    reason="this environment has no pip and setuptools",
)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder that holds one small package."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    about = "one-1.0.dist-info"
    files = {
        "one.py": "",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / "one-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return folder


def script(spec: ImageSpec, base: Path, wheels: Path) -> str:
    """The part of the definition's script that calls pip, with its folders under ``base``."""
    post = render(spec, default_base(spec), "bundled-1", {})
    lines = re.search(r"(?ms)^    pip\(\) \{.*?(?=^    # Bytecode)", post)
    assert lines is not None
    python = f"{sys.executable} -m pip"
    text = lines[0].replace("/opt/venv/bin/python -m pip", python).replace("/mnt", str(wheels))
    return f"set -eu\n{text}".replace("/opt/", f"{base}/")


def install(spec: ImageSpec, base: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    """Run that script on the staged packages; what it installs lies in ``base``/target."""
    packages = base / "dlbhpc" / "build" / "packages"
    packages.mkdir(parents=True)
    for name, text in staged_packages(spec).items():
        (packages / name).write_text(text)
    target = f'pip install --target "{base}/target" '
    shell = script(spec, base, wheels).replace("pip install ", target)
    return subprocess.run(["sh", "-c", shell], capture_output=True, text=True)


def with_packages(spec: ImageSpec, *packages: Locked, sources: tuple[str, ...] = ()) -> ImageSpec:
    environment = replace(spec.environment, from_source=sources)
    return replace(spec, packages=packages, environment=environment)


@pytest.mark.parametrize("right", [True, False])
def test_a_file_of_another_hash_is_not_installed(
    reference: ImageSpec, wheels: Path, tmp_path: Path, right: bool
) -> None:
    sha256 = file_digest(next(wheels.iterdir())) if right else "0" * 64
    done = install(with_packages(reference, Locked("one", "1.0", sha256)), tmp_path / "b", wheels)
    assert (done.returncode == 0) is right, done.stderr
    assert (tmp_path / "b" / "target" / "one.py").exists() is right
    assert ("DO NOT MATCH THE HASHES" in done.stderr) is not right


SETUP = """
import pathlib, setuptools
pathlib.Path("two.py").write_text(f"place = {str(pathlib.Path.cwd())!r}")
setuptools.setup(name="two", version="1.0", py_modules=["two"])
"""


@pytest.mark.parametrize("right", [True, False])
def test_what_is_compiled_is_compiled_in_a_folder_whose_name_is_the_same_each_time(
    reference: ImageSpec, wheels: Path, tmp_path: Path, right: bool
) -> None:
    """A compiler writes the folder's name into what it makes; this package does so itself."""
    path = wheels / "two-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("setup.py", SETUP), ("PKG-INFO", "Name: two\nVersion: 1.0\n")):
            entry = tarfile.TarInfo(f"two-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    one = Locked("one", "1.0", file_digest(next(wheels.glob("*.whl"))))
    two = Locked("two", "1.0", file_digest(path) if right else "0" * 64)
    spec = with_packages(reference, one, two, sources=("two",))
    done = install(spec, tmp_path / "b", wheels)
    assert (done.returncode == 0) is right, done.stderr
    installed = tmp_path / "b" / "target" / "two.py"
    if right:
        assert installed.read_text() == f"place = '{tmp_path}/b/dlbhpc/build/sources/two'"
    else:
        assert "DO NOT MATCH THE HASHES" in done.stderr
        assert not installed.exists()
