"""Cluster profiles are read strictly."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.layout import PROFILES
from dlbhpc.scheduler import profile as profiles
from dlbhpc.scheduler.profile import default_profile_name, load_profile

GOOD = "scheduler: slurm\ngrace_seconds: 60\nsave_every_minutes: 5\n"


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_profile_loads(path: Path) -> None:
    assert load_profile(path.stem).name == path.stem


def test_values_that_yaml_reads_as_numbers_reach_sbatch_as_written(tmp_path: Path) -> None:
    values = "time: 12:00:00\nmemory: 0\naccount: 0017\nqos: on\nsbatch_lines: [--x=1]\n"
    (tmp_path / "site.yaml").write_text(GOOD + values)
    profile = load_profile("site", tmp_path)
    assert (profile.time, profile.memory) == ("12:00:00", "0")
    assert (profile.account, profile.qos) == ("0017", "on")
    assert profile.sbatch_lines == ("--x=1",)


def test_an_unknown_profile_names_the_nearest_and_all(tmp_path: Path) -> None:
    (tmp_path / "mysite.yaml").write_text(GOOD)
    with pytest.raises(DlbhpcError, match=r"'mysight'.*did you mean mysite.*choose one of mysite"):
        load_profile("mysight", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "partitions: gpu\n", "unknown key 'partitions'"),
        ("scheduler: slurm\ngrace_seconds: 60\n", "missing key 'save_every_minutes'"),
        (GOOD.replace("slurm", "pbs"), "scheduler is 'pbs', it must be local or slurm"),
        (GOOD.replace("60", "0"), "grace_seconds is 0"),
        (GOOD.replace("60", "-5"), "grace_seconds is -5"),
        (GOOD.replace("60", "soon"), "grace_seconds is 'soon'"),
        (GOOD + "gpus_per_node: true\n", "gpus_per_node is True"),
        (GOOD + "num_workers: -1\n", "num_workers is -1"),
        (GOOD + 'partition: "a\\nb"\n', "control character"),
        (GOOD + "sbatch_lines: --exclude=n1\n", "sbatch_lines is '--exclude=n1'"),
        (GOOD + "sbatch_lines: [rm -rf x]\n", "must be a long option"),
        (GOOD + "sbatch_lines: [--nodes=4]\n", "must not set --nodes"),
        (GOOD + "sbatch_lines: [--comment=x]\n", "must not set --comment"),
        (GOOD + "account: 'a\"b'\n", "holds a quote"),
        ("- a\n", "must hold keys and values"),
        (GOOD + "accelerator: tpu\n", "cuda or cpu"),
        ("a: [\n", "is not valid YAML"),
    ],
)
def test_bad_profiles_are_sentences_that_name_file_and_key(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(DlbhpcError, match=r"site\.yaml") as caught:
        load_profile("site", tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "sbatch", "expected"),
    [
        ("mysite", "/usr/bin/sbatch", "mysite"),
        (None, "/usr/bin/sbatch", "slurm"),
        (None, None, "local"),
        ("", None, "local"),
    ],
)
def test_the_default_profile(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, sbatch: str | None, expected: str
) -> None:
    monkeypatch.delenv(profiles.DEFAULT_VARIABLE, raising=False)
    if chosen is not None:
        monkeypatch.setenv(profiles.DEFAULT_VARIABLE, chosen)
    monkeypatch.setattr(profiles.shutil, "which", lambda name: sbatch)
    assert default_profile_name() == expected
