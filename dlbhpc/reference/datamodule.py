"""Loads a processed dataset and serves each rank its part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import EpochPlan
from dlbhpc.reference.sampler import EpochSampler

Batch = dict[str, Tensor]
"""``input_ids`` and ``attention_mask`` (1 on real tokens), both (samples, length) and int64."""


class Blocks(Dataset[Batch]):
    """A split on disk, read a batch at a time."""

    def __init__(self, folder: Path, split: str, length: int) -> None:
        from datasets import load_from_disk

        self.length = length
        try:
            self._rows: Any = load_from_disk(str(folder / split)).with_format("torch")
        except FileNotFoundError:
            raise DlbhpcError(
                f"there is no processed data in {folder / split}; prepare the dataset first"
            ) from None
        found = self._rows[:1]["input_ids"].shape[-1] if len(self) else 0
        if found != length:
            raise DlbhpcError(
                f"{folder / split} holds blocks of {found} tokens, model.length is {length}"
            )

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Batch:
        rows = self._rows[indices]
        return {name: rows[name].long() for name in ("input_ids", "attention_mask")}


class BlockDataModule(pl.LightningDataModule):
    """The training loader of one rank."""

    def __init__(self, blocks: Blocks, plan: EpochPlan, num_workers: int, seed: int) -> None:
        super().__init__()
        self._blocks = blocks
        self._plan = plan
        self._num_workers = num_workers
        self._seed = seed

    def train_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        return DataLoader(
            self._blocks,
            batch_sampler=EpochSampler(self._plan, self.trainer.global_rank, self._seed),
            collate_fn=_collated,
            num_workers=self._num_workers,
            # Without its own generator, making an iterator would draw from training's.
            generator=torch.Generator().manual_seed(self._seed),
        )


def _collated(batch: Any) -> Batch:
    """Blocks fetches whole batches: nothing is left to collate."""
    return dict(batch)
