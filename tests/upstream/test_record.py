"""Recording a surface: what is read from an upstream's YAML, and what is refused."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe import Upstream
from dlbhpc.upstream.record import record, record_checkout
from dlbhpc.upstream.surface import Surface

from .conftest import PIN


def test_keys_stand_where_the_composed_configuration_has_them(surface: Surface) -> None:
    assert surface.primary.keys == (
        "devices", "empty.", "half", "logger.project", "logger.tags", "mode", "where",
    )  # fmt: skip
    assert surface.groups["callbacks"]["every_n"].keys == ("callbacks.every_n.steps",)
    # The package header puts them elsewhere than their group.
    assert surface.groups["server"]["common"].keys == ("paths.top",)
    assert surface.keys({"algo": "full"}) == {
        *surface.primary.keys,
        "callbacks.every_n.steps", "callbacks.monitor.mode", "algo.name", "algo.curriculum.start",
        "hydra.launcher.n_jobs", "paths.top",
    }  # fmt: skip
    assert "algo.curriculum.start" not in surface.keys({})


def test_defaults_resolvers_and_hydra_plugins_are_listed(surface: Surface) -> None:
    assert surface.primary.defaults == {
        "callbacks": ("every_n", "monitor"),
        "algo": ("base",),
        "server": ("train",),
    }
    assert surface.groups["server"]["train"].defaults == {"server": ("common",)}
    # Neither those of Hydra's own, nor one that is only registered.
    assert surface.resolvers == ("device_count", "div_up", "eval", "path2name")
    assert surface.hydra == {"hydra/launcher": "joblib"}
    assert surface.pinned


def test_no_value_of_the_upstream_is_kept(surface: Surface) -> None:
    text = surface.text()
    assert "logger.project" in text
    assert "every_n.steps" in text
    assert "their-words" not in text


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("algo/new.yaml", "# @package algo.inner\na: 1", r"algo/new\.yaml: the package algo.inner"),
        ("algo/new.yaml", "defaults: [{other: x}]", r"algo/new\.yaml: the default 'other'"),
        ("config.yaml", "defaults: [{algo@here: base}]", "the default 'algo@here'"),
        ("config.yaml", "defaults: [{optional algo: base}]", "the default 'optional algo'"),
        ("config.yaml", "defaults: [{algo: gone}]", "algo=gone by default"),
        ("config.yaml", "- a", "does not hold a mapping"),
        ("algo/base.yaml", "a: [", "not valid YAML"),
    ],
)
def test_a_construct_that_is_not_known_is_refused_by_name(
    texts: dict[PurePosixPath, str], upstream: Upstream, path: str, text: str, message: str
) -> None:
    with pytest.raises(DlbhpcError, match=message):
        record({**texts, PurePosixPath(path): text}, upstream, PIN)


def test_a_configuration_that_is_missing_is_refused(upstream: Upstream) -> None:
    with pytest.raises(DlbhpcError, match=r"configs/config\.yaml of toy is missing"):
        record({}, upstream, PIN)


def test_a_checkout_is_read_as_committed(
    tmp_path: Path, configs: Path, upstream: Upstream, surface: Surface
) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    (configs / "algo/base.yaml").write_text("changed: 1")
    (configs / "algo/full.yaml").unlink()
    commit = git("rev-parse", "HEAD")
    recorded = record_checkout(tmp_path, upstream)
    assert recorded == replace(surface, commit=commit, pinned=False)
    assert record_checkout(tmp_path, replace(upstream, commit=commit)).pinned


def test_a_folder_that_is_no_checkout_is_a_sentence(tmp_path: Path, upstream: Upstream) -> None:
    with pytest.raises(DlbhpcError, match="git cannot read"):
        record_checkout(tmp_path / "none", upstream)
