"""Exact batches, their alternatives, and the plan of an epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import (
    EpochPlan,
    Geometry,
    InexactBatch,
    check_eval_batch,
    epoch_plan,
    exact_geometries,
    nearest_geometries,
    solve,
    step_plan,
)

small = st.integers(1, 24)


def test_an_exact_batch_is_solved_for_its_accumulation() -> None:
    assert solve(512, 4, 8, 16) == Geometry(
        accumulation=1, nodes=4, gpus_per_node=8, per_device_batch=16
    )
    assert solve(512, 1, 2, 64).accumulation == 4


@pytest.mark.parametrize(
    ("nodes", "gpus", "per_device", "named"),
    [
        (3, 8, 64, "2 nodes x 8 GPUs x 32 per device x 1 accumulation"),
        (1, 6, 64, "1 node x 4 GPUs x 64 per device x 2 accumulation"),
        (1, 8, 48, "1 node x 8 GPUs x 32 per device x 2 accumulation"),
        (2, 8, 64, "2 nodes x 8 GPUs x 32 per device x 1 accumulation"),
    ],
)
def test_an_inexact_batch_is_refused_with_the_nearest_exact_ones(
    nodes: int, gpus: int, per_device: int, named: str
) -> None:
    with pytest.raises(InexactBatch) as error:
        solve(512, nodes, gpus, per_device)
    assert named in str(error.value)
    assert "512" in str(error.value)


def test_three_replicas_of_a_batch_of_sixteen_leave_no_whole_accumulation() -> None:
    with pytest.raises(InexactBatch):
        solve(16, 1, 3, 4)


def test_an_eval_batch_that_the_devices_cannot_share_is_refused() -> None:
    geometry = solve(512, 1, 8, 64)
    check_eval_batch(504, geometry)
    with pytest.raises(InexactBatch, match=r"500 .* 8 devices .* 496, 504"):
        check_eval_batch(500, geometry)


def test_a_memory_limit_is_solved_with_more_accumulation() -> None:
    best = exact_geometries(512, 1, 8, max_per_device_batch=10)[0]
    assert (best.per_device_batch, best.accumulation) == (8, 8)


def test_best_is_fewest_accumulation_steps_then_fewest_nodes() -> None:
    found = exact_geometries(8, 2, max_per_device_batch=2)
    assert [(g.accumulation, g.nodes, g.gpus_per_node, g.per_device_batch) for g in found[:4]] == [
        (1, 1, 4, 2),
        (1, 1, 8, 1),
        (1, 2, 2, 2),
        (1, 2, 4, 1),
    ]


@given(st.integers(1, 200), st.integers(1, 5), st.integers(1, 8) | st.none(), small | st.none())
def test_the_enumeration_is_what_brute_force_finds(
    batch: int, max_nodes: int, gpus: int | None, most: int | None
) -> None:
    found = exact_geometries(batch, max_nodes, gpus, most)
    expected = {
        (batch // (nodes * g * size), nodes, g, size)
        for nodes in range(1, max_nodes + 1)
        for g in (range(1, 9) if gpus is None else [gpus])
        for size in range(1, batch + 1)
        if batch % (nodes * g * size) == 0 and (most is None or size <= most)
    }
    as_tuples = [(g.accumulation, g.nodes, g.gpus_per_node, g.per_device_batch) for g in found]
    assert as_tuples == sorted(expected)
    assert all(geometry.global_batch == batch for geometry in found)


@given(st.integers(1, 600), st.integers(1, 6), st.integers(1, 9), small)
def test_solving_is_exact_or_refused_with_exact_alternatives(
    batch: int, nodes: int, gpus: int, per_device: int
) -> None:
    try:
        assert solve(batch, nodes, gpus, per_device).global_batch == batch
    except InexactBatch:
        assert batch % (nodes * gpus * per_device)
        near = nearest_geometries(batch, nodes, gpus, per_device)
        assert near
        assert all(geometry.global_batch == batch for geometry in near)


def test_alternatives_respect_the_limits() -> None:
    near = nearest_geometries(512, 3, 8, 64, max_nodes=1, max_per_device_batch=4)
    assert near
    assert all(g.nodes == 1 and g.per_device_batch <= 4 for g in near)


@pytest.mark.parametrize("bad", [0, -1, True, 1.5, "8", None])
def test_sizes_are_whole_numbers_of_at_least_one(bad: object) -> None:
    for sizes in ((bad, 1, 1, 1), (8, bad, 1, 1), (8, 1, bad, 1), (8, 1, 1, bad)):
        with pytest.raises(DlbhpcError, match="whole number of at least 1"):
            solve(*sizes)  # type: ignore[arg-type]
    with pytest.raises(DlbhpcError, match="whole number of at least 1"):
        epoch_plan(8, bad, 1)  # type: ignore[arg-type]


@given(st.integers(1, 5000), st.integers(1, 8), small, st.integers(1, 4))
def test_an_epoch_presents_each_sample_once_and_every_rank_some(
    samples: int, world: int, per_gpu: int, accumulation: int
) -> None:
    batch = world * per_gpu * accumulation
    try:
        plan = epoch_plan(samples, world, per_gpu, accumulation)
    except DlbhpcError:
        # Refused exactly when the last step cannot give each process its samples.
        assert 0 < (samples % batch or batch) < world * accumulation
        return
    sizes = [plan.global_batch] * (plan.steps - 1) + [plan.tail]
    assert sum(sizes) == samples
    assert world * accumulation <= plan.tail <= plan.global_batch == batch
    assert plan.quarter_steps[-1] == plan.steps
    assert list(plan.quarter_steps) == sorted(set(plan.quarter_steps))


def test_the_epoch_plan_of_a_small_case() -> None:
    plan = epoch_plan(samples=103, world=2, per_gpu=5)
    assert plan == EpochPlan(
        samples=103,
        world=2,
        per_gpu=5,
        accumulation=1,
        global_batch=10,
        steps=11,
        tail=3,
        quarter_steps=(3, 6, 9, 11),
    )
    assert epoch_plan(4, 1, 2).quarter_steps == (1, 2)


def test_a_last_step_without_a_sample_for_every_rank_is_refused() -> None:
    assert epoch_plan(22, 2, 5).tail == 2
    with pytest.raises(DlbhpcError, match="leave 1 for the last step"):
        epoch_plan(21, 2, 5)
    with pytest.raises(DlbhpcError, match="leave 2 for the last step"):
        epoch_plan(22, 2, 5, accumulation=2)


def test_plans_that_differ_have_other_digests() -> None:
    plans = [
        epoch_plan(100, 2, 5),
        epoch_plan(101, 1, 10),
        epoch_plan(100, 1, 10),
        epoch_plan(100, 1, 5, accumulation=2),
    ]
    digests = {plan.sha256 for plan in plans} | {step_plan(10, 10).sha256}
    assert len(digests) == 5
    assert epoch_plan(100, 2, 5).sha256 == plans[0].sha256


def test_the_last_step_is_always_a_milestone() -> None:
    assert step_plan(50, 2, 20).milestones == (20, 40, 50)
    assert step_plan(40, 2, 20).milestones == (20, 40)
    assert step_plan(20, 2).milestones == (5, 10, 15, 20)
