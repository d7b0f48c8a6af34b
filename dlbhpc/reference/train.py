"""Put the parts together from the configuration and train."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path

import hydra
import lightning.pytorch as pl
import torch
from omegaconf import DictConfig
from tokenizers import Tokenizer

from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import EpochPlan, epoch_plan
from dlbhpc.reference.datamodule import BlockDataModule, Blocks
from dlbhpc.reference.evaluation import EvaluationConfig, Evaluator
from dlbhpc.reference.module import MaskedDiffusion

_MASK = "[MASK]"
"""As dlbhpc.data.pydoc names it, which is not among what gets frozen into the image."""


def train(config: DictConfig) -> None:
    """Train to the end of the plan, then evaluate; a finished run is only evaluated.

    Raises:
        DlbhpcError: the configuration does not fit the data or itself.
    """
    if config.mode != "train":
        raise DlbhpcError(f"mode is {config.mode!r}, the reference has mode=train only")
    quieten_lightning()
    make_reproducible(config.seed, config.threads)
    folder = Path(config.data.cache_dir)
    train_blocks = Blocks(folder, "train", config.model.length)
    plan = plan_from(config, len(train_blocks))
    tokenizer = load_tokenizer(Path(config.data.tokenizer_name_or_path))
    module = MaskedDiffusion(config, plan, tokenizer.get_vocab_size(), mask_token(tokenizer))
    evaluator = Evaluator(
        Blocks(folder, "validation", config.model.length),
        tokenizer,
        EvaluationConfig(
            seed=config.eval.seed,
            global_batch=config.loader.eval_global_batch_size,
            batch=config.loader.eval_batch_size,
            repeats=config.eval.repeats,
            sampling_steps=config.eval.sampling_steps,
        ),
        Path(config.checkpointing.save_dir, "evaluation"),
    )
    trainer: pl.Trainer = hydra.utils.instantiate(
        config.trainer,
        # One process needs no process group, and so no port.
        strategy=hydra.utils.instantiate(config.strategy) if plan.world > 1 else "auto",
        use_distributed_sampler=False,  # EpochSampler shares each batch out
        callbacks=[evaluator, *(hydra.utils.instantiate(c) for c in config.callbacks.values())],
    )
    trainer.fit(
        module,
        BlockDataModule(train_blocks, plan, config.loader.num_workers, config.seed),
        ckpt_path=checkpoint_to_resume(config),
    )
    finish(trainer, module, evaluator)


def finish(trainer: pl.Trainer, module: MaskedDiffusion, evaluator: Evaluator) -> None:
    """Evaluate the trained model.

    Raises:
        DlbhpcError: training ended before its last step.
    """
    epochs = trainer.max_epochs or 1
    # A trial trains a number of steps, in as many epochs as they take.
    steps = module.plan.steps * epochs if epochs > 0 else trainer.max_steps
    if trainer.max_steps > 0:
        steps = min(steps, trainer.max_steps)
    if trainer.global_step < steps:
        raise DlbhpcError(f"training ended at step {trainer.global_step} of {steps}")
    module.to(trainer.strategy.root_device)  # Lightning leaves it on the CPU
    module.ema.to(module.device)
    evaluator.evaluate(trainer, module, with_sample=True)


def plan_from(config: DictConfig, samples: int) -> EpochPlan:
    """The epoch's plan; the batch must be exactly what the geometry gives."""
    trainer, loader = config.trainer, config.loader
    world = trainer.devices * trainer.num_nodes
    plan = epoch_plan(samples, world, loader.batch_size, trainer.accumulate_grad_batches)
    if plan.global_batch != loader.global_batch_size:
        raise DlbhpcError(
            f"loader.global_batch_size is {loader.global_batch_size}, but "
            f"{trainer.num_nodes} nodes x {trainer.devices} devices x loader.batch_size "
            f"{loader.batch_size} x trainer.accumulate_grad_batches "
            f"{trainer.accumulate_grad_batches} are {plan.global_batch} samples"
        )
    return plan


def quieten_lightning() -> None:
    """Keep out of a job's log what does not concern it."""
    # Each line comes twice, by Lightning's handler and by Hydra's; and most are advertisements.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*`srun` command is available.*",  # that one task is meant is known here
        ".*your dataloader is not resumable.*",  # it is: the step callback restores its position
        ".*isinstance.treespec, LeafSpec.*",  # Lightning's own use of torch
    ):
        warnings.filterwarnings("ignore", message=message)


def make_reproducible(seed: int, threads: int) -> None:
    """Seed all ranks alike (they draw whole global batches) and fix the order of sums."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ["OMP_NUM_THREADS"] = str(threads)  # else Lightning sets another number later
    torch.set_num_threads(threads)
    pl.seed_everything(seed)
    torch.use_deterministic_algorithms(True)


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer in folder ``path``."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise DlbhpcError(f"there is no tokenizer {file}; prepare the dataset first")
    return Tokenizer.from_file(str(file))


def mask_token(tokenizer: Tokenizer) -> int:
    """The id of the absorbing state."""
    token = tokenizer.token_to_id(_MASK)
    if token is None:
        raise DlbhpcError(f"the tokenizer has no {_MASK} token; prepare the dataset again")
    return token


def checkpoint_to_resume(config: DictConfig) -> str | None:
    """The checkpoint to start from, if the configuration asks for one and it exists."""
    path = Path(config.checkpointing.resume_ckpt_path)
    if config.checkpointing.resume_from_ckpt and path.is_file():
        return str(path)
    return None
