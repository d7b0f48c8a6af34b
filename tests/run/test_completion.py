"""Completion is proven by the checkpoint, and what is complete is never overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.command import Request, plan_launch
from dlbhpc.errors import DlbhpcError
from dlbhpc.recipe import read_recipe
from dlbhpc.run import completion, inputs
from dlbhpc.run.record import Run
from dlbhpc.steps import begin_attempt, open_publication

Write = Callable[[Path, Any], bytes]


@pytest.fixture
def publish_step(run: Run, tmp_path: Path, write_checkpoint: Write) -> Callable[..., None]:
    """Publishes a step directory whose checkpoint says `inside`."""

    def publish(step: int, inside: int, contract: dict[str, Any] | None = None) -> None:
        steps = run.launch.output.steps
        attempt = begin_attempt(steps)
        data = write_checkpoint(tmp_path / "state", {"global_step": inside})
        with open_publication(steps, step=step, attempt=attempt) as publication:
            with publication.create("training_state.pt") as file:
                file.write(data)
            publication.commit(contract=contract or dict(run.contract), world=1)

    return publish


def complete(run: Run) -> dict[str, Any]:
    run.launch.output.composed_config.write_text("mode: train\n")
    final = completion.find_final(run)
    assert final is not None
    completion.publish(
        run, final, "identity", completion.file_digest(run.launch.output.composed_config)
    )
    record = completion.read_completed(run.launch.output)
    assert record is not None
    return record


def test_the_last_step_is_proven_by_the_step_inside(run: Run, publish_step) -> None:
    assert completion.find_final(run) is None
    publish_step(run.total_steps - 1, run.total_steps - 1)
    assert completion.find_final(run) is None
    publish_step(run.total_steps, run.total_steps)
    final = completion.find_final(run)
    assert final is not None
    assert final.step == run.total_steps


def test_a_name_that_claims_the_last_step_proves_nothing(run: Run, publish_step) -> None:
    publish_step(run.total_steps, run.total_steps - 1)
    assert completion.find_final(run) is None


def test_the_last_step_of_another_contract_proves_nothing(run: Run, publish_step) -> None:
    publish_step(run.total_steps, run.total_steps, {**run.contract, "seed": 43})
    assert completion.find_final(run) is None


def test_a_selected_step_is_the_result_once_the_last_one_is_proven(run: Run, publish_step) -> None:
    selected = run.total_steps - 2
    recipe = replace(run.launch.recipe, selected_step=selected)
    run = replace(run, launch=replace(run.launch, recipe=recipe))
    publish_step(selected, selected)
    assert completion.find_final(run) is None
    publish_step(run.total_steps, run.total_steps)
    record = complete(run)
    assert record["step"] == selected
    assert record["checkpoint_source"] == f"steps/step-{selected:08d}/training_state.pt"


def test_the_last_step_never_stands_in_for_a_selected_one(run: Run, publish_step) -> None:
    recipe = replace(run.launch.recipe, selected_step=run.total_steps - 2)
    run = replace(run, launch=replace(run.launch, recipe=recipe))
    publish_step(run.total_steps, run.total_steps)
    assert completion.find_final(run) is None


def test_a_completed_run_is_recorded_with_its_checkpoint(run: Run, publish_step) -> None:
    publish_step(run.total_steps, run.total_steps)
    record = complete(run)
    checkpoint = run.launch.selected_checkpoint
    assert record["checkpoint"] == checkpoint.name == "model.ckpt"
    assert record["step"] == run.total_steps
    assert record["checkpoint_sha256"] == completion.file_digest(checkpoint)
    completion.check_same_run(run.launch.output, record, dict(run.identity))
    completion.check_intact(run.launch.output, record, content=True)


def test_the_completed_run_of_another_identity_is_refused(run: Run, publish_step) -> None:
    publish_step(run.total_steps, run.total_steps)
    record = complete(run)
    with pytest.raises(DlbhpcError, match=r"another identity .*seed.*choose another --output"):
        completion.check_same_run(run.launch.output, record, {**run.identity, "seed": 43})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "size differs"),
        (lambda data: data + b"x", "size differs"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "sha256 differs"),
        (None, "is missing"),
    ],
)
def test_a_completed_run_whose_checkpoint_changed_is_refused(
    run: Run, publish_step, damage, message: str
) -> None:
    publish_step(run.total_steps, run.total_steps)
    record = complete(run)
    checkpoint = run.launch.selected_checkpoint
    data = checkpoint.read_bytes()
    checkpoint.unlink()
    if damage is not None:
        checkpoint.write_bytes(damage(data))
    with pytest.raises(DlbhpcError, match=message):
        completion.check_intact(run.launch.output, record, content=True)


def test_a_completed_run_whose_composed_config_changed_is_refused(run: Run, publish_step) -> None:
    publish_step(run.total_steps, run.total_steps)
    record = complete(run)
    run.launch.output.composed_config.write_text("mode: eval\n")
    with pytest.raises(DlbhpcError, match=r"composed_config\.yaml: sha256 differs"):
        completion.check_intact(run.launch.output, record, content=False)


def test_publishing_falls_back_to_a_copy_where_links_are_refused(
    run: Run, publish_step, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_step(run.total_steps, run.total_steps)

    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(completion.os, "link", refuse)
    record = complete(run)
    completion.check_intact(run.launch.output, record, content=True)
    assert [p.name for p in run.launch.output.folder.glob(".model*")] == []


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"step": 1})])
def test_a_torn_completion_record_is_a_sentence(run: Run, text: str) -> None:
    run.launch.output.completed.write_text(text)
    with pytest.raises(DlbhpcError, match=r"completed\.json"):
        completion.read_completed(run.launch.output)


def test_a_selected_checkpoint_may_lie_in_a_folder_of_its_own(run: Run, publish_step) -> None:
    publish_step(run.total_steps, run.total_steps)
    selected = run.launch.output.folder / "student_checkpoints" / "70000.ckpt"
    record = complete(replace(run, launch=replace(run.launch, selected_checkpoint=selected)))
    assert record["checkpoint"] == "student_checkpoints/70000.ckpt"
    assert selected.is_file()


def test_hazard_29_rdlm_makes_one_step_more_and_names_it_otherwise(
    run: Run, tmp_path: Path, write_checkpoint: Write
) -> None:
    rdlm = read_recipe("rdlm").upstream
    recipe = replace(run.launch.recipe, upstream=rdlm)
    run = replace(run, launch=replace(run.launch, recipe=recipe))
    steps = run.launch.output.steps
    data = write_checkpoint(tmp_path / "state", {"step": run.total_steps})
    with open_publication(steps, step=run.total_steps, attempt=begin_attempt(steps)) as publication:
        with publication.create("training_state.pt") as file:
            file.write(data)
        publication.commit(contract=dict(run.contract), world=1)
    final = completion.find_final(run)
    assert final is not None and final.step == run.total_steps


@pytest.mark.parametrize(
    ("recipe", "last", "kept"), [("rdlm", 1_000_001, 1_000_001), ("mdlm_sdtt", 80_000, 70_000)]
)
def test_the_last_step_and_the_one_that_is_the_result_are_planned_for(
    root: Path, recipe: str, last: int, kept: int
) -> None:
    launch = plan_launch(Request(recipe, root=root))
    _, total, milestones = inputs._plan(launch, manifest=None)  # type: ignore[arg-type]
    assert total == last
    assert kept in milestones
