"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from dlbhpc.errors import DlbhpcError

_POLL_SECONDS = 0.03


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Return as soon as the condition holds; raise DlbhpcError naming ``what`` after ``seconds``.

    The deadline is for what hangs, so it is generous: a busy machine must not reach it.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DlbhpcError(f"waited {seconds:g} s for {what}, in vain")
        time.sleep(_POLL_SECONDS)
