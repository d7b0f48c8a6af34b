"""Where profiles are found, and how one builds on others: by Hydra's rules."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import PROFILES
from dlbhpc.scheduler.profile import load_profile, read_profile
from dlbhpc.scheduler.profile_files import list_profiles, profile_folders

MINIMAL = "scheduler: slurm\ngrace_seconds: 60\nsave_every_minutes: 5\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "dlbhpc" / "profiles"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project root with a folder of profiles."""
    (tmp_path / "root" / "slurm" / "profiles").mkdir(parents=True)
    return tmp_path / "root"


def by_hydra(name: str, folders: Sequence[Path], primary: Path) -> dict[str, Any]:
    """The profile as Hydra composes it, from the parents of those folders in that order."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    primary.mkdir()
    parents = ", ".join(f"file://{folder.parent}" for folder in folders)
    (primary / "config.yaml").write_text(f"hydra: {{searchpath: [{parents}]}}\n")
    with initialize_config_dir(str(primary), version_base="1.3"):
        composed = compose("config", [f"+profiles={name}"])
    values = OmegaConf.to_container(composed.profiles)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def test_the_project_comes_before_the_user_and_the_user_before_what_is_shipped(
    home: Path, project: Path
) -> None:
    (project / "slurm/profiles/site.yaml").write_text(MINIMAL + "qos: project\n")
    (home / "site.yaml").write_text(MINIMAL + "qos: user\n")
    (home / "slurm.yaml").write_text(MINIMAL + "qos: user\n")
    assert load_profile("site", project).qos == "project"
    assert load_profile("slurm", project).qos == "user"
    assert load_profile("devcluster", project).partition == "requeue"
    assert profile_folders(project) == (project / "slurm/profiles", home, PROFILES)
    # The shipped folder is the checkout's own, which is the default project root.
    assert profile_folders() == (home, PROFILES)


def test_a_profile_of_the_user_builds_on_a_shipped_one(home: Path, project: Path) -> None:
    (home / "site.yaml").write_text("defaults: [slurm]\npartition: gpu\n")
    profile, shipped = load_profile("site", project), load_profile("slurm", project)
    assert (profile.partition, profile.name) == ("gpu", "site")
    assert (profile.time, profile.grace_seconds) == (shipped.time, shipped.grace_seconds)


def test_an_error_names_the_file_that_the_value_stands_in(home: Path, project: Path) -> None:
    (home / "below.yaml").write_text(MINIMAL + "time: soon\n")
    (home / "site.yaml").write_text("defaults: [below]\npartition: gpu\n")
    with pytest.raises(DlbhpcError, match=r"below\.yaml: time is wrong"):
        load_profile("site", project)


def test_an_unknown_profile_names_the_nearest_all_and_where_to_write_it(
    home: Path, project: Path
) -> None:
    (home / "mysite.yaml").write_text(MINIMAL)
    with pytest.raises(DlbhpcError) as caught:
        load_profile("mysight", project)
    words = str(caught.value)
    assert "'mysight' (did you mean mysite?)" in words
    assert "devcluster, local, mysite, slurm" in words
    assert all(str(folder) in words for folder in (home, project / "slurm/profiles", PROFILES))


@pytest.mark.parametrize("name", ["../site", "a b", "a\nb", "-x", "", ".hidden"])
def test_a_file_whose_name_would_not_do_in_a_script_is_no_profile(
    home: Path, project: Path, name: str
) -> None:
    if "/" not in name:
        (home / f"{name}.yaml").write_text(MINIMAL)
    assert set(list_profiles(profile_folders(project))) == {"devcluster", "local", "slurm"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defaults: [site]\n", "builds on itself"),
        ("defaults: [other]\n", "builds on itself"),
        ("defaults: [nowhere]\n", "builds on 'nowhere', which is none of devcluster, local"),
        ("defaults: slurm\n", "defaults must be a list of profile names"),
        ("defaults: [{override slurm: x}]\n", "defaults must be a list of profile names"),
    ],
)
def test_bad_defaults_are_refused(home: Path, project: Path, text: str, message: str) -> None:
    (home / "other.yaml").write_text("defaults: [site]\n")
    (home / "site.yaml").write_text(text)
    with pytest.raises(DlbhpcError, match=r"site\.yaml") as caught:
        load_profile("site", project)
    assert message in str(caught.value)


SHIPPED = sorted(PROFILES.rglob("*.yaml"))
CHAINS = {
    "implicit": "defaults: [slurm]\ntime: '5'\n",
    "own_first": "defaults: [_self_, slurm]\ntime: '5'\npartition: x\n",
    "own_last": "defaults: [slurm, _self_]\ntime: '5'\n",
    "two": "defaults: [slurm, base, _self_]\nqos: x\nenvironment: {B: b}\n",
    "three": "defaults: [two]\nenvironment: {B: other, C: c}\nmodules: [z]\npartition: null\n",
    "base": "environment: {A: a, B: below}\nmodules: [x, y]\npartition: gpu\n",
}


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED])
def test_shipped_profiles_are_what_hydra_composes(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "slurm" / "profiles"
    folder.mkdir(parents=True)
    for path in SHIPPED:
        shutil.copy(path, folder)
    assert read_profile(name, [folder]).values == by_hydra(name, [folder], tmp_path / "primary")


@pytest.mark.parametrize("name", CHAINS)
def test_chains_over_several_folders_are_what_hydra_composes(
    home: Path, project: Path, tmp_path: Path, name: str
) -> None:
    for index, (other, text) in enumerate(CHAINS.items()):
        folder = project / "slurm" / "profiles" if index % 2 else home
        (folder / f"{other}.yaml").write_text(text)
    folders = profile_folders(project)
    assert read_profile(name, folders).values == by_hydra(name, folders, tmp_path / "primary")


def test_every_value_names_the_file_that_it_stands_in(home: Path, project: Path) -> None:
    for name, text in CHAINS.items():
        (home / f"{name}.yaml").write_text(text)
    sources = read_profile("three", profile_folders(project)).sources
    assert sources["modules"] == home / "three.yaml"
    assert sources["qos"] == home / "two.yaml"
    assert sources["time"] == PROFILES / "slurm.yaml"
