"""From a request to a launch: what it may choose, and every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.command import Launch, Request, dry_run_object, plan_launch, student_init_snapshot
from dlbhpc.errors import DlbhpcError
from dlbhpc.geometry import InexactBatch
from dlbhpc.layout import PathError
from dlbhpc.recipe import LockedValue


def test_a_launch_survives_json(tmp_path: Path) -> None:
    for request in (
        Request("mdlm_di4c", root=tmp_path),
        Request("reference_mdlm", root=tmp_path, trial={}),
    ):
        launch = plan_launch(request)
        assert Launch.from_json(json.loads(json.dumps(launch.to_json()))) == launch


def test_a_damaged_launch_record_is_named() -> None:
    data = plan_launch(Request("reference_mdlm")).to_json()
    del data["geometry"]["nodes"]
    with pytest.raises(DlbhpcError, match=r"run\.json: missing key 'geometry.nodes'"):
        Launch.from_json(data, "run.json")


def test_the_dry_run_is_one_json_object(tmp_path: Path) -> None:
    shown = dry_run_object(plan_launch(Request("mdlm_sdtt", root=tmp_path)), "#!/bin/bash\n")
    root = tmp_path.resolve()
    output = f"{root}/checkpoints/self_trained/lm1b/mdlm_sdtt"
    assert list(shown) == [
        "schema_version", "dry_run", "model", "dataset", "source", "source_commit", "entrypoint",
        "data", "teacher", "adapted_teacher", "output", "command", "effective_global_batch_size",
        "gradient_accumulation", "recipe", "departures", "sbatch",
    ]  # fmt: skip
    assert json.loads(json.dumps(shown)) == shown
    assert shown["model"] == "mdlm_sdtt"
    assert shown["source"] == f"{root}/upstreams/sdtt"
    assert shown["data"] == f"{root}/data/training_cache/sdtt/lm1b"
    assert shown["teacher"] == f"{root}/checkpoints/self_trained/lm1b/mdlm/model.ckpt"
    assert shown["adapted_teacher"] == f"{output}/inputs/teacher_adapted.ckpt"
    assert shown["output"] == output
    assert shown["effective_global_batch_size"] == 128
    assert shown["gradient_accumulation"] == 1
    assert {tuple(entry) for entry in shown["departures"]} == {("key", "value", "reason")}
    assert {entry["key"]: entry["value"] for entry in shown["departures"]}[
        "loader.num_workers"
    ] == 8


def test_paths_with_spaces_and_quotes_reach_the_command_quoted(tmp_path: Path) -> None:
    root = tmp_path / "it's a root, with = signs"
    launch = plan_launch(Request("flm", root=root))
    (word,) = [word for word in launch.argv if word.startswith("checkpointing.save_dir=")]
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(word).value()
    assert parsed == str(launch.output.folder)


# What the user may choose


def test_choices_reach_the_launch(tmp_path: Path) -> None:
    launch = plan_launch(
        Request(
            "duo_di4c",
            "owt",
            gpus_per_node=1,
            seed=7,
            student_init="scratch",
            resume=False,
            teacher=Path("teachers/duo.ckpt"),
            output=Path("runs/a"),
            num_workers=3,
            root=tmp_path,
        )
    )
    root = tmp_path.resolve()
    assert launch.geometry.accumulation == 2
    assert launch.teacher == root / "teachers/duo.ckpt"
    for word in (
        "+seed=7",
        "+dlb_student_init=scratch",
        "checkpointing.resume_from_ckpt=false",
        f"checkpointing.save_dir={root}/runs/a",
        "loader.num_workers=3",
        "trainer.accumulate_grad_batches=2",
    ):
        assert word in launch.argv


def test_a_trial_lies_apart_and_is_marked(tmp_path: Path) -> None:
    launch = plan_launch(Request("reference_mdlm", root=tmp_path, trial={"batch": 6}))
    assert launch.trial is not None
    trials = tmp_path.resolve() / "checkpoints/trials/pydoc/reference_mdlm"
    assert launch.output.folder == trials
    assert "trainer.max_steps=20" in launch.argv
    assert launch.geometry.global_batch == 6
    shared = plan_launch(
        Request("reference_mdlm", root=tmp_path, trial={"batch": 6}, gpus_per_node=2)
    )
    assert shared.geometry.per_device_batch == 3


def test_locked_values_may_be_repeated() -> None:
    plan_launch(Request("flm", locked={"global_batch": 512, "rounds": None}))


# Refusals


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (Request("flm", locked={"global_batch": 256}), LockedValue, "locked at 512 .* 256"),
        (Request("flm", nodes=3), InexactBatch, "Nearest exact: 2 nodes x 8 GPUs x 32"),
        (Request("flm", gpus_per_node=6), InexactBatch, "Nearest exact: 1 node x 4 GPUs"),
        (Request("flm", per_device_batch=48), InexactBatch, "1 node x 8 GPUs x 32 per device"),
        (Request("flm", nodes=2), InexactBatch, "--per-device-batch-size 32 or 16"),
        (
            Request("rdlm", nodes=2),
            DlbhpcError,
            "--nodes 2 is too much for rdlm, at most 1",
        ),
        (
            Request("duo_di4c", per_device_batch=2),
            DlbhpcError,
            "--per-device-batch-size 2 is too much",
        ),
        (Request("flm", nodes=0), DlbhpcError, "--nodes is 0"),
        (Request("flm", gpus_per_node=-1), DlbhpcError, "--gpus-per-node is -1"),
        (Request("flm", per_device_batch=0), DlbhpcError, "--per-device-batch-size is 0"),
        (Request("flm", seed=-1), DlbhpcError, "--seed -1: it must lie between 0 and"),
        (Request("flm", seed=2**32), DlbhpcError, "--seed 4294967296"),
        (Request("flm", teacher=Path("x")), DlbhpcError, "flm has no teacher"),
        (Request("flm", student_init="teacher"), DlbhpcError, "flm takes no --student-init"),
        (Request("duo_di4c", student_init="x"), DlbhpcError, "teacher or hf_small or scratch"),
        (Request("fmlm", teacher=Path("/x")), PathError, "the teacher /x is not inside"),
        (Request("fmlm", teacher=Path("checkpoints/trials/a")), DlbhpcError, "from a trial"),
        (Request("flm", output=Path("/x")), PathError, "the output /x is not inside"),
        (Request("flm", output=Path("../x")), PathError, "contains '..'"),
        (Request("flm", output=Path("data/x")), PathError, "holds what runs read"),
        (Request("flm", output=Path("checkpoints/trials/x")), PathError, "a locked run"),
        (Request("reference_mdlm", output=Path("x"), trial={}), PathError, "a trial must lie"),
        (Request("mdlm_di4c", trial={}, student_init="hf_small"), DlbhpcError, "teacher or scr"),
        (Request("flm", root=Path("/a:b")), DlbhpcError, "PYTHONPATH cannot hold"),
        (Request("flm", root=Path("/a\nb")), PathError, "control character"),
    ],
)
def test_what_is_refused_says_why(request_: Request, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        plan_launch(request_)


def test_an_output_or_teacher_through_a_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/elsewhere")
    for change in ({"output": Path("link/x")}, {"teacher": Path("link/x")}):
        with pytest.raises(PathError, match="passes through the symlink"):
            plan_launch(Request("fmlm", root=tmp_path, **change))  # type: ignore[arg-type]


def test_a_teacher_folder_that_is_a_symlink_is_refused_by_default_too(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints/self_trained/lm1b"
    folder.mkdir(parents=True)
    (folder / "flm").symlink_to("/elsewhere")
    with pytest.raises(PathError, match=r"the teacher .* passes through the symlink"):
        plan_launch(Request("fmlm", root=tmp_path))


def test_a_trial_of_a_pinned_upstream_reads_the_small_data(tmp_path: Path) -> None:
    launch = plan_launch(Request("mdlm", root=tmp_path, trial={}, accelerator="cpu"))
    small = tmp_path.resolve() / "data/trials"
    tokenizer = small / "raw/huggingface/hub/models--bert-base-uncased/snapshots/trial"
    assert launch.data == small / "training_cache/mdlm/lm1b"
    assert launch.manifest == small / "manifests/lm1b.json"
    assert launch.environment["HF_HOME"] == str(small / "raw/huggingface")
    assert launch.output.folder == tmp_path.resolve() / "checkpoints/trials/lm1b/mdlm"
    for word in (
        "model.length=32",
        "model.hidden_size=64",
        "trainer.accelerator=cpu",
        "trainer.precision='32-true'",
        f"data.tokenizer_name_or_path={tokenizer}",
        f"eval.gen_ppl_eval_model_name_or_path={tokenizer}",
    ):
        assert word in launch.argv
    assert Launch.from_json(json.loads(json.dumps(launch.to_json()))) == launch
    locked = plan_launch(Request("mdlm", root=tmp_path, accelerator="cpu"))
    assert locked.data == tmp_path.resolve() / "data/training_cache/mdlm/lm1b"
    assert not any(word.startswith("trainer.accelerator") for word in locked.argv)


def test_a_trial_of_di4c_keeps_one_sample_per_device(tmp_path: Path) -> None:
    geometry = plan_launch(Request("duo_di4c", root=tmp_path, trial={})).geometry
    assert (geometry.per_device_batch, geometry.accumulation) == (1, 2)


def test_the_output_never_lies_among_the_data_of_locked_runs(tmp_path: Path) -> None:
    with pytest.raises(PathError, match="holds what runs read"):
        plan_launch(Request("mdlm", root=tmp_path, trial={}, output=tmp_path / "data/raw/x"))


def test_hf_small_needs_its_local_snapshot(tmp_path: Path) -> None:
    launch = plan_launch(Request("mdlm_di4c", "owt", root=tmp_path))
    with pytest.raises(
        DlbhpcError, match=r"jdeschena/sdtt at baselines_kld_step_70000.*data fetch"
    ):
        student_init_snapshot(launch)
    hub = tmp_path.resolve() / "data/raw/huggingface/hub/models--jdeschena--sdtt"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs/baselines_kld_step_70000").write_text("abc\n")
    (hub / "snapshots/abc").mkdir(parents=True)
    with pytest.raises(DlbhpcError, match="is missing"):
        student_init_snapshot(launch)
    (hub / "snapshots/abc/model.safetensors").touch()
    assert student_init_snapshot(launch) == hub / "snapshots/abc"


def test_other_inits_need_no_snapshot(tmp_path: Path) -> None:
    assert student_init_snapshot(plan_launch(Request("mdlm_di4c", root=tmp_path))) is None
    assert student_init_snapshot(plan_launch(Request("flm", root=tmp_path))) is None


def test_the_bundled_commit_follows_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlbhpc.command import bundled

    folder = tmp_path / "reference"
    folder.mkdir()
    monkeypatch.setattr(bundled, "PACKAGE", tmp_path)
    monkeypatch.setattr(bundled, "_FOLDERS", (folder,))
    monkeypatch.setattr(bundled, "_FILES", (tmp_path / "geometry.py",))
    (tmp_path / "geometry.py").write_text("plan")

    def commit(change: Any) -> str:
        change()
        return bundled.bundled_commit()

    seen = [
        commit(lambda: (folder / "a.py").write_text("1")),
        commit(lambda: (folder / "a.py").write_text("2")),
        commit(lambda: (folder / "a.py").rename(folder / "b.py")),
        commit(lambda: (folder / "c.yaml").write_text("")),
        commit(lambda: (tmp_path / "geometry.py").write_text("another plan")),
    ]
    assert len(set(seen)) == 5
    assert commit(lambda: (folder / "notes.pyc").write_text("x")) == seen[-1]
