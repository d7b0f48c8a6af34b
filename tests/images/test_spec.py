"""What containers/ says of the eight images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.images.spec import list_images, load_image
from dlbhpc.layout import CONTAINERS

PYTHONS = {
    "candi": "3.11",
    "di4c": "3.10",
    "duo": "3.12",
    "flm": "3.11",
    "mdlm": "3.9",
    "rdlm": "3.9",
    "reference": "3.11",
    "sdtt": "3.10",
}


def test_there_is_an_image_for_every_upstream() -> None:
    assert list_images() == sorted(PYTHONS)


@pytest.mark.parametrize(("name", "python"), PYTHONS.items())
def test_each_image_has_the_python_that_trains_its_upstream(name: str, python: str) -> None:
    spec = load_image(name)
    assert spec.environment.python == python
    assert spec.environment.base.startswith(f"docker.io/library/python:{python}.")


def test_an_upstream_without_a_licence_file_is_not_redistributable() -> None:
    kept = [name for name in list_images() if not load_image(name).redistributable]
    assert kept == ["candi", "rdlm", "sdtt"]


@pytest.mark.parametrize("name", list_images())
def test_each_deviation_has_a_reason(name: str) -> None:
    for deviation in load_image(name).environment.deviations:
        assert len(deviation.reason.split()) >= 3, deviation


@pytest.mark.parametrize("name", list_images())
def test_what_the_index_has_no_wheel_of_never_comes_from_elsewhere(name: str) -> None:
    """Their setup.py would download a binary from a release page, past the hash of the lock."""
    environment = load_image(name).environment
    forced = {
        "flash-attn": "FLASH_ATTENTION_FORCE_BUILD",
        "causal-conv1d": "CAUSAL_CONV1D_FORCE_BUILD",
        "mamba-ssm": "MAMBA_FORCE_BUILD",
    }
    for package, variable in forced.items():
        if package in environment.from_source:
            assert environment.build_environment[variable] == "TRUE"
            assert environment.cuda is not None


def test_what_a_package_without_a_wheel_needs_is_said_so_that_resolving_runs_no_setup_py() -> None:
    said = re.findall(r'(?m)^name = "(.+)"$', (CONTAINERS / "uv.toml").read_text())
    built = {name for image in list_images() for name in load_image(image).environment.from_source}
    assert set(said) == built


def test_an_unknown_image_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DlbhpcError, match="no image 'dou': choose one of candi, di4c, duo"):
        load_image("dou")


def test_an_unknown_key_is_refused(own_containers: Path) -> None:
    path = own_containers / "duo" / "image.yaml"
    path.write_text(path.read_text() + "pyhton: '3.12'\n")
    with pytest.raises(DlbhpcError, match="unknown key 'pyhton'"):
        load_image("duo", own_containers)


def test_a_package_to_build_must_be_locked(own_containers: Path) -> None:
    path = own_containers / "rdlm" / "image.yaml"
    path.write_text(path.read_text().replace("[antlr4", "[apex, antlr4"))
    with pytest.raises(DlbhpcError, match="from_source names apex, which the lock"):
        load_image("rdlm", own_containers)
