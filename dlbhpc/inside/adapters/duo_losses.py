"""The losses of the pinned duo, with the signature that its own trainer calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional


def repair_losses(algo: Any) -> None:
    """Let the trainer of duo's module ``algo`` call the losses of DUO and Distillation.

    The trainer passes labels as the second argument since the pinned commit, and these two losses
    were left without it: any training of theirs ends with a TypeError at the first loss. DUO hands
    over to the plain loss behind its curriculum, and would hand it each argument one place too far
    on as well: the accumulation step would be lost, with which the times are drawn over the whole
    global batch.
    """
    plain = algo.DUO_BASE.nll
    curriculum = _taking_labels(algo.DUO.nll)

    @functools.wraps(algo.DUO.nll)
    def duo_loss(
        self: Any,
        x0: Any,
        labels: Any,
        output_tokens: Any,
        current_accumulation_step: Optional[int] = None,
        train_mode: bool = False,
    ) -> Any:
        is_over = self.global_step > self.curriculum_end or not train_mode
        loss = plain if is_over else curriculum
        return loss(self, x0, labels, output_tokens, current_accumulation_step, train_mode)

    algo.DUO.nll = duo_loss
    algo.Distillation.nll = _taking_labels(algo.Distillation.nll)


def _taking_labels(loss: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(loss)
    def with_labels(self: Any, x0: Any, labels: Any, *others: Any, **named: Any) -> Any:
        return loss(self, x0, *others, **named)

    return with_labels
