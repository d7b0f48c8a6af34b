"""The command line as a whole: what it answers to bad input, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dlbhpc.cli.main import main
from dlbhpc.layout import CHECKOUT

HEAVY = ("torch", "lightning", "datasets", "hydra", "omegaconf", "submitit", "jinja2")
COMMANDS = (
    "submit plan recipes profiles data teacher upstream image status logs preempt requeue cancel "
    "doctor report demo attempt"
).split()


def imported_by(*arguments: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after running this."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "import dlbhpc"),
        ("-m", "dlbhpc", "--help"),
        ("-m", "dlbhpc", "recipes"),
        ("-m", "dlbhpc", "profiles"),
    ],
    ids=["import", "help", "recipes", "profiles"],
)
def test_nothing_heavy_is_imported(arguments: tuple[str, ...]) -> None:
    assert imported_by(*arguments) & set(HEAVY) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"usage: dlbhpc {command}" in capsys.readouterr().out


def test_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command}" in text for command in COMMANDS)


@pytest.mark.parametrize("arguments", [[], ["sumbit"], ["submit"], ["--no-such-flag"]])
def test_a_wrong_call_exits_2_with_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: dlbhpc" in capsys.readouterr().err


def test_a_missing_package_is_a_sentence_that_names_the_set_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _WITHOUT_SITE_PACKAGES.format(checkout=CHECKOUT)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ERROR: the Python package yaml is not installed")
    assert f"use {CHECKOUT}/.venv/bin/python" in done.stderr


_WITHOUT_SITE_PACKAGES = """
import sys
sys.path.insert(0, {str(checkout)!r})
from dlbhpc.cli.main import main
sys.exit(main(["recipes"]))
""".replace("{str(checkout)!r}", '"{checkout}"')


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m dlbhpc recipes --json | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=CHECKOUT, check=True
    )
    assert done.stdout.strip() == "{"
    assert done.stderr == ""


def dry_run(root: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    status = main(["submit", *arguments, "--root", str(root), "--dry-run", "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    shown: dict[str, object] = json.loads(captured.out)
    return shown


KEYS = (
    "schema_version dry_run model dataset source source_commit entrypoint data teacher "
    "adapted_teacher output command effective_global_batch_size gradient_accumulation recipe "
    "departures sbatch"
).split()
RECIPES = "flm duo mdlm candi rdlm fmlm duo_dcd mdlm_sdtt duo_di4c mdlm_di4c".split()
ROUTES = [
    (recipe, dataset)
    for recipe in RECIPES
    for dataset in ("lm1b", "owt")
    if (recipe, dataset) != ("rdlm", "owt")
]


def test_there_are_19_routes() -> None:
    assert len(ROUTES) == 19


@pytest.mark.parametrize(("recipe", "dataset"), [*ROUTES, ("reference_mdlm", "pydoc")])
def test_every_route_dry_runs_and_touches_nothing(
    tmp_path: Path, recipe: str, dataset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--recipe", recipe, "--dataset", dataset, "--cluster", "slurm"]
    shown = dry_run(tmp_path, *arguments, capsys=capsys)
    assert list(shown) == KEYS
    assert (shown["model"], shown["dataset"], shown["dry_run"]) == (recipe, dataset, True)
    assert list(tmp_path.iterdir()) == []
    script = str(shown["sbatch"])
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=")
    assert str(shown["output"]) in script
    departures = shown["departures"]
    assert isinstance(departures, list)
    for departure in departures:
        assert set(departure) == {"key", "value", "reason"}
        assert departure["reason"].endswith(".")


def test_a_dry_run_without_json_is_for_a_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", "--recipe", "duo", "--root", str(tmp_path), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "512 = 1 node x 8 GPUs x 64 per device x 1 accumulation" in text
    assert "algo.curriculum.integral_cache_path" in text


REFUSALS = [
    (["--recipe", "di4c"], "choose duo_di4c or mdlm_di4c"),
    (["--recipe", "mdml"], "did you mean mdlm"),
    (["--recipe", "rdlm", "--dataset", "owt"], "rdlm does not train on 'owt'"),
    (["--recipe", "mdlm", "--dataset", "c4"], "choose lm1b or owt"),
    (["--recipe", "mdlm", "--global-batch-size", "256"], "locked at 512"),
    (["--recipe", "mdlm", "--learning-rate", "1e-3"], "0.001 was given"),
    (["--recipe", "mdlm_sdtt", "--rounds", "7"], "locked at 8"),
    (["--recipe", "duo_dcd", "--steps-per-round", "5000"], "locked at 10000"),
    (["--recipe", "duo_dcd", "--teacher-family", "masked_mdlm"], "--teacher-family"),
    (["--recipe", "mdlm", "--nodes", "3"], "Nearest exact"),
    (["--recipe", "mdlm", "--gpus-per-node", "6"], "Nearest exact"),
    (["--recipe", "mdlm", "--per-device-batch-size", "48"], "Nearest exact"),
    (["--recipe", "mdlm", "--nodes", "0"], "at least 1"),
    (["--recipe", "mdlm", "--gpus-per-node", "9" * 23], "Nearest exact"),
    (["--recipe", "mdlm", "--nodes", "9" * 23, "--gpus-per-node", "3"], "Nearest exact"),
    (["--recipe", "mdlm", "--gpus-per-node", "8", "--cluster", "devcluster"], "have 4"),
    (["--recipe", "mdlm", "--output", "a\udcff"], "control character"),
    (["--recipe", "mdlm", "--gpus-per-node", "-8"], "at least 1"),
    (["--recipe", "rdlm", "--nodes", "2"], "rdlm"),
    (["--recipe", "mdlm", "--seed", "-1"], "--seed -1"),
    (["--recipe", "mdlm", "--teacher", "t.ckpt"], "mdlm has no teacher"),
    (["--recipe", "mdlm", "--student-init", "teacher"], "only duo_di4c and mdlm_di4c"),
    (["--recipe", "mdlm_di4c", "--student-init", "zero"], "teacher or hf_small or scratch"),
    (["--recipe", "mdlm_di4c", "--teacher", "/etc/passwd"], "not inside the project root"),
    (["--recipe", "mdlm", "--output", "/tmp"], "not inside the project root"),
    (["--recipe", "mdlm", "--output", "a/../b"], "contains '..'"),
    (["--recipe", "mdlm", "--output", "a\nb"], "control character"),
    (["--recipe", "mdlm", "--output", "data/x"], "holds what runs read"),
    (["--recipe", "mdlm", "--output", "checkpoints/trials/x"], "must lie outside"),
    (["--recipe", "mdlm_sdtt", "--trial", "round=3"], "no whole number of rounds"),
    (["--recipe", "reference_mdlm", "--trial=steps=0"], "at least 1"),
    (["--recipe", "reference_mdlm", "--trial=speed=9"], "is no size"),
    (["--recipe", "reference_mdlm", "--trial=steps"], "size=number"),
    (["--recipe", "mdlm", "--cluster", "nowhere"], "no cluster profile 'nowhere'"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS, ids=lambda value: str(value)[:60])
def test_what_is_refused_exits_2_with_a_sentence(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [] if "--cluster" in arguments else ["--cluster", "slurm"]
    command = ["submit", *arguments, *base, "--root", str(tmp_path), "--dry-run"]
    assert main(command) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("ERROR: ")
    assert message in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_an_output_through_a_symlink_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    command = ["submit", "--recipe", "mdlm", "--output", "link/x", "--root", str(tmp_path)]
    assert main([*command, "--dry-run"]) == 2
    assert "passes through the symlink" in capsys.readouterr().err


REAL_REFUSALS = [
    (["--recipe", "reference_mdlm"], "data prepare pydoc"),
    (["--recipe", "mdlm", "--gpus-per-node", "1"], "git clone"),
    (["--recipe", "mdlm", "--nodes", "2", "--gpus-per-node", "4"], "one machine"),
    (["--recipe", "mdlm", "--json"], "--json goes with --dry-run"),
]


@pytest.mark.parametrize(("arguments", "message"), REAL_REFUSALS, ids=lambda value: str(value)[:50])
def test_a_real_submission_without_its_inputs_is_refused_and_writes_nothing(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *arguments, "--cluster", "local", "--root", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_teacher_is_refused_and_names_the_way_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dlbhpc.run.inputs as inputs

    monkeypatch.setattr(inputs, "verify_checkout", lambda *_: None)
    entry = tmp_path / "upstreams" / "sdtt" / "src" / "sdtt" / "main.py"
    entry.parent.mkdir(parents=True)
    entry.touch()
    manifest = tmp_path / "data" / "manifests" / "lm1b.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"dataset": "lm1b", "sequence_length": 128}')
    (tmp_path / "data" / "training_cache" / "sdtt" / "lm1b").mkdir(parents=True)
    command = ["submit", "--recipe", "mdlm_sdtt", "--cluster", "local", "--root", str(tmp_path)]
    assert main(command) == 2
    assert "--with-teacher" in capsys.readouterr().err
    assert not (tmp_path / "checkpoints").exists()


def test_without_slurm_a_slurm_profile_is_refused_with_a_way_out(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    command = ["submit", "--recipe", "reference_mdlm", "--cluster", "slurm"]
    assert main([*command, "--root", str(root)]) == 2
    assert "--cluster local" in capsys.readouterr().err
    assert not (root / "checkpoints").exists()


@pytest.mark.parametrize("command", ["logs", "preempt", "cancel", "report"])
def test_a_run_that_is_not_there_is_a_sentence(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "pydoc/reference_mdlm", "--root", str(tmp_path)]) == 2
    assert "there is no run pydoc/reference_mdlm" in capsys.readouterr().err


def test_status_of_an_empty_root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--root", str(tmp_path)]) == 0
    assert "no runs under" in capsys.readouterr().out
    assert main(["status", "--root", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
