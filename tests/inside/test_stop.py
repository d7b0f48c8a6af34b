"""A request to stop, wherever it arrives: saved, published, left with the requeue status."""

from __future__ import annotations

import json

import pytest

from dlbhpc.exit_status import REQUEUE


def signal_at(place, step, **order):
    return {"signals": [{"at": place, "step": step, "ranks": [0], "send": "TERM", **order}]}


@pytest.mark.parametrize("name", ["TERM", "USR2"])
def test_a_signal_saves_the_step_it_arrived_in(toy, name):
    run = toy(devices=2)
    assert run.attempt(**signal_at("step", 5, send=name)) == [REQUEUE] * 2, run.logs
    assert run.steps() == [5]
    assert run.event("saved")["reason"] == "stop"
    stop = run.event("stop")
    assert (stop["request"], stop["step"]) == (f"SIG{name}", 5)


def test_a_signal_to_any_rank_stops_all_at_one_step(toy):
    run = toy(devices=2)
    assert run.attempt(**signal_at("step", 5, ranks=[1])) == [REQUEUE] * 2, run.logs
    assert run.steps() == [5]
    assert [rank[-1][0] for rank in run.samples()] == [5, 5]


def test_the_stop_file_saves_and_stops_all_ranks(toy):
    run = toy(devices=2)
    order = {"at": "step", "step": 3, "path": str(run.stop_file)}
    assert run.attempt(stop_file=order, look_always=True) == [REQUEUE] * 2, run.logs
    assert run.steps() == [3]
    assert run.event("stop")["request"] == "file"


def test_a_second_signal_during_a_slow_save_changes_nothing(toy):
    run = toy()
    assert run.attempt(**signal_at("step", 5), slow_save=True) == [REQUEUE], run.logs
    assert run.steps() == [5]
    assert run.event("stop")["signals"] >= 3
    assert len([e for e in run.events() if e["event"] == "saved"]) == 1
    assert run.attempt() == [0], run.logs


@pytest.mark.parametrize("place", ["fit_start", "sanity"])
def test_a_stop_before_the_first_step_leaves_without_saving(toy, place):
    run = toy(devices=2, validate_every=4, sanity=2)
    assert run.attempt(**signal_at(place, 0)) == [REQUEUE] * 2, run.logs
    assert run.steps() == []
    assert run.event("stop")["step"] == 0


def test_a_stop_before_the_first_new_step_keeps_the_committed_one(toy):
    run = toy()
    assert run.attempt(**signal_at("step", 5)) == [REQUEUE], run.logs
    before = (run.steps_dir / "step-00000005" / "COMPLETE.json").stat().st_mtime_ns
    assert run.attempt(**signal_at("fit_start", 0)) == [REQUEUE], run.logs
    assert run.steps() == [5]
    assert run.event("stop")["step"] == 5
    assert (run.steps_dir / "step-00000005" / "COMPLETE.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("place", ["validation_start", "validation"])
def test_a_stop_during_a_validation_keeps_the_step_before_it(toy, place):
    options = {"devices": 2, "validate_every": 4, "accumulation": 2}
    whole = toy("whole", **options)
    assert whole.attempt() == [0, 0], whole.logs
    run = toy(**options)
    assert run.attempt(**signal_at(place, 4)) == [REQUEUE] * 2, run.logs
    assert run.steps()[-1] == 4
    assert [e["step"] for e in run.events() if e["event"] == "validation"] == [2]
    assert run.attempt() == [0, 0], run.logs
    assert run.final() == whole.final()


def test_a_stop_at_the_last_rank_ends_a_validation_of_unequal_lengths(toy):
    run = toy(devices=2, validate_every=4)
    assert run.attempt(**signal_at("validation", 4, ranks=[1])) == [REQUEUE] * 2, run.logs
    assert run.steps() == [4]


def test_lightning_does_not_get_the_signals(toy):
    run = toy(samples=4)
    assert run.attempt() == [0], run.logs
    owners = json.loads((run.output / "owners.json").read_text())
    latch = "dlbhpc.inside.latch"
    assert owners == {"SIGTERM": latch, "SIGUSR1": "signal", "SIGUSR2": latch}


def test_a_module_that_takes_the_signals_loses_them_after_one_step(toy):
    run = toy()
    assert run.attempt(steal_signals=True, **signal_at("step", 2)) == [REQUEUE], run.logs
    assert run.event("signals_taken_back")["step"] == 1
    assert run.steps() == [2]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("send", ["TERM", "USR2"])
def test_loader_workers_outlive_a_signal_to_the_whole_group(toy, persistent, send):
    run = toy(workers=2, persistent=persistent, slow_save=True)
    order = signal_at("step", 6, send=send, to="group")
    assert run.attempt(**order) == [REQUEUE], run.logs
    assert run.steps() == [6]
    assert "DataLoader worker" not in run.logs[0]
    assert run.attempt() == [0], run.logs
    assert [step for step, _ in run.samples()[0]] == list(range(1, 25))
