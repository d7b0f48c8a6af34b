"""Fixtures of the whole suite: project roots, real and make-believe, and launches in them."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.record import Run
from tests.project import Project

SAMPLES = 100


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first, so that no worker is left with one at the end."""
    items.sort(
        key=lambda item: (item.get_closest_marker("slow") is None, "random" not in item.name)
    )


@pytest.fixture(scope="session", autouse=True)
def no_profiles_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and what they start, see the cluster profiles that are shipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project root in which pydoc counts as prepared (its blocks are not there)."""
    manifest = tmp_path / "data" / "manifests" / "pydoc.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(
        json.dumps(
            {
                "schema_version": 1,
                "dataset": "pydoc",
                "sequence_length": 128,
                "vocab_size": 1024,
                "splits": {"train": {"samples": SAMPLES, "sha256": "0" * 64}},
                "features": {"input_ids": "int32"},
                "tokenizer_revision": "1" * 64,
            }
        )
    )
    (tmp_path / "data" / "processed" / "pydoc-bpe-128").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def launch(root: Path) -> Launch:
    """The bundled recipe's launch in that root."""
    return plan_launch(Request(recipe="reference_mdlm", root=root))


@pytest.fixture
def run(launch: Launch) -> Run:
    """The bundled recipe's run in that root; its output folder is there, and empty."""
    launch.output.folder.mkdir(parents=True)
    return prepare_run(launch, "local", save_every_seconds=300, grace_seconds=30)


@pytest.fixture
def write_checkpoint() -> Callable[[Path, Any], bytes]:
    """Writes a file in torch's checkpoint format (a ZIP archive around a pickle), without torch."""

    def write(path: Path, value: Any) -> bytes:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
            archive.writestr("archive/version", "3\n")
        return path.read_bytes()

    return write


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled dataset, prepared once."""
    from dlbhpc.data import prepare_pydoc

    root = tmp_path_factory.mktemp("prepared")
    prepare_pydoc(root)
    return root


@pytest.fixture
def new_project(prepared: Path, tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """Makes project roots with the prepared data in them; their jobs are gone afterwards."""
    projects: list[Project] = []

    def make(name: str, **options: Any) -> Project:
        shutil.copytree(prepared / "data", tmp_path / name / "data")
        projects.append(Project(tmp_path / name, **options))
        return projects[-1]

    yield make
    for project in projects:
        project.kill_everything()


@pytest.fixture
def project(new_project: Callable[..., Project]) -> Project:
    """One such root, for jobs of this machine."""
    return new_project("project")
