"""What is in a run's identity, and what is outside."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.command import Request, plan_launch
from dlbhpc.data.manifest import Manifest
from dlbhpc.layout import ADAPTERS
from dlbhpc.run import identity
from dlbhpc.run.identity import adapter_files, config_digest, identity_command, known_identity
from dlbhpc.run.inputs import prepare_run

CONFIG = """
mode: train
loader: {batch_size: 4, num_workers: 8}
checkpointing: {save_dir: /x, resume_from_ckpt: true}
optim: {lr: 0.001}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [("num_workers: 8", "num_workers: 2"), ("resume_from_ckpt: true", "resume_from_ckpt: false")],
)
def test_what_does_not_change_the_result_is_outside(old: str, new: str) -> None:
    assert config_digest(CONFIG.replace(old, new)) == config_digest(CONFIG)


@pytest.mark.parametrize(
    ("old", "new"),
    [("lr: 0.001", "lr: 0.002"), ("batch_size: 4", "batch_size: 8"), ("mode: train", "mode: eval")],
)
def test_what_changes_the_result_is_inside(old: str, new: str) -> None:
    assert config_digest(CONFIG.replace(old, new)) != config_digest(CONFIG)


def test_a_config_without_the_outside_keys_has_a_digest_too() -> None:
    assert config_digest("a: 1") != config_digest("a: 2")
    assert config_digest("loader: 3") != config_digest("loader: 4")


@given(st.integers(0, 64), st.booleans())
def test_the_command_is_the_same_whatever_workers_and_resume(workers: int, resume: bool) -> None:
    argv = [
        "python",
        "main.py",
        "optim.lr=0.001",
        f"loader.num_workers={workers}",
        f"checkpointing.resume_from_ckpt={str(resume).lower()}",
    ]
    assert identity_command(argv) == ["python", "main.py", "optim.lr=0.001"]


def _identity(root, **changes):
    launch = plan_launch(Request(recipe="reference_mdlm", root=root, **changes))
    return prepare_run(launch, "local", save_every_seconds=300, grace_seconds=30).identity


def test_workers_and_resume_flag_do_not_change_a_real_identity(root) -> None:
    assert _identity(root, num_workers=3, resume=False) == _identity(root)


@pytest.mark.parametrize(
    "changes", [{"seed": 7}, {"per_device_batch": 8}, {"trial": {}}], ids=lambda c: next(iter(c))
)
def test_seed_geometry_and_trial_change_a_real_identity(root, changes) -> None:
    assert _identity(root, **changes) != _identity(root)


def test_other_data_change_a_real_identity(root) -> None:
    before = _identity(root)
    manifest = root / "data" / "manifests" / "pydoc.json"
    manifest.write_text(manifest.read_text().replace("0" * 64, "2" * 64))
    assert _identity(root)["data"] != before["data"]


def test_other_published_weights_change_a_real_identity(root, monkeypatch) -> None:
    before = _identity(root)
    monkeypatch.setattr(
        identity, "student_init_snapshot", lambda launch: root / "snapshots" / "abc"
    )
    assert before["student_weights"] is None
    assert _identity(root)["student_weights"] == "abc"


def _duo(tmp_path):
    launch = plan_launch(Request(recipe="duo", root=tmp_path))
    return launch, Manifest(tmp_path, "0", "lm1b", 128, {})


def test_a_sentence_that_is_mended_makes_no_other_run(tmp_path) -> None:
    launch, manifest = _duo(tmp_path)
    first, *others = launch.recipe.departures
    mended = replace(launch.recipe, departures=(replace(first, reason="Said better."), *others))
    reworded = replace(launch, recipe=mended)
    before = known_identity(launch, manifest, None, None)
    assert known_identity(reworded, manifest, None, None) == before
    other = replace(launch.recipe, departures=tuple(others))
    assert known_identity(replace(launch, recipe=other), manifest, None, None) != before


@pytest.mark.parametrize(
    ("entry", "files"),
    [
        ("train_duo", {"train_duo", "duo_losses", "main_program"}),
        ("train_di4c", {"train_di4c", "main_program"}),
    ],
)
def test_what_an_adapter_imports_of_its_folder_counts_with_it(entry: str, files: set[str]) -> None:
    assert {path.stem for path in adapter_files(ADAPTERS / f"{entry}.py")} == files


def test_other_code_of_an_adapter_is_another_run(tmp_path, monkeypatch) -> None:
    launch, manifest = _duo(tmp_path)
    before = known_identity(launch, manifest, None, None)["adapter_version"]
    shutil.copytree(ADAPTERS, tmp_path / "adapters")
    monkeypatch.setattr(identity, "ADAPTERS", tmp_path / "adapters")
    moved = replace(launch, entrypoint=tmp_path / "adapters" / "train_duo.py")
    assert known_identity(moved, manifest, None, None)["adapter_version"] == before
    (tmp_path / "adapters" / "duo_losses.py").write_text("# other losses")
    assert known_identity(moved, manifest, None, None)["adapter_version"] != before
