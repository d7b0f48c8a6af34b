"""One output folder has one live job."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.run.lease import Lease, LeaseHeld, acquire, read_lease, rewrite


def lease_of(job_id: str) -> Lease:
    return Lease.new("local", job_id, pid=1, pid_started="boot/1")


def everyone_lives(lease: Lease) -> bool:
    return True


def nobody_lives(lease: Lease) -> bool:
    return False


def test_a_free_run_is_taken(tmp_path: Path) -> None:
    lease = lease_of("41")
    assert acquire(tmp_path / "lease.json", lease, everyone_lives) is None
    assert read_lease(tmp_path / "lease.json") == lease
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]


def test_a_second_submission_is_refused_and_names_job_and_host(tmp_path: Path) -> None:
    first = lease_of("41")
    acquire(tmp_path / "lease.json", first, everyone_lives)
    with pytest.raises(LeaseHeld, match=rf"job 41 on {first.host}, which is still alive"):
        acquire(tmp_path / "lease.json", lease_of("42"), everyone_lives)
    assert read_lease(tmp_path / "lease.json") == first


def test_the_lease_of_a_dead_job_is_taken_over_and_told(tmp_path: Path) -> None:
    dead, new = lease_of("41"), lease_of("42")
    acquire(tmp_path / "lease.json", dead, nobody_lives)
    assert acquire(tmp_path / "lease.json", new, nobody_lives) == dead
    assert read_lease(tmp_path / "lease.json") == new
    assert [path.name for path in tmp_path.iterdir()] == ["lease.json"]


def test_a_takeover_that_comes_late_leaves_the_live_lease_alone(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    dead, live, late = lease_of("41"), lease_of("42"), lease_of("43")
    acquire(path, dead, nobody_lives)
    swapped = False

    def another_takes_over_meanwhile(lease: Lease) -> bool:
        nonlocal swapped
        if not swapped:
            swapped = True
            path.unlink()
            acquire(path, live, everyone_lives)
            return False
        return lease == live

    with pytest.raises(LeaseHeld, match="job 42"):
        acquire(path, late, another_takes_over_meanwhile)
    assert read_lease(path) == live
    assert [entry.name for entry in tmp_path.iterdir()] == ["lease.json"]


def test_who_died_while_it_took_over_is_taken_over_itself(tmp_path: Path) -> None:
    """Between its link and its turn: what it left keeps nobody out for ever."""
    path = tmp_path / "lease.json"
    dead, died, new = lease_of("41"), lease_of("42"), lease_of("43")
    acquire(path, dead, nobody_lives)
    (tmp_path / f".lease.json.after-{dead.token}").write_text(json.dumps(asdict(died)))
    with pytest.raises(LeaseHeld, match="job 42"):
        acquire(path, new, lambda held: held == died)
    assert acquire(path, new, nobody_lives) == dead
    assert read_lease(path) == new
    assert [entry.name for entry in tmp_path.iterdir()] == ["lease.json"]


def _compete(path: Path, job_id: str, start: object, results: object) -> None:
    lease = lease_of(job_id)
    start.wait()  # type: ignore[attr-defined]
    try:
        acquire(path, lease, lambda held: held.job_id != "dead")
        results.put(job_id)  # type: ignore[attr-defined]
    except LeaseHeld:
        results.put(None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("round_", range(5))
def test_of_many_that_start_at_once_exactly_one_gets_the_run(tmp_path: Path, round_: int) -> None:
    path = tmp_path / "lease.json"
    acquire(path, lease_of("dead"), nobody_lives)
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(6), context.Queue()
    racers = [
        context.Process(target=_compete, args=(path, str(job), start, results)) for job in range(6)
    ]
    for racer in racers:
        racer.start()
    winners = [winner for _ in racers if (winner := results.get(timeout=30)) is not None]
    for racer in racers:
        racer.join()
    held = read_lease(path)
    assert held is not None
    assert winners == [held.job_id]


def test_the_job_puts_its_own_name_in(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    submitter = lease_of("")
    acquire(path, submitter, everyone_lives)
    job = Lease.new("local", "99", pid=2, pid_started="boot/2", token=submitter.token)
    rewrite(path, job)
    assert read_lease(path) == job


def test_a_job_whose_run_was_taken_over_does_not_take_it_back(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    acquire(path, lease_of("42"), everyone_lives)
    with pytest.raises(LeaseHeld, match="job 42"):
        rewrite(path, lease_of("41"))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"token": "x"})])
def test_a_torn_lease_is_a_sentence_that_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lease.json"
    path.write_text(text)
    with pytest.raises(DlbhpcError, match=r"lease\.json"):
        read_lease(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"token": 5}', "wrong kinds"], ids=lambda text: text or "empty"
)
def test_a_damaged_lease_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lease.json"
    acquire(path, lease_of("41"), nobody_lives)
    wrong = dict.fromkeys(json.loads(path.read_text()))
    path.write_text(json.dumps(wrong) if text == "wrong kinds" else text)
    with pytest.raises(DlbhpcError, match=rf"{path}.* remove it"):
        read_lease(path)
