"""Runs the pinned duo's main.py to distill: the losses repaired, and the locked EMA decay kept.

The teacher is loaded by duo itself, from ``training.finetune_path``: a Lightning checkpoint of duo.
The student starts as its copy. Rounds are duo's own (``algo.update_teacher_every``); the step
callback keeps the teacher of a round.
"""

from __future__ import annotations

import functools
from typing import Any

from dlbhpc.inside.adapters.duo_losses import repair_losses
from dlbhpc.inside.adapters.main_program import checkout_file, lead_search, run_main


def keep_decay(algo: Any) -> None:
    """Let the EMA of the student decay as configured.

    Loading a checkpoint, the teacher's too, takes its decay over with its averages.
    """
    load = algo.Distillation.on_load_checkpoint

    @functools.wraps(load)
    def load_keeping_decay(self: Any, checkpoint: dict[str, Any]) -> None:
        load(self, checkpoint)
        if self.ema:
            self.ema.decay = self.config.training.ema

    algo.Distillation.on_load_checkpoint = load_keeping_decay


if __name__ == "__main__":
    program = checkout_file("main.py")
    lead_search(program.parent)

    import algo

    repair_losses(algo)
    keep_decay(algo)
    run_main(program)
