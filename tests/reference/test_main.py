"""The entry point as a launcher meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dlbhpc.exit_status import USAGE

MAIN = Path(__file__).parents[2] / "dlbhpc" / "reference" / "main.py"


def test_configuration_is_composed_without_torch_and_without_data(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch must not be imported')")
    command = [sys.executable, str(MAIN), "data.cache_dir=/nowhere", "optim.lr=0.5"]
    command += ["+callbacks.extra._target_=some.Callback", "--cfg", "job", "--resolve"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert "lr: 0.5" in done.stdout
    assert "_target_: some.Callback" in done.stdout
    assert "tokenizer_name_or_path: /nowhere/tokenizer" in done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "torch.py"]


@pytest.mark.slow
def test_fresh_run_trains_evaluates_before_and_after_and_samples(make_run: Any) -> None:
    run = make_run("plain")
    assert run.plain() == [0], run.log
    before, after = run.evaluation(0), run.evaluation(7)
    vocabulary = 32
    assert before["val_ppl"] == pytest.approx(vocabulary - 1, rel=0.05)
    assert before["sample"] is None
    assert after["tokens"] == before["tokens"] == 9 * 16 - 5
    assert len(after["sample"].split()) > 0
    assert sorted(p.name for p in (run.output / "evaluation").iterdir()) == [
        "step-00000000.json",
        "step-00000007.json",
    ]


@pytest.mark.slow
def test_finished_run_is_only_evaluated(make_run: Any) -> None:
    run = make_run("finished")
    assert run.attempt() == [0], run.log
    steps, evaluation = run.losses(), run.evaluation(7)
    (run.output / "evaluation" / "step-00000007.json").unlink()
    assert run.attempt() == [0], run.log
    assert run.losses() == steps
    assert run.evaluation(7) == evaluation


@pytest.mark.slow
def test_checkpoint_and_export_hold_model_average_and_step(make_run: Any) -> None:
    run = make_run("saved")
    assert run.attempt() == [0], run.log
    state = run.final_state()
    assert state["global_step"] == 7
    assert state["ema"]["num_updates"] == 7
    weights = {k: v for k, v in state["state_dict"].items() if not k.endswith("inv_freq")}
    assert [v.shape for v in weights.values()] == [v.shape for v in state["ema"]["shadow_params"]]
    export = torch.load(run.steps_dir / "step-00000007" / "model_bf16.pt", weights_only=True)
    assert list(export["state_dict"]) == list(weights)
    for exported, average in zip(
        export["state_dict"].values(), state["ema"]["shadow_params"], strict=True
    ):
        assert torch.equal(exported, average.bfloat16())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mode=sample_eval", "mode is 'sample_eval'"),
        ("loader.batch_size=3", "loader.global_batch_size is 8, but 1 nodes x 1 devices"),
        ("model.length=32", "holds blocks of 16 tokens, model.length is 32"),
        ("data.cache_dir=/nowhere", "there is no processed data in /nowhere/train"),
        ("data.tokenizer_name_or_path=/nowhere", "there is no tokenizer /nowhere/tokenizer.json"),
    ],
)
def test_what_does_not_fit_is_one_sentence(make_run: Any, override: str, message: str) -> None:
    run = make_run("refused")
    assert run.plain(override) == [USAGE]
    assert f"ERROR: {message}" in run.log.replace(f"{run.output}", "") or message in run.log
    assert "Traceback" not in run.log
