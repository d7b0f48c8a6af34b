"""Every route's command, environment and result, word by word."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.command import Request, plan_launch
from dlbhpc.layout import CHECKOUT

ROUTES = [
    (name, dataset)
    for name in (
        "flm", "fmlm", "duo", "duo_dcd", "mdlm", "candi", "mdlm_sdtt", "duo_di4c", "mdlm_di4c"
    )
    for dataset in ("lm1b", "owt")
] + [("rdlm", "lm1b")]  # fmt: skip

HF = "data/raw/huggingface"
TOKENIZER = {
    "lm1b": f"{HF}/hub/models--bert-base-uncased/snapshots/"
    "86b5e0934494bd15c9632b12f734a8a67f723594",
    "owt": f"{HF}/hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfcd7e",
}
LENGTH = {"lm1b": 128, "owt": 1024}
STEP_CALLBACK = "+callbacks.dlbhpc_steps._target_=dlbhpc.inside.step_callback.StepCallback"


def shared_words(
    root: Path, name: str, dataset: str, batch: int, device: int, gpus: int, steps: int, lr: str,
    milestone: int, precision: str,
) -> list[str]:  # fmt: skip
    """What the Lightning and the sdtt family share, written out from the facts."""
    output = f"{root}/checkpoints/self_trained/{dataset}/{name}"
    return [
        "mode=train",
        f"model.length={LENGTH[dataset]}",
        f"loader.global_batch_size={batch}",
        f"loader.eval_global_batch_size={batch}",
        f"loader.batch_size={device}",
        f"loader.eval_batch_size={device}",
        f"trainer.devices={gpus}",
        "trainer.num_nodes=1",
        f"trainer.accumulate_grad_batches={batch // (gpus * device)}",
        f"trainer.max_steps={steps}",
        f"trainer.precision={precision}",
        f"optim.lr={lr}",
        "lr_scheduler.num_warmup_steps=2500",
        f"callbacks.checkpoint_every_n_steps.every_n_train_steps={milestone}",
        f"checkpointing.save_dir={output}",
        "checkpointing.resume_from_ckpt=true",
        f"checkpointing.resume_ckpt_path={output}/checkpoints/last.ckpt",
        f"hydra.run.dir={output}",
        "hydra.job.chdir=true",
        "wandb=null",
    ]


def locked_words(root: Path, name: str, dataset: str) -> list[str]:
    """The locked table of a route, written out from the facts and not from conf."""
    self_trained = f"{root}/checkpoints/self_trained/{dataset}"
    tokenizer = f"{root}/{TOKENIZER[dataset]}"
    lm1b = dataset == "lm1b"
    if name == "rdlm":
        return [
            "run_mode=train", "exp=lm1b", "optim=adam", "ngpus=8", "training.batch_size=512",
            "training.accum=1", "training.n_iters=1000000", "training.snapshot_freq=20000",
            "training.snapshot_freq_for_preemption=5000", "training.snapshot_sampling=false",
            f"data.cache_dir={root}/{HF}/datasets", "optim.lr=0.0003", "optim.warmup=2500",
            f"hydra.run.dir={self_trained}/rdlm", "use_wandb=false", "seed=42",
        ]  # fmt: skip
    if name in ("mdlm_sdtt", "duo_di4c", "mdlm_di4c"):
        di4c = name != "mdlm_sdtt"
        words = shared_words(
            root, name, dataset,
            batch=2 if di4c else 128,
            device=1 if di4c else 16,
            gpus=2 if di4c else 8,
            steps=(20_000 if lm1b else 50_000) if di4c else 80_000,
            lr="3e-05" if di4c else "6e-05",
            milestone=10_000,
            precision="bf16-mixed",
        )  # fmt: skip
        words += [
            "data.train=" + ("lm1b" if lm1b else "openwebtext-train"),
            "data.valid=" + ("lm1b" if lm1b else "openwebtext-valid"),
            f"tokenizer.name={tokenizer}",
            f"data_preprocess.data_cache={root}/data/training_cache/"
            f"{'di4c' if di4c else 'sdtt'}/{dataset}",
            f"data_preprocess.seq_len={LENGTH[dataset]}",
            "data_preprocess.group_text=true", "data_preprocess.remove_text=true",
            "data_preprocess.add_bos=false", "data_preprocess.add_eos=true",
            "data_preprocess.legacy_start_end_bos=true",
            "model=dit-orig-small", "parameterization=multi-round-sdtt",
            f"parameterization.checkpoint_path={self_trained}/{name}/inputs/teacher_adapted.ckpt",
            "parameterization.start_from_hf=false", "parameterization.grow_dt_every=10000",
            "parameterization.orig_num_sampling_steps=1024", "+seed=42",
        ]  # fmt: skip
        if di4c:
            words += [
                "is_di4c=true", "is_teacher_di4c=false", "T=1024", "latent_bsize=16", "round=7",
                "+dlb_student_init=" + ("teacher" if lm1b else "hf_small"),
            ]  # fmt: skip
        return words
    dcd = name == "duo_dcd"
    words = shared_words(
        root, name, dataset,
        batch=128 if dcd else 512,
        device=64 if lm1b and not dcd else 16,
        gpus=8,
        steps={"fmlm": 100_000, "duo_dcd": 80_000}.get(name, 1_000_000),
        lr="6e-05" if dcd else "0.0003",
        milestone=10_000 if dcd else 20_000,
        precision="bf16",
    )  # fmt: skip
    upstream = {"fmlm": "flm", "duo_dcd": "duo"}.get(name, name)
    data = ("lm1b" if name == "mdlm" else "lm1b-wrap") if lm1b else "openwebtext-split"
    words += [
        f"data={data}",
        f"data.cache_dir={root}/data/training_cache/{upstream}/{dataset}",
        f"data.tokenizer_name_or_path={tokenizer}",
        "model=small", "lr_scheduler=constant_warmup", "seed=42",
    ]  # fmt: skip
    integral = f"{root}/upstreams/duo/integral/{'bert-base-uncased' if lm1b else 'gpt2'}.pkl"
    return words + {
        "flm": ["algo=flm", "algo.double_temb=false"],
        "fmlm": [
            "algo=fmlm", "algo.double_temb=true", "algo.distillation_method=PSD",
            "algo.use_mse_loss_psd=false", "algo.learnable_loss_weighting=false",
            "algo.initialize_student_from_teacher=true",
            f"algo.teacher_path={self_trained}/flm/model.ckpt",
        ],
        "duo": [
            "algo=duo", "algo.curriculum.mode=simple",
            "algo.curriculum.gumbel_tau_log10_start=-3.0",
            "algo.curriculum.gumbel_tau_log10_end=-3.0", "algo.curriculum.gamma_min=-3.5",
            "algo.curriculum.gamma_max=-1.75", "algo.curriculum.start=0",
            "algo.curriculum.end=500000",
        ],
        "duo_dcd": [
            "algo=distillation", f"training.finetune_path={self_trained}/duo/model.ckpt",
            "training.ema=0.999", "algo.T=512", f"algo.integral_cache_path={integral}",
            "+algo.curriculum.mode=simple", "+algo.curriculum.gumbel_tau_log10_start=-1",
            "+algo.curriculum.gumbel_tau_log10_end=-1", "+algo.curriculum.start=-1",
            "+algo.curriculum.end=-1", "+algo.curriculum.gamma_min=-4",
            "+algo.curriculum.gamma_max=-1", f"+algo.curriculum.integral_cache_path={integral}",
            "algo.update_teacher_every=10000", "algo.teacher_ema=false",
            "algo.linear_growth_dt=false",
        ],
        "mdlm": [
            "parameterization=subs", "diffusion=absorbing_state",
            *(["data.wrap=true", "+data.insert_train_eos=true", "+data.insert_valid_eos=true"]
              if lm1b else []),
        ],
        "candi": [
            f"scratch_dir={root}/work/candi", "algo=candi", "algo.sampler=cached",
            "algo.mixed_coeff=0.5", "algo.step_size=1.0", "algo.temp=1.0",
        ],
    }[name]  # fmt: skip


def departure_words(root: Path, name: str, dataset: str) -> list[str]:
    """The overrides that a route needs beyond its locked table."""
    if name == "rdlm":
        return ["sde.rho_scale=1.14", "sde.step_thr=0.38"]
    words = ["loader.num_workers=8", STEP_CALLBACK]
    if name == "mdlm_sdtt":
        return [*words, "eval.valid.n_samples=0"]
    if name.endswith("di4c"):
        return words
    words += [
        f"eval.gen_ppl_eval_model_name_or_path={root}/{TOKENIZER['owt']}",
        "eval.generate_samples=false",
    ]
    if name in ("flm", "fmlm"):
        words += [
            "eval.compute_generative_perplexity=false",
            "callbacks.checkpoint_every_n_steps.save_last=true",
            "callbacks.checkpoint_monitor.save_last=false",
        ]
    if name == "duo":
        key = "bert-base-uncased" if dataset == "lm1b" else "gpt2"
        words.append(f"algo.curriculum.integral_cache_path={root}/upstreams/duo/integral/{key}.pkl")
    return words


@pytest.mark.parametrize("route", ROUTES, ids="-".join)
def test_a_route_renders_its_locked_table_and_its_departures(
    tmp_path: Path, route: tuple[str, str]
) -> None:
    launch = plan_launch(Request(*route, root=tmp_path))
    root = tmp_path.resolve()
    adapter = {"duo": "train_duo", "duo_dcd": "train_duo_dcd", "duo_di4c": "train_di4c",
               "mdlm_di4c": "train_di4c"}.get(route[0])  # fmt: skip
    main = "src/sdtt/main.py" if route[0] == "mdlm_sdtt" else "main.py"
    entry = (
        CHECKOUT / "dlbhpc" / "inside" / "adapters" / f"{adapter}.py"
        if adapter
        else launch.source / main
    )
    assert launch.argv[:3] == ("python", "-u", str(entry))
    expected = locked_words(root, *route) + departure_words(root, *route)
    assert sorted(launch.argv[3:]) == sorted(expected)
    overrides = [f for f in launch.departures if f.kind == "override"]
    assert len(overrides) == len(departure_words(root, *route))
    assert launch.geometry.global_batch == launch.recipe.global_batch
    assert not list(tmp_path.iterdir()), "planning writes nothing"


ONE_PER_UPSTREAM = ("flm", "duo", "mdlm", "candi", "rdlm", "mdlm_sdtt", "duo_di4c")


@pytest.mark.parametrize("recipe", ONE_PER_UPSTREAM)
def test_a_route_runs_offline_in_its_environment(tmp_path: Path, recipe: str) -> None:
    launch = plan_launch(Request(recipe, root=tmp_path))
    root, environment = tmp_path.resolve(), dict(launch.environment)
    import_root = {"sdtt": "src", "di4c": "sdtt/src"}.get(launch.recipe.upstream.name, ".")
    assert environment.pop("PYTHONPATH") == f"{launch.source / import_root}:{CHECKOUT}"
    on_output = environment.pop("TMPDIR", None)
    assert on_output == (f"{launch.output.folder}/tmp" if recipe in ("flm", "candi") else None)
    unpickles = environment.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    assert unpickles == ("1" if recipe in ("flm", "mdlm", "duo", "candi", "rdlm") else None)
    assert environment == {
        "HF_HOME": f"{root}/{HF}",
        "HF_DATASETS_CACHE": f"{root}/{HF}/datasets",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize(
    ("route", "selected"),
    [
        (("flm", "lm1b"), "model.ckpt"),
        (("rdlm", "lm1b"), "checkpoints/checkpoint_50.pth"),
        (("mdlm_sdtt", "owt"), "student_checkpoints/70000.ckpt"),
        (("duo_di4c", "lm1b"), "student_checkpoints/20000.ckpt"),
        (("mdlm_di4c", "owt"), "student_checkpoints/50000.ckpt"),
        (("reference_mdlm", "pydoc"), "model.ckpt"),
    ],
)
def test_the_selected_checkpoint_has_its_place(route: tuple[str, str], selected: str) -> None:
    launch = plan_launch(Request(*route))
    assert launch.selected_checkpoint == launch.output.folder / selected


def test_the_reference_trains_one_epoch_of_the_processed_data(tmp_path: Path) -> None:
    launch = plan_launch(Request("reference_mdlm", root=tmp_path))
    processed = tmp_path.resolve() / "data/processed/pydoc-bpe-128"
    for word in (
        "trainer.max_steps=-1",
        "trainer.max_epochs=1",
        "data=pydoc",
        f"data.cache_dir={processed}",
        f"data.tokenizer_name_or_path={processed}/tokenizer",
        "loader.global_batch_size=16",
        STEP_CALLBACK,
    ):
        assert word in launch.argv
    assert launch.data == processed
    assert launch.source_commit.startswith("bundled-")
    assert launch.environment["PYTHONPATH"] == str(CHECKOUT)
