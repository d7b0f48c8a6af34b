"""pip, as the definition calls it, takes the file that the lock names by its hash and no other."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dlbhpc.files import file_digest
from dlbhpc.images.base import default_base
from dlbhpc.images.definition import render
from dlbhpc.images.lock import Locked
from dlbhpc.images.spec import ImageSpec

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pip") is None, reason="this environment has no pip"
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


def options(spec: ImageSpec, wheels: Path) -> list[str]:
    """What the definition's script gives to pip where it finds wheels."""
    text = render(spec, default_base(spec), "bundled-1", {})
    lines = re.findall(r'(?m)^ +set -- (?:"\$@" )?(--.*)$', text)
    return " ".join(lines).replace("/mnt", str(wheels)).split()


@pytest.mark.parametrize("right", [True, False])
def test_a_file_of_another_hash_is_not_installed(
    reference: ImageSpec, wheels: Path, tmp_path: Path, right: bool
) -> None:
    sha256 = file_digest(next(wheels.iterdir())) if right else "0" * 64
    (tmp_path / "wheels.txt").write_text(Locked("one", "1.0", sha256).line + "\n")
    target = tmp_path / "target"
    argv = [sys.executable, "-m", "pip", *options(reference, wheels)]
    argv += ["--only-binary", ":all:", "--target", str(target), "-r", str(tmp_path / "wheels.txt")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode == 0) is right, done.stderr
    assert (target / "one.py").exists() is right
    assert ("DO NOT MATCH THE HASHES" in done.stderr) is not right
