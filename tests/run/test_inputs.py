"""The inputs of a run: its data's cache, and its teacher from the completed base run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.command import Launch, Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.files import file_digest, write_json
from dlbhpc.inputs.teaching import ensure_adapted_teacher
from dlbhpc.layout import OutputLayout
from dlbhpc.run import inputs
from dlbhpc.run.inputs import prepare_run
from dlbhpc.run.record import Run, write_records
from tests.inputs.teacher.conftest import hyper_parameters, make_state, save

MDLM = {"parameterization": "subs", "diffusion": "absorbing_state"}


@pytest.fixture
def bridged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Checkouts count as pinned; returns the upstreams whose cache was asked for."""
    asked: list[str] = []
    monkeypatch.setattr(inputs, "verify_checkout", lambda *_: None)
    monkeypatch.setattr(inputs, "ensure_bridge", lambda upstream, *_: asked.append(upstream))
    return asked


def launch_of(root: Path, recipe: str, **request: Any) -> Launch:
    launch = plan_launch(Request(recipe=recipe, trial={}, root=root, **request))
    dataset = launch.recipe.dataset
    launch.manifest.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "dataset": dataset.name,
        "sequence_length": dataset.sequence_length,
        "features": {"input_ids": "int32"},
    }
    launch.manifest.write_text(json.dumps(content))
    return launch


def run_of(launch: Launch) -> Run:
    return prepare_run(launch, "local", save_every_seconds=300, grace_seconds=30)


def trained(launch: Launch, *, completed: bool = True) -> OutputLayout:
    """What a base run leaves."""
    output = launch.output
    output.folder.mkdir(parents=True)
    write_records(run_of(launch))
    state = make_state(512, blocks=2, h=64, c=128, f=256)
    checkpoint = launch.selected_checkpoint
    save(checkpoint, state, hyper_parameters=hyper_parameters(**MDLM))
    if completed:
        record = {
            "identity": "x",
            "identity_fields": {},
            "checkpoint": checkpoint.name,
            "checkpoint_bytes": checkpoint.stat().st_size,
            "checkpoint_sha256": file_digest(checkpoint),
            "composed_config_sha256": "x",
            "step": 20,
        }
        write_json(output.completed, record)
    return output


def test_the_result_of_the_completed_base_run_teaches(tmp_path: Path, bridged: list[str]) -> None:
    base = trained(launch_of(tmp_path, "mdlm"))
    run = run_of(launch_of(tmp_path, "mdlm_sdtt"))
    assert bridged == ["mdlm", "sdtt"]
    assert run.launch.teacher == base.folder / "model.ckpt"
    assert run.identity["teacher"] == file_digest(base.folder / "model.ckpt")
    assert run.identity["adapter_version"] is not None
    assert not run.launch.output.folder.exists()


def test_a_base_run_that_is_not_complete_teaches_nobody(tmp_path: Path, bridged: list[str]) -> None:
    trained(launch_of(tmp_path, "mdlm"), completed=False)
    with pytest.raises(DlbhpcError, match=r"lm1b/mdlm is not complete, so .*model\.ckpt is not"):
        run_of(launch_of(tmp_path, "mdlm_sdtt"))


def test_a_result_that_is_not_what_the_base_run_completed_with_is_refused(
    tmp_path: Path, bridged: list[str]
) -> None:
    base = trained(launch_of(tmp_path, "mdlm"))
    with (base.folder / "model.ckpt").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DlbhpcError, match=r"model\.ckpt: sha256 differs from that in"):
        run_of(launch_of(tmp_path, "mdlm_sdtt"))


def test_a_folder_with_another_recipes_run_is_no_base_run(
    tmp_path: Path, bridged: list[str]
) -> None:
    folder = launch_of(tmp_path, "mdlm").output.folder
    trained(launch_of(tmp_path, "candi", output=folder))
    with pytest.raises(DlbhpcError, match="holds a run of candi on lm1b, the teacher of mdlm_sdtt"):
        run_of(launch_of(tmp_path, "mdlm_sdtt"))


def test_a_run_of_another_kind_in_the_base_runs_place_vouches_for_no_file(
    tmp_path: Path, bridged: list[str]
) -> None:
    folder = trained(launch_of(tmp_path, "mdlm")).folder
    run = json.loads((folder / "run.json").read_text())
    run["run"]["launch"]["recipe"]["name"] = "rdlm"
    run["run"]["launch"]["selected_checkpoint"] = str(folder / "checkpoints" / "checkpoint_50.pth")
    write_json(folder / "run.json", run)
    with pytest.raises(DlbhpcError, match="holds a run of rdlm on lm1b, the teacher of mdlm_sdtt"):
        run_of(launch_of(tmp_path, "mdlm_sdtt"))


