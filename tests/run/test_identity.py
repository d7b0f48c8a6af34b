"""What is in a run's identity, and what is outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.command import Request, plan_launch
from dlbhpc.run import inputs
from dlbhpc.run.identity import config_digest, identity_command
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
    monkeypatch.setattr(inputs, "student_init_snapshot", lambda launch: root / "snapshots" / "abc")
    assert before["student_weights"] is None
    assert _identity(root)["student_weights"] == "abc"
