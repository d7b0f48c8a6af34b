"""``dlbhpc plan``."""

from __future__ import annotations

import json

import pytest

from dlbhpc.cli.main import main


def test_plan_lists_exact_geometries_best_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--recipe", "duo", "--dataset", "owt", "--max-nodes", "4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["recipe"], shown["dataset"], shown["global_batch"]) == ("duo", "owt", 512)
    keys = ("accumulation", "nodes", "gpus_per_node", "per_device_batch")
    rows = [tuple(geometry[key] for key in keys) for geometry in shown["geometries"]]
    assert rows == sorted(rows)
    assert rows[0] == (1, 4, 8, 16)
    assert all(a * n * g * b == 512 and n <= 4 and b <= 16 for a, n, g, b in rows)


def test_plan_bounds_what_the_recipe_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--recipe", "rdlm", "--max-nodes", "4", "--json"]) == 0
    assert {g["nodes"] for g in json.loads(capsys.readouterr().out)["geometries"]} == {1}
    argv = ["plan", "--recipe", "duo_di4c", "--max-per-device-batch", "2", "--json"]
    assert main(argv) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {g["per_device_batch"] for g in shown["geometries"]} == {1}


def test_plan_marks_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--recipe", "flm"]) == 0
    marked = [line for line in capsys.readouterr().out.splitlines() if "(default)" in line]
    assert [line.split()[:4] for line in marked] == [["1", "8", "64", "1"]]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--recipe", "flm", "--gpus-per-node", "3"], "no exact geometry reaches"),
        (["--recipe", "flm", "--gpus-per-node", "0"], "GPUs per node is 0"),
        (["--recipe", "flm", "--max-nodes", "-1"], "number of nodes is -1"),
        (["--recipe", "flm", "--max-per-device-batch", "0"], "per-device batch is 0"),
        (["--recipe", "flmm"], "did you mean"),
    ],
)
def test_bad_input_is_a_sentence(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert main(["plan", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ERROR: ")
    assert message in error