def test_a_file_in_the_base_runs_place_without_a_run_teaches_nobody(
    tmp_path: Path, bridged: list[str]
) -> None:
    base = trained(launch_of(tmp_path, "mdlm"))
    base.run.unlink()
    with pytest.raises(DlbhpcError, match=r"nothing says where .*model\.ckpt is from"):
        run_of(launch_of(tmp_path, "mdlm_sdtt"))


def test_a_base_run_that_was_moved_is_still_proved(tmp_path: Path, bridged: list[str]) -> None:
    trained(launch_of(tmp_path / "before", "mdlm"), completed=False)
    (tmp_path / "before").rename(tmp_path / "after")
    with pytest.raises(DlbhpcError, match="lm1b/mdlm is not complete"):
        run_of(launch_of(tmp_path / "after", "mdlm_sdtt"))


def test_the_milestones_of_an_upstream_that_makes_a_step_more_lie_where_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bridged: list[str]
) -> None:
    monkeypatch.setattr(inputs, "ensure_text_cache", lambda *_: None)
    launch = launch_of(tmp_path, "rdlm")
    every, run = launch.recipe.milestone_every, run_of(launch)
    assert every is not None
    assert run.milestones[0] == every + 1
    assert run.milestones[-1] == run.total_steps == launch.recipe.steps + 1


def test_an_explicit_checkpoint_needs_no_run(tmp_path: Path, bridged: list[str]) -> None:
    state = make_state(512, blocks=2, h=64, c=128, f=256)
    save(tmp_path / "t.ckpt", state, hyper_parameters=hyper_parameters(**MDLM))
    run = run_of(launch_of(tmp_path, "mdlm_sdtt", teacher=Path("t.ckpt")))
    assert run.identity["teacher"] == file_digest(tmp_path / "t.ckpt")


@pytest.mark.parametrize("recipe", ["mdlm_sdtt", "duo_dcd"], ids=["adapted", "as it is"])
def test_an_attempt_refuses_another_teacher_than_its_run_was_submitted_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bridged: list[str], recipe: str
) -> None:
    monkeypatch.setattr(inputs, "check_launch_teacher", lambda launch: None)
    (tmp_path / "t.ckpt").write_bytes(b"one")
    run = run_of(launch_of(tmp_path, recipe, teacher=Path("t.ckpt")))
    manifest = inputs.verify_inputs(run.launch, None)
    inputs.check_same_inputs(run, manifest)
    (tmp_path / "t.ckpt").write_bytes(b"another, as of a base run that trains on")
    with pytest.raises(DlbhpcError, match=r"began with other inputs \(teacher: \w+ then"):
        inputs.check_same_inputs(run, manifest)


def test_a_teacher_that_the_upstream_reads_itself_must_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bridged: list[str]
) -> None:
    monkeypatch.setattr(inputs, "check_launch_teacher", lambda launch: None)
    (tmp_path / "t.ckpt").write_bytes(b"one")
    run = run_of(launch_of(tmp_path, "duo_dcd", teacher=Path("t.ckpt")))
    (tmp_path / "t.ckpt").unlink()
    with pytest.raises(DlbhpcError, match=r"the teacher .*t\.ckpt is missing"):
        inputs.verify_inputs(run.launch, None)


def test_a_run_goes_on_without_the_base_run_once_its_teacher_is_adapted(
    tmp_path: Path, bridged: list[str]
) -> None:
    base = trained(launch_of(tmp_path, "mdlm"))
    run = run_of(launch_of(tmp_path, "mdlm_sdtt"))
    ensure_adapted_teacher(run.launch, run.identity["teacher"])
    shutil.rmtree(base.folder)
    with pytest.raises(DlbhpcError, match=r"nothing says where .*model\.ckpt is from"):
        run_of(run.launch)
    write_records(run)
    assert run_of(run.launch).identity == run.identity, "submitted again"
    inputs.check_same_inputs(run, inputs.verify_inputs(run.launch, None))


def test_a_teacher_that_cannot_teach_is_refused_before_anything_is_submitted(
    tmp_path: Path, bridged: list[str]
) -> None:
    parameters = hyper_parameters(algo={"name": "duo"})
    save(tmp_path / "t.ckpt", make_state(512), hyper_parameters=parameters)
    with pytest.raises(DlbhpcError, match=r"t\.ckpt is of the family uniform_duo"):
        run_of(launch_of(tmp_path, "mdlm_sdtt", teacher=Path("t.ckpt")))
    assert not (tmp_path / "checkpoints").exists()


def test_a_missing_teacher_is_said_before_the_cache_is_written(
    tmp_path: Path, bridged: list[str]
) -> None:
    with pytest.raises(DlbhpcError, match="--with-teacher"):
        run_of(launch_of(tmp_path, "mdlm_sdtt"))
    assert bridged == []
