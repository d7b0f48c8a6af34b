"""From a teacher's vocabulary to that of a student with an absorbing (mask) state.

The student's vocabulary is the base vocabulary and the mask, which is its last row. Three tensors
have a row for each token; everything else is handed on as it is. Nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlbhpc.inputs.teacher.names import (
    EMBEDDING,
    INV_FREQ,
    VOCABULARY,
    Backbone,
    Sizes,
    TeacherError,
    check,
    normalised,
)

if TYPE_CHECKING:
    from torch import Tensor

UNIFORM = "uniform_to_absorbing"
MASKED = "masked_to_absorbing"
TRANSFORMATIONS = (UNIFORM, MASKED)
_CHUNK = 1 << 22
_ROTARY_BASE = 10_000
"""Of the rotary embedding in every upstream's DIT."""


@dataclass(frozen=True)
class Vocabulary:
    """The student's base vocabulary, and where the tokenizer itself has a mask (None: nowhere)."""

    base: int
    mask_row: int | None

    @property
    def target(self) -> int:
        return self.base + 1


@dataclass(frozen=True)
class Adapted:
    """An adapted state and how it came about. ``source_mask`` is None where there was none."""

    state: Mapping[str, Tensor]
    sizes: Sizes
    source_mask: int | None


def adapt_state(
    source: Mapping[str, Tensor],
    transformation: str,
    vocabulary: Vocabulary,
    backbone: Backbone,
    where: str,
    release: Callable[[Tensor], None] = lambda tensor: None,
) -> Adapted:
    """The state that the student loads, with normalised names; ``source`` is not changed.

    ``where`` names the source in errors. ``release`` is told of each tensor of the source that has
    been read for now.

    Raises:
        TeacherError: names, shapes or vocabulary are not what they must be, a value is not finite,
            or a masked teacher has no trained mask row.
    """
    names = normalised(source, where)
    state: dict[str, Tensor] = {short: source[name] for short, name in names.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    sizes = check(shapes, backbone, where)
    check_vocabulary(sizes, vocabulary, where)
    for name, tensor in state.items():
        check_finite(name, tensor, where)
        release(tensor)
    source_mask = None
    if transformation == UNIFORM:
        for name in VOCABULARY:
            state[name] = _last_row_zero(state[name], vocabulary)
            release(source[names[name]])
    else:
        source_mask = _mask_row(sizes, vocabulary, where)
        if not state[EMBEDDING][source_mask].any():
            raise TeacherError(
                f"{where}: the row of the mask ({source_mask}) of {EMBEDDING} is all zero: "
                "no masked teacher was trained with it"
            )
        if sizes.vocab == vocabulary.base:
            for name in VOCABULARY:
                state[name] = _moved(state[name], source_mask)
                release(source[names[name]])
    if INV_FREQ not in state:
        state[INV_FREQ] = inv_freq(sizes.hidden // backbone.heads)
    return Adapted({name: _compact(tensor) for name, tensor in state.items()}, sizes, source_mask)


def check_vocabulary(sizes: Sizes, vocabulary: Vocabulary, where: str) -> None:
    """Refuse a teacher of another vocabulary than the dataset's. Raises TeacherError."""
    if sizes.vocab not in (vocabulary.base, vocabulary.target):
        raise TeacherError(
            f"{where} has a vocabulary of {sizes.vocab} tokens, the dataset's is "
            f"{vocabulary.base} (and one more with a mask): it was trained on another dataset"
        )


def check_finite(name: str, tensor: Tensor, where: str) -> None:
    """Refuse a tensor with a value that is not finite. Raises TeacherError."""
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        raise TeacherError(f"{where}: {name} is larger than what the file holds of it")
    # In pieces: the comparison needs memory of the size of what it compares.
    flat = tensor.detach().reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        if not flat[start : start + _CHUNK].isfinite().all():
            raise TeacherError(f"{where}: {name} holds values that are not finite (NaN, infinity)")


def inv_freq(head_size: int) -> Tensor:
    """The frequencies of the rotary embedding, (head_size / 2,), as the upstreams compute them."""
    import torch

    return 1.0 / (_ROTARY_BASE ** (torch.arange(0, head_size, 2).float() / head_size))


def _mask_row(sizes: Sizes, vocabulary: Vocabulary, where: str) -> int:
    if sizes.vocab == vocabulary.target:
        return vocabulary.base
    if vocabulary.mask_row is None:
        raise TeacherError(
            f"{where} has no row for the mask: {sizes.vocab} tokens, and the tokenizer itself has "
            f"no mask; a masked teacher of this dataset has {vocabulary.target}"
        )
    return vocabulary.mask_row


def _last_row_zero(tensor: Tensor, vocabulary: Vocabulary) -> Tensor:
    """The base rows of ``tensor`` and a row of zeros behind them."""
    grown = tensor.new_zeros((vocabulary.target, *tensor.shape[1:]))
    grown[: vocabulary.base] = tensor[: vocabulary.base]
    return grown


def _moved(tensor: Tensor, row: int) -> Tensor:
    """``tensor`` with ``row`` moved behind its last one and zeros in its old place."""
    grown = tensor.new_empty((len(tensor) + 1, *tensor.shape[1:]))
    grown[:-1] = tensor
    grown[-1] = tensor[row]
    grown[row] = 0
    return grown


def _compact(tensor: Tensor) -> Tensor:
    """``tensor`` with a storage of its own size: saving a view would save all that it views."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
