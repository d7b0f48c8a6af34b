"""A small upstream with a configuration of the kinds that the real ones have."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from dlbhpc.recipe import Upstream
from dlbhpc.upstream.record import record
from dlbhpc.upstream.surface import Surface

PIN = "1" * 40

TEXTS = {
    "config.yaml": """
defaults:
  - _self_
  - /callbacks: [every_n, monitor]
  - algo: base
  - server: train
mode: train
logger: {project: their-words, tags: [a, b]}
empty: {}
devices: ${device_count:}
half: ${div_up:${devices}, ${eval:1+1}}
where: ${hydra:runtime.cwd}/${now:%Y}
""",
    "other.yaml": "a: [broken",
    "callbacks/every_n.yaml": "every_n: {steps: 5}",
    "callbacks/monitor.yaml": "monitor: {mode: min}",
    "algo/base.yaml": "name: base",
    "algo/full.yaml": "name: full\ncurriculum: {start: 0}\n",
    "server/train.yaml": "# @package _global_\n\ndefaults:\n  - common\n"
    "  - override /hydra/launcher: joblib\nhydra: {launcher: {n_jobs: 2}}\n",
    "server/common.yaml": "# @package _global_\npaths: {top: '${path2name:x}'}\n",
    "unused/thing.yaml": "size: 1",
}


@pytest.fixture
def upstream() -> Upstream:
    return Upstream(
        name="toy",
        repository="owner/toy",
        commit=PIN,
        entrypoint="main.py",
        config="configs/config",
        import_root=".",
        spawns_ranks=False,
        objective=None,
    )


@pytest.fixture
def texts() -> dict[PurePosixPath, str]:
    return {PurePosixPath(path): text for path, text in TEXTS.items()}


@pytest.fixture
def surface(texts: dict[PurePosixPath, str], upstream: Upstream) -> Surface:
    return record(texts, upstream, PIN)


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """The same configuration as files, without what no Hydra could read."""
    folder = tmp_path / "configs"
    for path, text in TEXTS.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
