"""A lock installs exact versions by the hash of one file, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.lock import Locked, lock_text, read_lock
from dlbhpc.images.spec import list_images, load_image

HASH = "a" * 64
GOOD = f"torch==2.5.1 --hash=sha256:{HASH}\n"


@pytest.mark.parametrize(
    "line",
    [
        "lightning>=2.2",
        "lightning==2.2.1",
        f"lightning>=2.2 --hash=sha256:{HASH}",
        f"lightning --hash=sha256:{HASH}",
        f"lightning==2.2.* --hash=sha256:{HASH}",
        f"lightning==2.2.1 --hash=sha256:{HASH[1:]}",
        f"lightning==2.2.1 --hash=md5:{HASH[:32]}",
        f"lightning==2.2.1 --hash=sha256:{HASH} --hash=sha256:{HASH}",
        f"lightning[extra]==2.2.1 --hash=sha256:{HASH}",
        f"lightning==2.2.1 ; python_version > '3' --hash=sha256:{HASH}",
        f"lightning @ https://example.org/l.whl --hash=sha256:{HASH}",
        "--index-url https://example.org/simple",
        "-r other.txt",
        "-e .",
    ],
)
def test_anything_but_an_exact_version_with_one_hash_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text(GOOD + line + "\n")
    with pytest.raises(DlbhpcError, match=r"line 2: .* an image installs nothing without"):
        read_lock(path)


def test_a_package_stands_once(tmp_path: Path) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text(GOOD + GOOD)
    with pytest.raises(DlbhpcError, match=r"line 2: torch stands there twice"):
        read_lock(path)


def test_an_empty_lock_is_none(tmp_path: Path) -> None:
    path = tmp_path / "requirements.lock"
    path.write_text("# nothing\n")
    with pytest.raises(DlbhpcError, match="holds no package"):
        read_lock(path)


def test_what_is_written_is_read_back_sorted(tmp_path: Path) -> None:
    packages = (Locked("torch", "2.5.1", HASH), Locked("numpy", "1.26.4", "b" * 64))
    path = tmp_path / "requirements.lock"
    path.write_text(lock_text(packages, "two lines\nof header"))
    assert read_lock(path) == (packages[1], packages[0])


@pytest.mark.parametrize("name", list_images())
def test_each_image_has_a_lock_that_holds_what_its_training_needs(name: str) -> None:
    spec = load_image(name)
    locked = {package.name: package.version for package in spec.packages}
    assert {"torch", "hydra-core", "omegaconf", "setuptools", "wheel"} <= locked.keys()
    assert ("lightning" in locked) == (name != "rdlm")
    assert {"flash-attn"} <= locked.keys() or spec.environment.cuda is None


@pytest.mark.parametrize("name", list_images())
def test_no_address_stands_in_what_an_image_installs(name: str) -> None:
    folder = load_image(name).folder
    for path in (*folder.iterdir(), folder.parent / "uv.toml"):
        assert "://" not in path.read_text(), path
