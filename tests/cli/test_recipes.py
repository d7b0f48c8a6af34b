"""``dlbhpc recipes`` and ``recipes show``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dlbhpc.cli.main import main
from dlbhpc.layout import CHECKOUT
from dlbhpc.recipe import Recipe, load_recipe


def test_every_recipe_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert main(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert len(listed) == 11
    assert [line.split()[0] for line in table[1:]] == [entry["name"] for entry in listed]
    assert {e["name"]: e["teacher"] for e in listed}["mdlm_sdtt"] == "mdlm"


def test_show_gives_numbers_evidence_departures_and_disclosures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipes", "show", "duo", "--dataset", "owt"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "1,000,000",
        "official release script",
        "7c9b498f5b717de064d6fad7e2509c866e6cb620",
        "algo.curriculum.integral_cache_path",
        "The upstream derives this file's name from the tokenizer's name",
        "gamma from -3.55 to -1.85",
    ):
        assert part in shown


def test_show_says_what_is_recorded_limited_and_unverified(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["recipes", "show", "fmlm"])
    shown = capsys.readouterr().out
    assert "runs 1,000,000 steps, recorded, not used" in shown
    assert "unverified" in shown
    main(["recipes", "show", "mdlm_sdtt"])
    assert "only checked against sdtt at 9172b86500126d4ca93bd5e204395c5062fdc7fd" in (
        capsys.readouterr().out
    )
    main(["recipes", "show", "mdlm"])
    assert "unverified" not in capsys.readouterr().out
    main(["recipes", "show", "mdlm_di4c"])
    assert "its consistency loss compares the time of a single sample" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recipe", "exact", "anew"),
    [
        ("mdlm", "position in the data", "nothing"),
        ("mdlm_sdtt", "teacher and step of time of the round", "nothing"),
        ("duo_dcd", "teacher of the round", "nothing"),
        ("duo_di4c", "position in the data", "nothing"),
        ("rdlm", "weights, optimizer, EMA, step", "random states"),
    ],
)
def test_show_says_what_comes_back_when_a_run_resumes(
    capsys: pytest.CaptureFixture[str], recipe: str, exact: str, anew: str
) -> None:
    assert main(["recipes", "show", recipe]) == 0
    shown = capsys.readouterr().out.splitlines()
    lines = {line[2:28].strip(): line[28:] for line in shown}
    assert exact in lines["resumed exactly"]
    assert anew in lines["begun anew"]


@pytest.mark.parametrize(
    "argv", [["recipes", "show", "flm", "--json"], ["recipes", "--json", "show", "flm"]]
)
def test_show_as_json_is_the_whole_recipe(
    capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert main(argv) == 0
    assert Recipe.from_json(json.loads(capsys.readouterr().out)) == load_recipe("flm")


def test_an_unknown_recipe_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "mdml"]) == 2
    assert "ERROR: unknown recipe 'mdml': did you mean mdlm" in capsys.readouterr().err


def test_neither_imports_anything_heavy() -> None:
    code = (
        "import sys; from dlbhpc.cli.main import main; main(['recipes']);"
        "main(['recipes', 'show', 'duo']); main(['plan', '--recipe', 'duo']);"
        "main(['recipes', 'check']);"
        "heavy = {'hydra', 'omegaconf', 'torch', 'lightning', 'datasets', 'submitit', 'jinja2'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
