"""`dlbhpc profiles`, and the flags that go over a profile's values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.cli.main import main

SITE = "defaults: [slurm]\npartition: gpu\ngpus_per_node: 4\nmax_nodes: 2\n"


@pytest.fixture
def site(root: Path) -> Path:
    """A project root with a profile of its own, `site`."""
    path = root / "slurm" / "profiles" / "site.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(SITE)
    return root


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(word) for word in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_every_profile_is_listed_with_its_file(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLBHPC_CLUSTER", "site")
    (site / "slurm/profiles/torn.yaml").write_text("scheduler: [\n")
    status, out, _ = call(capsys, "profiles", "--root", site)
    assert status == 0
    assert f"site        slurm    {site}/slurm/profiles/site.yaml" in out
    assert "torn        damaged  cluster profile" in out
    assert "without --cluster: site" in out
    _, listed, _ = call(capsys, "profiles", "--root", site, "--json")
    rows = {row["name"]: row for row in json.loads(listed)["profiles"]}
    assert set(rows) == {"devcluster", "local", "site", "slurm", "torn"}
    assert rows["site"]["default"] is True
    assert rows["torn"]["scheduler"] is None


def test_show_says_where_each_value_stands(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "profiles", "--root", site, "show", "site")
    assert status == 0
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert lines["partition"].split() == ["partition", "gpu"]
    assert lines["time"].endswith("/slurm/profiles/slurm.yaml)")
    _, shown, _ = call(capsys, "profiles", "show", "site", "--root", site, "--json")
    values = json.loads(shown)["values"]
    assert values["partition"] == {"value": "gpu", "file": f"{site}/slurm/profiles/site.yaml"}


def test_show_refuses_a_damaged_profile(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "slurm/profiles/site.yaml").write_text(SITE + "time: soon\n")
    status, _, err = call(capsys, "profiles", "show", "site", "--root", site)
    assert (status, err.count("\n")) == (2, 1)
    assert "site.yaml: time is wrong: 'soon' is no time" in err


def submit(
    site: Path, capsys: pytest.CaptureFixture[str], *flags: str
) -> tuple[int, list[str], str]:
    """Exit status, the script's options and the error of a dry run on one node of four GPUs."""
    shape = ["--recipe", "mdlm", "--nodes", "1", "--gpus-per-node", "4", "--cluster", "site"]
    status, out, err = call(capsys, "submit", *shape, "--root", site, "--dry-run", "--json", *flags)
    shown: dict[str, Any] = json.loads(out) if status == 0 else {"sbatch": ""}
    options = [line[8:] for line in shown["sbatch"].splitlines() if line.startswith("#SBATCH ")]
    return status, options, err


def test_each_flag_goes_over_the_profile(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {
        "--partition": "other",
        "--account": "a b",
        "--qos": "low",
        "--time": "1-12",
        "--memory": "64G",
        "--constraint": "x&y",
        "--gpu-type": "h100",
        "--cpus-per-task": "3",
        "--grace-seconds": "90",
    }
    words = [word for flag in flags.items() for word in flag]
    status, options, err = submit(
        site, capsys, *words, "--sbatch-line=--exclude=n1", "--sbatch-line=--nice=5"
    )
    assert status == 0, err
    assert {
        "--partition=other", '--account="a b"', "--qos=low", "--time=1-12", "--mem=64G",
        '--constraint="x&y"', "--gpus-per-node=h100:4", "--cpus-per-task=3",
        "--signal=B:USR2@90", "--exclude=n1", "--nice=5",
    } <= set(options)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--time", "soon"), "ERROR: --time is wrong: 'soon' is no time"),
        (("--time", "1"), "ERROR: --time is 1: a limit of 00:01:00 leaves no time"),
        (("--sbatch-line=--nodes=3",), "ERROR: --sbatch-line must not set --nodes"),
        (("--partition", "a\nb"), "ERROR: --partition is 'a\\nb'"),
    ],
)
def test_a_bad_flag_is_one_sentence(
    site: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    status, _, err = submit(site, capsys, *flags)
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(message)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("--nodes", "1", "--gpus-per-node", "8"), "nodes of the profile site have 4"),
        (
            ("--nodes", "4", "--per-device-batch-size", "32"),
            "wants 4 nodes, the profile site allows 2",
        ),
    ],
)
def test_a_run_that_the_nodes_cannot_hold_is_refused(
    site: Path, capsys: pytest.CaptureFixture[str], shape: tuple[str, ...], message: str
) -> None:
    status, _, err = submit(site, capsys, *shape)
    assert status == 2
    assert message in err
