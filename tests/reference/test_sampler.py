"""Every sample once an epoch, whatever the world, the batch and the position."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import EpochPlan, epoch_plan
from dlbhpc.reference.sampler import EpochSampler, micro_batch, share


@st.composite
def plans(draw: st.DrawFn) -> EpochPlan:
    """Any plan that is not refused."""
    sizes = (draw(st.integers(1, 120)), *(draw(st.integers(1, top)) for top in (5, 4, 3)))
    try:
        return epoch_plan(*sizes)
    except DlbhpcError:
        assume(False)
        raise


@given(st.integers(0, 100), st.integers(1, 12))
def test_shares_are_consecutive_and_differ_by_at_most_one(size: int, parts: int) -> None:
    bounds = [share(size, parts, index) for index in range(parts)]
    assert bounds[0][0] == 0 and bounds[-1][1] == size
    assert all(left[1] == right[0] for left, right in zip(bounds, bounds[1:], strict=False))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1


@given(plans(), st.integers(0, 5))
def test_every_sample_comes_once_and_no_micro_batch_is_empty(plan: EpochPlan, epoch: int) -> None:
    seen: list[int] = []
    for rank in range(plan.world):
        sampler = EpochSampler(plan, rank, seed=1)
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler) == plan.steps * plan.accumulation
        assert all(0 < len(batch) <= plan.per_gpu for batch in batches)
        seen += [sample for batch in batches for sample in batch]
    assert sorted(seen) == list(range(plan.samples))


@given(plans())
def test_global_batches_do_not_depend_on_how_they_are_shared(plan: EpochPlan) -> None:
    whole = list(EpochSampler(epoch_plan(plan.samples, 1, plan.global_batch), 0, seed=1))
    ranks = [list(EpochSampler(plan, rank, seed=1)) for rank in range(plan.world)]
    for step, batch in enumerate(whole):
        micros = range(step * plan.accumulation, (step + 1) * plan.accumulation)
        joined = [s for rank in ranks for micro in micros for s in rank[micro]]
        assert joined == batch


@given(plans(), st.data())
def test_micro_batch_names_the_rows_that_the_sampler_yields(
    plan: EpochPlan, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, plan.world - 1))
    whole = list(EpochSampler(epoch_plan(plan.samples, 1, plan.global_batch), 0, seed=1))
    for index, batch in enumerate(EpochSampler(plan, rank, seed=1)):
        part = micro_batch(plan, rank, index)
        assert part.size == len(whole[part.step])
        assert whole[part.step][part.start : part.stop] == batch


@given(plans(), st.data())
def test_resuming_continues_the_epoch_and_the_next_one_starts_anew(
    plan: EpochPlan, data: st.DataObject
) -> None:
    sampler = EpochSampler(plan, 0, seed=1)
    whole = list(sampler)
    position = data.draw(st.integers(0, len(whole)))
    sampler.resume_at(position)
    assert list(sampler) == whole[position:]
    assert list(sampler) == whole
    assert len(sampler) == len(whole)


def test_position_outlives_an_iterator_that_nobody_asks() -> None:
    sampler = EpochSampler(epoch_plan(40, 1, 8), 0, seed=1)
    whole = list(sampler)
    sampler.resume_at(3)
    iter(sampler)
    assert list(sampler) == whole[3:]


def test_order_depends_on_seed_and_epoch() -> None:
    plan = epoch_plan(40, 1, 8)

    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = EpochSampler(plan, 0, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_position_outside_the_epoch_is_refused() -> None:
    sampler = EpochSampler(epoch_plan(40, 1, 8), 0, seed=1)
    with pytest.raises(ValueError, match=r"micro-batch 6 of an epoch of 5"):
        sampler.resume_at(6)
