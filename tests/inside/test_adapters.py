"""Adapters put right what keeps an upstream's main program from running; stand-ins for the code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dlbhpc.inside.adapters.duo_losses import repair_losses
from dlbhpc.inside.adapters.train_di4c import check_names, snapshot
from dlbhpc.inside.adapters.train_duo_dcd import keep_decay
from dlbhpc.layout import ADAPTERS, CHECKOUT


def duo_algo() -> SimpleNamespace:
    """The classes of the pinned duo, as far as their losses are called."""

    class Base:
        global_step = 0
        curriculum_end = 10

        def loss(self, train_mode):
            return self.nll("x0", "labels", "output", "accumulation step", train_mode)

        def nll(self, x0, labels, output_tokens, current_accumulation_step=None, train_mode=False):
            return "plain", x0, labels, output_tokens, current_accumulation_step

    class DUO(Base):
        def nll(self, x0, output_tokens, current_accumulation_step=None, train_mode=False):
            if self.global_step > self.curriculum_end or not train_mode:
                return super().nll(x0, output_tokens, current_accumulation_step)
            return "curriculum", x0, output_tokens, current_accumulation_step

    class Distillation(DUO):
        ema = None

        def nll(self, x0, output_tokens, current_accumulation_step=None, train_mode=None):
            return "distillation", x0, output_tokens, current_accumulation_step

        def on_load_checkpoint(self, checkpoint):
            self.ema.decay = checkpoint["ema"]["decay"]

    return SimpleNamespace(DUO_BASE=Base, DUO=DUO, Distillation=Distillation)


def test_hazard_12_the_losses_take_what_the_trainer_passes() -> None:
    algo = duo_algo()
    with pytest.raises(TypeError):
        algo.DUO().loss(train_mode=True)
    repair_losses(algo)
    assert algo.DUO().loss(True) == ("curriculum", "x0", "output", "accumulation step")
    assert algo.Distillation().loss(True) == ("distillation", "x0", "output", "accumulation step")


@pytest.mark.parametrize(("step", "train_mode"), [(11, True), (0, False)])
def test_hazard_12_the_plain_loss_behind_the_curriculum_gets_each_argument(
    step: int, train_mode: bool
) -> None:
    """Its times are drawn over the global batch, by the accumulation step."""
    algo = duo_algo()
    repair_losses(algo)
    module = algo.DUO()
    module.global_step = step
    assert module.loss(train_mode) == ("plain", "x0", "labels", "output", "accumulation step")


def test_hazard_11_a_loaded_checkpoint_does_not_change_the_decay() -> None:
    algo = duo_algo()
    keep_decay(algo)
    module = algo.Distillation()
    module.config = SimpleNamespace(training=SimpleNamespace(ema=0.999))
    module.ema = SimpleNamespace(decay=0.999)
    module.on_load_checkpoint({"ema": {"decay": 0.9999}})
    assert module.ema.decay == 0.999


MAIN = """
import sys
import algo
print(__name__, sys.argv, sys.path[0], __file__)
def task(): pass
print(task.__module__, task.__code__.co_filename)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "algo.py").write_text(
        "class DUO_BASE:\n def nll(self): pass\n"
        "class DUO(DUO_BASE): pass\n"
        "class Distillation(DUO):\n def on_load_checkpoint(self): pass\n"
    )
    return tmp_path


def run(adapter: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ADAPTERS / f"{adapter}.py"), "algo=duo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("adapter", ["train_duo", "train_duo_dcd"])
def test_hazard_35_the_adapter_stays_the_program_and_the_checkout_is_imported_from(
    adapter: str, checkout: Path
) -> None:
    done = run(adapter, checkout)
    assert done.returncode == 0, done.stderr
    script = str(ADAPTERS / f"{adapter}.py")
    first, second = done.stdout.splitlines()
    # What Lightning starts for the other ranks, and what data workers import.
    assert first == f"__main__ {[script, 'algo=duo']} {checkout} {script}"
    # Where Hydra looks for the configuration.
    assert second == f"__main__ {checkout / 'main.py'}"


@pytest.mark.parametrize("adapter", ["train_duo", "train_duo_dcd", "train_di4c"])
def test_an_adapter_outside_its_checkout_says_so(adapter: str, tmp_path: Path) -> None:
    done = run(adapter, tmp_path)
    assert done.returncode == 1
    assert "start it in the upstream's checkout" in done.stderr
    assert "Traceback" not in done.stderr


NETWORK = ["blocks.0.weight", "rotary_emb.inv_freq", "latent_projection.0.weight"]


def test_hazard_22_weights_of_another_network_are_refused_by_name() -> None:
    """Left alone, di4c loads what fits and ignores the rest."""
    check_names("teacher.ckpt", NETWORK[:2], NETWORK)
    for found, named in (
        (NETWORK[:1], "missing ['rotary_emb.inv_freq'], unexpected none"),
        ([*NETWORK[:2], "extra"], "missing none, unexpected ['extra']"),
    ):
        with pytest.raises(SystemExit) as refused:
            check_names("teacher.ckpt", found, NETWORK)
        assert named in str(refused.value)


def test_hazard_22_the_published_student_comes_from_its_local_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="data fetch hf_small"):
        snapshot("baselines_kld_step_70000")
    folder = tmp_path / "hub" / "models--jdeschena--sdtt"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "baselines_kld_step_70000").write_text("abc\n")
    assert snapshot("baselines_kld_step_70000") == folder / "snapshots" / "abc"
