"""What BASE= may name, and the digests that are required from the first build on."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.base import Base, parse_base, pinned, read_base_lock, write_base_lock
from dlbhpc.images.spec import ImageSpec, load_image

DIGEST = "sha256:" + "d" * 64
MIRROR = "http://mirror.example.org/debian"


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("docker:python:3.11-bookworm", Base("docker", "python:3.11-bookworm")),
        ("docker://ghcr.io/a/b:1", Base("docker", "ghcr.io/a/b:1")),
        ("docker:localhost:5000/b", Base("docker", "localhost:5000/b")),
        (f"docker:a/b@{DIGEST}", Base("docker", f"a/b@{DIGEST}")),
        (f"debootstrap:bookworm@{MIRROR}", Base("debootstrap", "bookworm", MIRROR)),
    ],
)
def test_a_base_is_read(text: str, base: Base, reference: ImageSpec) -> None:
    assert parse_base(text, reference) == base


@pytest.mark.parametrize(
    "text",
    [
        *("python:3.11", "docker:", "docker:A B", "docker:a\nb", "library:x", ""),
        *("debootstrap:bookworm", "debootstrap:bookworm@/local"),
        *(f"debootstrap:@{MIRROR}", f"debootstrap:x y@{MIRROR}"),
    ],
)
def test_what_is_no_base_is_refused(text: str, reference: ImageSpec) -> None:
    with pytest.raises(DlbhpcError, match="is not a base: write docker:REFERENCE"):
        parse_base(text, reference)


def test_a_local_image_must_be_there(tmp_path: Path, reference: ImageSpec) -> None:
    with pytest.raises(DlbhpcError, match="there is no image"):
        parse_base(f"localimage:{tmp_path / 'none.sif'}", reference)


@pytest.mark.parametrize(
    ("name", "suite", "told"),
    [
        ("reference", "bullseye", "needs Python 3.11, Debian bullseye has 3.9: choose bookworm"),
        ("duo", "bookworm", "needs Python 3.12, Debian bookworm has 3.11: no release of Debian"),
        ("mdlm", "sid", "Debian sid has none that is known here: choose bullseye"),
    ],
)
def test_a_debian_without_the_images_python_is_refused(name: str, suite: str, told: str) -> None:
    with pytest.raises(DlbhpcError, match=told):
        parse_base(f"debootstrap:{suite}@{MIRROR}", load_image(name))


def test_the_digests_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "base.lock"
    assert read_base_lock(path) == {}
    locked = {"docker.io/library/python:3.9": DIGEST, "localhost:5000/a": DIGEST}
    write_base_lock(path, locked)
    assert read_base_lock(path) == locked


def test_a_broken_line_of_the_base_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "base.lock"
    path.write_text("# words\npython:3.9@sha256:123\n")
    with pytest.raises(DlbhpcError, match=r"base.lock, line 2: .* is not REFERENCE@sha256:DIGEST"):
        read_base_lock(path)


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        ("docker.io/library/python:3.9-bookworm", f"docker.io/library/python@{DIGEST}"),
        ("localhost:5000/a/b:1", f"localhost:5000/a/b@{DIGEST}"),
        ("localhost:5000/a", f"localhost:5000/a@{DIGEST}"),
        ("python:3", f"python@{DIGEST}"),
        (f"a/b@{DIGEST}", f"a/b@{DIGEST}"),
    ],
)
def test_a_pinned_reference_has_no_tag(reference: str, wanted: str) -> None:
    assert pinned(reference, DIGEST) == wanted
