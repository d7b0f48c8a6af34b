"""A tiny trainer that the tests start as a process: ``toy.py OPTIONS_AS_JSON``.

It trains with the step callback in one attempt's folder, draws from every random generator, and
notes per rank which samples it trained on. Options stand in DEFAULTS.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import lightning.pytorch as pl
import numpy
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from dlbhpc.inside import saver, saving, step_callback
from dlbhpc.inside.step_callback import StepCallback

DEFAULTS = {
    "output": None,  # the run's folder
    "devices": 1,
    "samples": 48,
    "accumulation": 1,
    "epochs": 1,
    "max_steps": -1,
    "workers": 0,
    "persistent": False,
    "resumable": True,  # the batch sampler has resume_at
    # "plain": as Lightning makes it; "installed": by the module; "stateful": of torchdata
    "loader": "own",
    "teacher": None,  # "sdtt" or "duo": replaced by the student every 3 steps
    "validate_every": None,  # micro-batches
    "validation_batches": 4,
    "sanity": 0,
    "resume": None,  # path of a checkpoint
    "signals": [],  # [{"at": place, "step": n, "ranks": [0], "send": "TERM", "to": "self"}]
    "steal_signals": False,  # a module that takes SIGTERM at its first step
    "fail_saves": 0,  # how many writes of the state raise ENOSPC
    "stop_file": None,  # {"at": place, "step": n, "path": file to make}
    "look_always": False,  # look for the stop file at every step, not once a second
    "slow_save": False,
    "fence": None,  # step before whose save a newer attempt begins
    "own_checkpoint": None,  # step after which Lightning saves to own.ckpt
}
OPTIONS = {**DEFAULTS, **json.loads(sys.argv[1])}
OUTPUT = Path(OPTIONS["output"])
RANK = int(os.environ.get("LOCAL_RANK", "0"))
VALIDATED = 1000
"""Samples from here on are for validation."""


def act(place: str, step: int) -> None:
    """Do what the options ask for at this place of the training."""
    for order in OPTIONS["signals"]:
        if order["at"] == place and order["step"] == step and RANK in order.get("ranks", [RANK]):
            number = getattr(signal, "SIG" + order["send"])
            if order.get("to") == "group":
                # From a process of its own: one from their owner ends the loader's workers.
                kill = ["kill", f"-{order['send']}", "--", f"-{os.getpgrp()}"]
                subprocess.run(kill, start_new_session=True, check=True)
            else:
                os.kill(os.getpid(), number)
    stop = OPTIONS["stop_file"]
    if stop is not None and RANK == 0 and stop["at"] == place and stop["step"] == step:
        Path(stop["path"]).touch()


class Samples(Dataset):
    def __init__(self, first: int, number: int) -> None:
        self.first = first
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = self.first + index
        generator = torch.Generator().manual_seed(sample)
        values = torch.randn(7, generator=generator)
        return torch.cat([torch.tensor([float(sample)]), values])


class Batches:
    """A batch sampler: another permutation every epoch, every rank its share."""

    def __init__(self, number: int, batch: int, rank: int, world: int) -> None:
        self.number, self.batch, self.rank, self.world = number, batch, rank, world
        self.epoch = 0
        self.start = 0
        if OPTIONS["resumable"]:
            self.resume_at = self._resume_at

    @property
    def sampler(self) -> Batches:
        return self  # where Lightning looks for set_epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _resume_at(self, batches: int) -> None:
        self.start = batches

    def __len__(self) -> int:
        return self.number // (self.batch * self.world)

    def __iter__(self):
        start = self.start
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.number, generator=generator).tolist()
        whole = self.batch * self.world
        first = self.rank * self.batch
        return (
            order[i * whole + first : i * whole + first + self.batch]
            for i in range(start, len(self))
        )


class FaultTolerantSampler(DistributedSampler):
    """As mdlm and its relatives have it: told a position, the next epoch begins there."""

    restarting = False
    counter = 0

    def __iter__(self):
        order = list(super().__iter__())
        if self.restarting:
            self.restarting = False
            order = order[self.counter :]
        yield from order


class Average:
    """The part of an upstream's EMA that the export reads."""

    def __init__(self, parameters) -> None:
        self.shadow_params = [p.detach().clone() for p in parameters]


