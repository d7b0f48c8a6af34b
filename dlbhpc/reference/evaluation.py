"""Validation perplexity and a sampled text, with the averaged weights.

All random numbers come from generators made here: evaluating leaves training as it was.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed
from tokenizers import Tokenizer

from dlbhpc.reference.datamodule import Blocks
from dlbhpc.reference.diffusion import ancestral_sample, counted_corruption, token_losses
from dlbhpc.reference.model import DiT
from dlbhpc.reference.module import MaskedDiffusion
from dlbhpc.reference.sampler import share


@dataclass(frozen=True)
class EvaluationConfig:
    """How to evaluate.

    Random numbers are drawn for ``global_batch`` samples, the ranks share them and process up to
    ``batch`` at a time; the split is covered ``repeats`` times with other masks. A text is
    sampled in ``sampling_steps``.
    """

    seed: int
    global_batch: int
    batch: int
    repeats: int
    sampling_steps: int


class Evaluator(pl.Callback):
    """Evaluates before the first step (as a callback) and, when called, after the last.

    Results go to FOLDER/step-00000042.json: step, val_nll (the bound in nats a token), val_ppl
    (its exponential), tokens (real tokens evaluated) and sample (a text, or null).
    """

    def __init__(
        self, blocks: Blocks, tokenizer: Tokenizer, config: EvaluationConfig, folder: Path
    ) -> None:
        self._blocks = blocks
        self._tokenizer = tokenizer
        self._config = config
        self._folder = folder

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Evaluate the untrained model of a fresh run."""
        assert isinstance(pl_module, MaskedDiffusion)
        if trainer.global_step == 0:
            self.evaluate(trainer, pl_module, with_sample=False)

    def evaluate(self, trainer: pl.Trainer, module: MaskedDiffusion, *, with_sample: bool) -> None:
        """Evaluate on all ranks; rank 0 writes the result."""
        model = averaged(module)
        nll, tokens = validation_nll(
            model,
            self._blocks,
            module.mask_token,
            self._config,
            trainer.global_rank,
            trainer.world_size,
        )
        if trainer.is_global_zero:
            sample = self._sample(model, module) if with_sample else None
            step, ppl = trainer.global_step, math.exp(nll)
            write_json(
                self._folder / f"step-{step:08d}.json",
                {"step": step, "val_nll": nll, "val_ppl": ppl, "tokens": tokens, "sample": sample},
            )
            print(f"step {step}: validation perplexity {ppl:.1f}", flush=True)

    def _sample(self, model: DiT, module: MaskedDiffusion) -> str:
        tokens = ancestral_sample(
            model,
            samples=1,
            length=module.config.model.length,
            steps=self._config.sampling_steps,
            mask_token=module.mask_token,
            generator=torch.Generator().manual_seed(self._config.seed),
            device=module.device,
        )
        text: str = self._tokenizer.decode(tokens[0].tolist())
        return text


def averaged(module: MaskedDiffusion) -> DiT:
    """A copy of the model with the averaged weights; the one in training stays as it is."""
    model = copy.deepcopy(module.backbone)
    module.ema.copy_to(model.parameters())
    return model


@torch.no_grad()
def validation_nll(
    model: DiT, blocks: Blocks, mask_token: int, config: EvaluationConfig, rank: int, world: int
) -> tuple[float, int]:
    """The bound on the negative log-likelihood in nats a real token, and how many tokens.

    Each rank takes its share of every batch; the random numbers are those of the whole batch, so
    that the result is the same for every world size but for the rounding of sums.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(config.seed)
    totals = torch.zeros(2, dtype=torch.float64)
    batches = range(0, len(blocks), config.global_batch)
    for first in [*batches] * config.repeats:
        size = min(config.global_batch, len(blocks) - first)
        corruption = counted_corruption(size, blocks.length, generator)
        begin, end = share(size, world, rank)
        for start in range(begin, end, config.batch):
            stop = min(start + config.batch, end)
            rows = blocks.__getitems__(list(range(first + start, first + stop)))
            tokens, real = rows["input_ids"].to(device), rows["attention_mask"].to(device)
            part = corruption.rows(start, stop).to(device)
            losses = token_losses(model, tokens, part, mask_token)
            totals += torch.stack([(losses * real).sum(), real.sum()]).double().cpu()
    if world > 1:
        totals = totals.to(device)
        torch.distributed.all_reduce(totals)
    loss_sum, count = totals.tolist()
    return loss_sum / count, int(count) // config.repeats


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write ``content`` so that a reader finds the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(path)
