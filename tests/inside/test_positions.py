"""Loaders begin where they are told, whoever made their samplers (hazard 5)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler  # noqa: E402

from dlbhpc.inside.positions import resume_at  # noqa: E402


class FaultTolerant(DistributedSampler):
    """As mdlm and its relatives have it: restarting, it leaves out what a checkpoint counted."""

    restarting = True

    def __iter__(self):
        order = list(super().__iter__())
        return iter(order[2:] if self.restarting else order)


def loader(sampler=None, **options):
    data = torch.arange(12)
    if sampler is not None:
        options["sampler"] = sampler(data, num_replicas=2, rank=1)
    return DataLoader(data, batch_size=2, **options)


def batches(of):
    return [batch.tolist() for batch in of]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("sampler", [DistributedSampler, None])
def test_the_next_epoch_begins_where_it_is_told_and_the_one_after_at_its_begin(sampler, workers):
    whole = batches(loader(sampler))
    told = loader(sampler, num_workers=workers, persistent_workers=workers > 0)
    iter(told)  # As Lightning does before a callback is asked.
    assert resume_at(told, 2)
    assert batches(told) == whole[2:]
    assert len(told) == len(whole)
    assert resume_at(told, 0)
    assert batches(told) == whole


def test_the_epoch_still_chooses_the_order():
    told, other = loader(DistributedSampler), loader(DistributedSampler)
    assert resume_at(told, 1)
    for one in (told, other):
        one.batch_sampler.sampler.set_epoch(3)
    assert batches(told) == batches(other)[1:]


def test_a_sampler_that_an_upstream_told_its_position_does_not_leave_it_out_twice():
    told = loader(FaultTolerant)
    assert resume_at(told, 1)
    assert batches(told) == batches(loader(DistributedSampler))[1:]


def test_hazard_11_the_position_of_a_teacher_is_not_inherited():
    """duo's distillation takes the position within the teacher's last epoch for its own."""
    told = loader(FaultTolerant)
    assert resume_at(told, 0)
    assert batches(told) == batches(loader(DistributedSampler))


def test_a_batch_sampler_that_knows_its_position_is_asked_itself():
    class Own(BatchSampler):
        def resume_at(self, number):
            self.asked = number

    own = Own(range(12), 2, False)
    assert resume_at(DataLoader(torch.arange(12), batch_sampler=own), 4)
    assert own.asked == 4


def test_an_order_that_nothing_repeats_is_not_claimed():
    told = loader(shuffle=True)
    assert not resume_at(told, 2)
    assert len(batches(told)) == 6
    assert not resume_at(range(3), 2)
