"""A dev cluster refuses what cannot work, in a sentence that says what to do."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from dlbhpc.errors import DlbhpcError
from slurm.devcluster import daemons, place
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.config import ClusterConfig
from slurm.devcluster.place import Place, check_folder, choose_block, write_files
from slurm.devcluster.wait import wait_until


def test_missing_programs_are_named_with_their_debian_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(daemons, "_PATH", str(tmp_path))
    unmet = daemons.unmet_requirement(ClusterConfig(accounting=True))
    assert unmet is not None
    assert "slurmctld, slurmd" in unmet
    assert "apt-get install --no-install-recommends slurm-wlm munge" in unmet
    assert "slurmdbd mariadb-server-core" in unmet
    assert "mariadb" not in str(daemons.unmet_requirement(ClusterConfig()))
    with pytest.raises(DlbhpcError, match="slurm-wlm"):
        Cluster.start(tmp_path / "cluster")
    assert not (tmp_path / "cluster").exists()


def test_other_users_than_root_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root only" in str(daemons.unmet_requirement(ClusterConfig()))


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("/tmp/" + "x" * 70, "too long"),
        ("/tmp/a b", "cannot stand in a slurm.conf"),
        ("/tmp/a#b", "cannot stand in a slurm.conf"),
        ("/tmp/a\nb", "cannot stand in a slurm.conf"),
        ("/etc/hosts", "not a folder"),
    ],
)
def test_folder_that_cannot_hold_a_cluster_is_refused(folder: str, reason: str) -> None:
    with pytest.raises(DlbhpcError, match=reason):
        check_folder(Path(folder))


@pytest.mark.parametrize("setting", [{"nodes": 0}, {"nodes": 61}, {"gpus_per_node": 0}])
def test_impossible_sizes_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(DlbhpcError):
        ClusterConfig(**setting)


def test_folder_without_a_cluster_has_none_to_load(tmp_path: Path) -> None:
    with pytest.raises(DlbhpcError, match="no dev cluster was started"):
        Cluster.load(tmp_path)


def test_block_with_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(place, "_FIRST_PORT", taken.getsockname()[1] - 3)
        monkeypatch.setattr(place, "_LAST_PORT", 65_535)
        assert choose_block() > 0


def test_clusters_share_neither_ports_nor_job_ids(tmp_path: Path) -> None:
    first, second = (Place(tmp_path, "dev", block) for block in (0, 1))
    assert first.node_port(60) < second.controller_port
    assert first.controller_port < first.database_port < first.node_port(1)
    assert first.first_job_id < second.first_job_id


def test_configuration_names_one_device_for_each_gpu(tmp_path: Path) -> None:
    home = Place(tmp_path / "c", "dev", 0)
    write_files(home, ClusterConfig(nodes=2, gpus_per_node=3))
    assert [p.name for p in sorted((home.folder / "devices").iterdir())] == [
        "gpu0",
        "gpu1",
        "gpu2",
    ]
    assert (home.folder / "gres.conf").read_text().endswith("/devices/gpu[0-2]\n")
    nodes = [line for line in home.slurm_conf.read_text().splitlines() if "NodeName" in line]
    assert [line.split()[0] for line in nodes] == ["NodeName=n1", "NodeName=n2"]
    assert all("Gres=gpu:3" in line for line in nodes)
    assert not (home.folder / "slurmdbd.conf").exists()


def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(DlbhpcError, match="for the moon, in vain"):
        wait_until(lambda: False, "the moon", seconds=0)
