"""The latch notes the first request and nothing else."""

from __future__ import annotations

import signal
import threading

import pytest

from dlbhpc.inside.latch import StopLatch


@pytest.fixture
def latch():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    latch = StopLatch()
    latch.install()
    yield latch
    for number, handler in before.items():
        signal.signal(number, handler)


def test_nothing_is_requested_at_first(latch):
    assert latch.is_installed()
    assert latch.requested() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_is_remembered_by_name(latch, number):
    signal.raise_signal(number)
    assert latch.requested() == signal.Signals(number).name


def test_the_first_signal_counts_and_the_second_changes_nothing(latch):
    signal.raise_signal(signal.SIGUSR2)
    signal.raise_signal(signal.SIGTERM)
    assert latch.requested() == "SIGUSR2"
    assert latch.signals == 2


def test_a_taken_handler_is_noticed_and_taken_back(latch):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert not latch.is_installed()
    latch.install()
    assert latch.is_installed()


def test_restore_gives_back_what_was_there_before():
    def mine(number, frame):
        pass

    before = signal.signal(signal.SIGUSR2, mine)
    try:
        latch = StopLatch()
        latch.install()
        latch.install()
        latch.restore()
        assert signal.getsignal(signal.SIGUSR2) is mine
        assert not latch.is_installed()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_restore_leaves_a_handler_that_another_installed_since(latch):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    latch.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_installing_outside_the_main_thread_is_refused():
    caught = []

    def install():
        try:
            StopLatch().install()
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in caught[0]


def test_the_stop_file_is_looked_for_at_most_once_an_interval(tmp_path):
    now = [0.0]
    latch = StopLatch(tmp_path / "stop", interval=1.0, clock=lambda: now[0])
    assert latch.requested() is None
    (tmp_path / "stop").touch()
    now[0] = 0.9
    assert latch.requested() is None
    now[0] = 1.0
    assert latch.requested() == "file"
    (tmp_path / "stop").unlink()
    assert latch.requested() == "file"


def test_a_folder_that_cannot_be_read_is_no_request(tmp_path):
    assert StopLatch(tmp_path / "gone" / "stop").requested() is None
