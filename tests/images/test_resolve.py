"""Every lock, asked anew of the package index: its versions go together, its hashes are there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.lock import read_lock
from dlbhpc.images.resolve import choose, resolve, uv
from dlbhpc.images.spec import Environment, list_images, load_environment
from dlbhpc.layout import CONTAINERS

SHA = "0" * 64


@pytest.fixture(scope="session")
def index() -> None:
    """A package index that answers."""
    if sys.version_info < (3, 11):
        pytest.skip("reading uv's answer takes the tomllib of Python 3.11")
    try:
        argv = [uv(), "pip", "compile", "--quiet", "--no-deps", "-"]
    except DlbhpcError as error:
        pytest.skip(str(error))
    done = subprocess.run(argv, input="wheel==0.45.1\n", capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"the package index does not answer: {done.stderr.strip()[-200:]}")


@pytest.mark.index
@pytest.mark.slow
@pytest.mark.parametrize("name", list_images())
def test_the_lock_resolves_with_its_hashes_for_its_python_and_platform(
    name: str, index: None
) -> None:
    locked = read_lock(CONTAINERS / name / "requirements.lock")
    assert resolve(CONTAINERS / name, locked) == locked


@pytest.mark.index
def test_a_version_that_goes_with_no_other_does_not_resolve(index: None) -> None:
    locked = read_lock(CONTAINERS / "reference" / "requirements.lock")
    wrong = [replace(p, version="1.0.0") if p.name == "lightning" else p for p in locked]
    with pytest.raises(
        DlbhpcError, match=r"reference/requirements.in: uv says(.|\n)*lightning==1.0.0"
    ):
        resolve(CONTAINERS / "reference", wrong)


@pytest.fixture
def environment() -> Environment:
    return replace(load_environment(CONTAINERS / "duo"), python="3.11", from_source=())


def package(*files: str, name: str = "one", sdist: bool = True) -> dict[str, Any]:
    """A package as uv tells it; each wheel's hash is its place."""
    wheels = [
        {"url": f"https://index.example/{file}", "hashes": {"sha256": f"{place:064x}"}}
        for place, file in enumerate(files, start=1)
    ]
    found: dict[str, Any] = {"name": name, "version": "1.0", "wheels": wheels}
    return {**found, "sdist": {"hashes": {"sha256": SHA}}} if sdist else found


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (("one-1.0-py3-none-any.whl", "one-1.0-cp311-cp311-manylinux2014_x86_64.whl"), 2),
        (("one-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "one-1.0-cp310-abi3-any.whl"), 1),
        (
            (
                "one-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
                "one-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
                "one-1.0-cp311-cp311-manylinux_2_35_x86_64.whl",
            ),
            2,
        ),
        (("one-1.0-cp312-cp312-manylinux2014_x86_64.whl", "one-1.0-py3-none-any.whl"), 2),
        (("one-1.0-cp311-cp311-macosx_11_0_arm64.whl", "one-1.0-py3-none-any.whl"), 2),
    ],
)
def test_the_wheel_is_the_one_that_pip_would_take_in_the_image(
    files: tuple[str, ...], chosen: int, environment: Environment
) -> None:
    assert choose([package(*files)], environment)[0].sha256 == f"{chosen:064x}"


def test_a_package_without_a_wheel_must_be_said_to_be_built(environment: Environment) -> None:
    foreign = package("one-1.0-cp311-cp311-win_amd64.whl")
    with pytest.raises(DlbhpcError, match=r"one 1.0 has no wheel: name it in from_source"):
        choose([foreign], environment)
    built = replace(environment, from_source=("one",))
    assert choose([foreign], built)[0].sha256 == SHA
    with pytest.raises(DlbhpcError, match=r"has a wheel: do not name it"):
        choose([package("one-1.0-py3-none-any.whl")], built)
