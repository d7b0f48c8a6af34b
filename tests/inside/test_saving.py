"""When steps are published, what is kept, and what happens when they cannot be."""

from __future__ import annotations

import errno
import json

import pytest
import torch

from dlbhpc.exit_status import FENCED, REQUEUE, STORAGE
from dlbhpc.inside.saving import averaged_weights, is_storage_failure


def saved(run):
    return [(e["step"], e["reason"]) for e in run.events() if e["event"] == "saved"]


def test_milestones_and_the_last_step_are_published_and_kept(toy):
    run = toy()
    context = {"milestones": [6, 12], "milestone_every": 5, "keep_last": 1}
    assert run.attempt(context) == [0], run.logs
    reasons = {5, 6, 10, 12, 15, 20}
    assert saved(run) == [*((step, "milestone") for step in sorted(reasons)), (24, "final")]
    assert run.steps() == [5, 6, 10, 12, 15, 20, 24]
    assert run.event("finished")["step"] == 24
    assert run.progress()["step"] == run.progress()["total"] == 24


def test_time_based_saves_keep_the_last_few(toy):
    run = toy(samples=12, devices=2)
    assert run.attempt({"save_every_seconds": 0, "keep_last": 2}) == [0, 0], run.logs
    assert saved(run) == [(1, "time"), (2, "time"), (3, "final")]
    assert run.steps() == [2, 3]


def test_the_step_before_a_validation_is_published_with_its_own_weights(toy):
    run = toy(validate_every=8)
    assert run.attempt({"keep_last": 9}) == [0], run.logs
    assert saved(run) == [(8, "validation"), (16, "validation"), (24, "final")]
    events = [
        (e["event"], e["step"]) for e in run.events() if e["event"] in ("saved", "validation")
    ]
    assert events == [(name, step) for step in (8, 16, 24) for name in ("saved", "validation")]
    assert "val/nll" in next(e for e in run.events() if e["event"] == "validation")["metrics"]


def test_the_record_and_the_export_belong_to_the_state(toy):
    run = toy(samples=12, devices=2)
    assert run.attempt() == [0, 0], run.logs
    folder = run.steps_dir / "step-00000003"
    record = json.loads((folder / "COMPLETE.json").read_text())
    assert (record["step"], record["world"], record["attempt"]) == (3, 2, 1)
    assert record["contract"] == {"objective": "toy", "seed": 1}
    state = torch.load(folder / "training_state.pt", weights_only=True)
    export = torch.load(folder / "model_bf16.pt", weights_only=True)["state_dict"]
    assert state["global_step"] == 3
    assert len(state["dlbhpc"]["ranks"]) == 2
    assert list(export) == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    for tensor, shadow in zip(export.values(), state["ema"], strict=True):
        assert torch.equal(tensor, shadow.bfloat16())


def test_a_full_disk_is_tried_again_and_training_goes_on(toy):
    run = toy(samples=12)
    assert run.attempt({"milestones": [2]}, fail_saves=1) == [0], run.logs
    assert saved(run) == [(2, "milestone"), (6, "final")]


def test_a_failed_periodic_save_does_not_end_the_training(toy):
    run = toy(samples=12, devices=2)
    assert run.attempt({"milestones": [1, 2]}, fail_saves=2) == [0, 0], run.logs
    assert saved(run) == [(2, "milestone"), (3, "final")]
    failed = run.event("save_failed")
    assert (failed["step"], failed["outcome"]) == (1, "STORAGE")
    assert "No space left" in failed["error"]


def test_three_failed_saves_in_a_row_leave_with_the_storage_status(toy):
    run = toy(devices=2)
    context = {"milestones": [2, 4, 6, 8, 10]}
    assert run.attempt({**context, "milestones": [2]}, **stop_at(3)) == [REQUEUE] * 2
    assert run.attempt(context, fail_saves=99) == [STORAGE] * 2, run.logs
    assert [e["step"] for e in run.events() if e["event"] == "save_failed"] == [4, 6, 8]
    assert run.steps() == [2, 3]
    assert not list(run.steps_dir.glob(".work-*"))


def stop_at(step):
    return {"signals": [{"at": "step", "step": step, "ranks": [0], "send": "TERM"}]}


@pytest.mark.parametrize("reason", ["stop", "final"])
def test_a_failed_last_save_leaves_with_the_storage_status(toy, reason):
    run = toy(samples=12)
    order = stop_at(3) if reason == "stop" else {}
    assert run.attempt(fail_saves=99, **order) == [STORAGE], run.logs
    assert run.event("save_failed")["reason"] == reason


def test_a_newer_attempt_ends_this_one_without_a_write(toy):
    run = toy(devices=2)
    assert run.attempt({"milestones": [2, 4, 6]}, fence=4) == [FENCED] * 2, run.logs
    assert run.steps() == [2]


def test_another_world_size_is_refused_by_name(toy):
    run = toy()
    assert run.attempt({"nodes": 2, "gpus_per_node": 4}) == [1]
    assert "2 nodes x 4 devices = 8" in run.logs[0]
    assert "--ntasks-per-node" in run.logs[0]


def test_an_upstream_that_did_not_load_the_step_is_refused(toy):
    run = toy()
    assert run.attempt({"resumed_from": 7}) == [1]
    assert "starts at step 0" in run.logs[0] and "resume from 7" in run.logs[0]


def test_a_lost_position_is_told(toy):
    run = toy(resumable=False)
    assert run.attempt(**stop_at(3)) == [REQUEUE], run.logs
    run.attempt()
    assert run.event("position_not_kept")["consumed"] == 3


def test_a_finished_run_started_again_does_nothing(toy):
    run = toy(samples=12)
    assert run.attempt() == [0], run.logs
    assert run.attempt() == [0], run.logs
    assert run.event("finished")["step"] == 6
    assert len(run.samples()[0]) == 6


def test_an_operating_system_error_is_found_below_others():
    def fail():
        try:
            raise OSError(errno.EDQUOT, "quota")
        except OSError:
            raise RuntimeError("unexpected pos") from None

    with pytest.raises(RuntimeError) as caught:
        fail()
    assert is_storage_failure(caught.value)
    assert not is_storage_failure(ValueError("other"))


def test_an_average_of_another_length_is_refused():
    module = torch.nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="no list for 2 trainable parameters"):
        averaged_weights(module)
    module.ema = type("Average", (), {"shadow_params": [torch.zeros(1)]})()
    with pytest.raises(RuntimeError, match="1 tensors for 2"):
        averaged_weights(module)
