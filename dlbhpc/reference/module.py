"""The training loop's view of the model: loss, gradients, optimizer, average."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from omegaconf import DictConfig
from torch import Tensor

from dlbhpc.geometry import EpochPlan
from dlbhpc.reference.datamodule import Batch
from dlbhpc.reference.diffusion import Corruption, random_corruption, token_losses
from dlbhpc.reference.ema import ExponentialMovingAverage
from dlbhpc.reference.model import DiT, ModelConfig
from dlbhpc.reference.sampler import micro_batch
from dlbhpc.reference.strategy import reduce_gradients


class MaskedDiffusion(pl.LightningModule):
    """Trains a :class:`DiT` on the mean, over the global batch's real tokens, of the MDLM bound.

    Every rank draws the random numbers of the whole global batch from the same generator state
    and uses its own rows: a step does not depend on how many ranks or micro-batches share it.
    """

    def __init__(self, config: DictConfig, plan: EpochPlan, vocab_size: int, mask: int) -> None:
        super().__init__()
        self.config = config
        self.plan = plan
        self.mask_token = mask
        self.backbone = DiT(
            ModelConfig(
                vocab_size=vocab_size,
                hidden_size=config.model.hidden_size,
                cond_dim=config.model.cond_dim,
                n_blocks=config.model.n_blocks,
                n_heads=config.model.n_heads,
                time_conditioning=config.time_conditioning,
            )
        )
        self.ema = ExponentialMovingAverage(self.backbone.parameters(), config.training.ema)
        self.loss = torch.tensor(float("nan"))
        """Token mean of the last optimizer step, over the whole global batch."""
        self._totals = torch.zeros(2)
        self._corruption: Corruption | None = None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The sum of the weighted losses of this micro-batch's real tokens."""
        part = micro_batch(self.plan, self.global_rank, batch_idx)
        if batch_idx % self.plan.accumulation == 0:
            self._corruption = random_corruption(
                part.size, self.config.model.length, self.config.training.sampling_eps
            )
            self._totals = torch.zeros(2, device=self.device)
        assert self._corruption is not None
        corruption = self._corruption.rows(part.start, part.stop).to(self.device)
        tokens, real = batch["input_ids"], batch["attention_mask"]
        losses = token_losses(self.backbone, tokens, corruption, self.mask_token)
        loss = (losses * real).sum()
        self._totals += torch.stack([loss.detach(), real.sum()])
        # Lightning divides by the number of micro-batches; the sum over them is wanted.
        return loss * self.plan.accumulation

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Turn each rank's summed gradients into the global token mean's."""
        loss_sum, tokens = reduce_gradients(list(self.backbone.parameters()), self._totals)
        self.loss = loss_sum / tokens
        self.log("train/loss", self.loss, prog_bar=True)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, then let the average follow."""
        super().optimizer_step(*args, **kwargs)
        self.ema.update(self.backbone.parameters())

    def configure_optimizers(self) -> Any:
        """AdamW with a linear warm-up to a constant rate."""
        optim = self.config.optim
        optimizer = torch.optim.AdamW(
            self.backbone.parameters(),
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        )
        warmup = self.config.lr_scheduler.num_warmup_steps
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / warmup) if warmup else 1.0
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def on_train_start(self) -> None:
        """Begin with the same random numbers however many ranks there are."""
        self.ema.to(self.device)
        if self.global_step == 0:
            torch.manual_seed(self.config.seed)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ema"] = self.ema.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.ema.load_state_dict(checkpoint["ema"])
