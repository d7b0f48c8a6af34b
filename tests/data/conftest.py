"""A small prepared dataset in the shape of the pinned ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlbhpc.data.prepare import prepare_pinned
from dlbhpc.data.raw import RawPins
from dlbhpc.data.trial import make_trial_raw
from dlbhpc.layout import Layout
from dlbhpc.recipe import Dataset, read_recipe, trial_of


@dataclass(frozen=True)
class Small:
    """The small dataset of trials under a root of its own, prepared."""

    layout: Layout
    dataset: Dataset
    pins: RawPins

    @property
    def processed(self) -> Path:
        return self.layout.processed(self.dataset.processed)

    @property
    def manifest(self) -> Path:
        return self.layout.manifest(self.dataset.name)


def small_dataset(name: str) -> Dataset:
    return trial_of(read_recipe("mdlm", name), {}).dataset


@pytest.fixture(scope="session")
def prepared_small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Not to be changed: tests that do take ``small``."""
    layout = Layout.at(tmp_path_factory.mktemp("small")).of_trials()
    dataset = small_dataset("lm1b")
    pins = make_trial_raw(dataset, layout)
    prepare_pinned(dataset, pins, layout, processes=1)
    return Small(layout, dataset, pins)


@pytest.fixture
def small(prepared_small: Small, tmp_path: Path) -> Small:
    """A copy to change."""
    shutil.copytree(prepared_small.layout.data, tmp_path / "data" / "trials")
    return Small(Layout.at(tmp_path).of_trials(), prepared_small.dataset, prepared_small.pins)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What would be fetched fails at once; returns what was asked for."""
    import huggingface_hub

    asked: list[str] = []

    def fail(repository: str, **_: object) -> str:
        asked.append(repository)
        raise ConnectionError("no network in tests")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    return lambda: asked
