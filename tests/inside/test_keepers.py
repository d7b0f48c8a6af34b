"""The random state comes back, also through a file that holds only plain data."""

from __future__ import annotations

import io
import random

import numpy
import torch

from dlbhpc.inside.keepers import RandomState


def draw():
    return (
        [random.random(), random.gauss(0, 1)],
        numpy.random.random(2).tolist(),
        [numpy.random.standard_normal()],
        torch.rand(3).tolist(),
    )


def test_the_same_numbers_follow_a_restored_state():
    random.gauss(0, 1)  # leaves a second number over
    numpy.random.standard_normal()
    keeper = RandomState()
    file = io.BytesIO()
    torch.save(keeper.save(), file)
    first = draw()
    assert draw() != first
    file.seek(0)
    keeper.restore(torch.load(file, weights_only=True))
    assert draw() == first


def test_saving_changes_nothing():
    keeper = RandomState()
    state = keeper.save()
    first = draw()
    keeper.restore(state)
    keeper.save()
    assert draw() == first