class Toy(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(7, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )
        self.ema = Average(self.net.parameters())
        self.position = None

    def on_train_start(self):
        """As mdlm and its relatives do: install a sampler, too late for the first iterator."""
        if OPTIONS["loader"] != "installed":
            return
        loaders = []
        for loader in self.trainer.fit_loop._combined_loader.flattened:
            sampler = FaultTolerantSampler(loader.dataset)
            if self.position is not None:
                sampler.epoch, sampler.counter = self.position[0], self.position[1] * 2
                sampler.restarting = True
            loaders.append(DataLoader(loader.dataset, 2, sampler=sampler, **workers()))
        self.trainer.fit_loop._combined_loader.flattened = loaders

    def training_step(self, batch, batch_idx):
        step = self.trainer.global_step + 1
        if OPTIONS["steal_signals"] and batch_idx == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        act("step", step)
        with (OUTPUT / f"samples-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps([step, [int(x) for x in batch[:, 0]]]) + "\n")
        noise = random.random() + numpy.random.random() + torch.rand(()).item()
        loss = (self.net(batch[:, 1:]) - noise).square().mean()
        self.log("train/loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def optimizer_step(self, *args, **kwargs):
        super().optimizer_step(*args, **kwargs)
        for shadow, value in zip(self.ema.shadow_params, self.net.parameters(), strict=True):
            shadow.lerp_(value.detach(), 0.1)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        is_step = (batch_idx + 1) % OPTIONS["accumulation"] == 0
        if is_step and self.trainer.global_step == OPTIONS["own_checkpoint"]:
            self.trainer.save_checkpoint(OUTPUT / "own.ckpt")

    def on_validation_epoch_start(self):
        act("validation_start", self.trainer.global_step)

    def validation_step(self, batch, batch_idx):
        place = "sanity" if self.trainer.sanity_checking else "validation"
        act(place, self.trainer.global_step)
        torch.rand(3), random.random(), numpy.random.random()  # noise in a validation
        self.log("val/nll", self.net(batch[:, 1:]).mean(), on_epoch=True, sync_dist=True)

    def on_fit_start(self):
        act("fit_start", 0)

    def zero_grad(self, *args, **kwargs):
        # Called first after Lightning has had its chance to install handlers.
        owners = {
            name: getattr(signal.getsignal(getattr(signal, name)), "__module__", "nobody")
            for name in ("SIGTERM", "SIGUSR1", "SIGUSR2")
        }
        (OUTPUT / "owners.json").write_text(json.dumps(owners))
        super().zero_grad(*args, **kwargs)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["ema"] = self.ema.shadow_params
        if OPTIONS["loader"] == "installed":
            # They count the micro-batches by the optimizer's steps.
            loop = checkpoint["loops"]["fit_loop"]
            steps = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
            for which in ("total", "current"):
                completed = steps[which]["completed"] * self.trainer.accumulate_grad_batches
                loop["epoch_loop.batch_progress"][which]["completed"] = completed
            stepped = steps["total"]["completed"]
            loop["epoch_loop.state_dict"]["_batches_that_stepped"] = stepped
        act("save", self.trainer.global_step)

    def on_load_checkpoint(self, checkpoint):
        self.ema.shadow_params = checkpoint["ema"]
        loop = checkpoint["loops"]["fit_loop"]
        self.position = (
            loop["epoch_progress"]["current"]["completed"],
            loop["epoch_loop.batch_progress"]["current"]["completed"],
        )

    def train_dataloader(self):
        samples = Samples(0, OPTIONS["samples"])
        if OPTIONS["loader"] == "stateful":
            from torchdata.stateful_dataloader import StatefulDataLoader

            return StatefulDataLoader(samples, 2, shuffle=True, drop_last=True, **workers())
        if OPTIONS["loader"] != "own":
            return DataLoader(samples, 2, shuffle=True, **workers())
        batches = Batches(OPTIONS["samples"], 2, self.global_rank, self.trainer.world_size)
        return DataLoader(samples, batch_sampler=batches, **workers())

    def val_dataloader(self):
        # One batch fewer on the later ranks: collectives in a validation must not count on it.
        number = OPTIONS["validation_batches"] - self.global_rank
        return DataLoader(Samples(VALIDATED, 2 * number), batch_size=2)


def workers() -> dict:
    return {"num_workers": OPTIONS["workers"], "persistent_workers": OPTIONS["persistent"]}


class MultiRoundSDTT(Toy):
    """As sdtt: a teacher that is no part of the module, and a step of time, for each round."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = [copy.deepcopy(self.net)]
        self.dt = 1.0

    def training_step(self, batch, batch_idx):
        step = self.trainer.global_step
        if step > 0 and step % 3 == 0:
            self.dt = 2.0 ** (step // 3)
            self.teacher[0].load_state_dict(self.net.state_dict())
        with torch.no_grad():
            target = self.dt * self.teacher[0](batch[:, 1:])
        return super().training_step(batch, batch_idx) + (self.net(batch[:, 1:]) - target).mean()


class Distillation(Toy):
    """As duo's distillation: a teacher that the first loss makes, and checkpoints leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = None

    @property
    def backbone(self):
        return self.net

    def make_teacher(self):
        if self.teacher is None:
            self.teacher = copy.deepcopy(self.net)

    def validation_step(self, batch, batch_idx):
        self.make_teacher()  # As it is now, which is without dropout; and so it stays.
        super().validation_step(batch, batch_idx)

    def training_step(self, batch, batch_idx):
        self.make_teacher()
        if self.trainer.global_step % 3 == 0:
            for new, old in zip(self.net.parameters(), self.teacher.parameters(), strict=True):
                old.data.copy_(new.data)
        with torch.no_grad():
            target = self.teacher(batch[:, 1:])
        return super().training_step(batch, batch_idx) + (self.net(batch[:, 1:]) * target).mean()

    def on_save_checkpoint(self, checkpoint):
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {k: v for k, v in state.items() if not k.startswith("teacher")}
        super().on_save_checkpoint(checkpoint)


def fail_saves(times: int) -> None:
    """Let the next saves of a state meet a full disk after some bytes."""
    real = torch.save
    left = [times]

    def save(content, file, *args, **kwargs):
        if "state_dict" in content and left[0] > 0:
            left[0] -= 1
            file.write(b"some")
            raise OSError(28, "No space left on device")
        real(content, file, *args, **kwargs)

    torch.save = save
    saving.RETRY_PAUSE = 0.0


def slow_save() -> None:
    """A save that two signals 0.3 s apart arrive in."""
    real = torch.save

    def save(content, *args, **kwargs):
        if "state_dict" in content:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.3)
        real(content, *args, **kwargs)

    torch.save = save


def digest(module: Toy, trainer: pl.Trainer) -> str:
    """One digest over weights, average, optimizer and random states."""
    numbers = [*module.state_dict().values(), *module.ema.shadow_params]
    if isinstance(module, MultiRoundSDTT):
        numbers += [*module.teacher[0].state_dict().values(), torch.tensor(module.dt)]
    for state in trainer.optimizers[0].state_dict()["state"].values():
        numbers += [value for value in state.values() if isinstance(value, torch.Tensor)]
    numbers.append(torch.get_rng_state())
    sha = hashlib.sha256()
    for number in numbers:
        sha.update(number.cpu().contiguous().numpy().tobytes())
    sha.update(repr((random.getstate(), numpy.random.get_state())).encode())
    return sha.hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    pl.seed_everything(1)
    if OPTIONS["fail_saves"]:
        fail_saves(OPTIONS["fail_saves"])
    if OPTIONS["slow_save"]:
        slow_save()
    if OPTIONS["look_always"]:
        step_callback.StopLatch = functools.partial(step_callback.StopLatch, interval=0)
    world = OPTIONS["devices"]
    strategy = "auto"
    if world > 1 or OPTIONS["loader"] != "own":
        from lightning.pytorch.strategies import DDPStrategy

        strategy = DDPStrategy(process_group_backend="gloo")
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=world,
        strategy=strategy,
        max_epochs=OPTIONS["epochs"],
        max_steps=OPTIONS["max_steps"],
        accumulate_grad_batches=OPTIONS["accumulation"],
        val_check_interval=OPTIONS["validate_every"] or 1.0,
        limit_val_batches=1.0 if OPTIONS["validate_every"] or OPTIONS["sanity"] else 0,
        num_sanity_val_steps=OPTIONS["sanity"],
        callbacks=[StepCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=OPTIONS["loader"] != "own",
        default_root_dir=OUTPUT,
    )
    if OPTIONS["fence"] is not None:
        fence(OPTIONS["fence"])
    module = {None: Toy, "sdtt": MultiRoundSDTT, "duo": Distillation}[OPTIONS["teacher"]]()
    trainer.fit(module, ckpt_path=OPTIONS["resume"])
    if hasattr(module, "trainer"):
        final = {"step": trainer.global_step, "digest": digest(module, trainer)}
        (OUTPUT / f"final-{RANK}.json").write_text(json.dumps(final))


def fence(step: int) -> None:
    """Let another attempt begin right before this step is saved."""
    from dlbhpc.steps import begin_attempt

    real = saver.Saver.save

    def save(self, trainer, module, reason):
        if RANK == 0 and trainer.global_step == step:
            begin_attempt(self._context.steps_dir)
        real(self, trainer, module, reason)

    saver.Saver.save = save


if __name__ == "__main__":
    main()
