"""The pinned duo through its adapters."""

from __future__ import annotations

from collections.abc import Callable

from tests.project import Project, identical
from tests.upstreams.conftest import finish, log, tail


def interrupt_twice(run: Project, sizes: str, first: int, second: int) -> None:
    """Preempt in attempt 1, kill attempt 2, and finish with attempt 3."""
    run.start(sizes=sizes)
    run.freeze_at(attempt=1, step=first)
    assert run.dlbhpc("preempt", str(run.output.folder)).returncode == 0
    run.freeze_at(attempt=2, step=second)
    run.kill_everything()
    finish(run, sizes=sizes)
    report = run.report()
    assert [attempt["end"] for attempt in report["attempts"]] == ["preempted", "interrupted", "completed"]
    assert report["attempts"][1]["from_step"] == report["attempts"][0]["to_step"], tail(run)
    assert report["attempts"][2]["from_step"] == report["attempts"][1]["to_step"], tail(run)


def test_preempted_and_killed_it_ends_with_the_same_bits(new_run: Callable[..., Project]) -> None:
    sizes = "steps=16,milestone=3"
    straight = new_run("duo", "duo")
    finish(straight, sizes=sizes)
    cache = straight.root / "data" / "trials" / "training_cache" / "duo" / "lm1b"
    assert f"Loading data from: {cache / 'lm1b_train_bs32_wrapped.dat'}" in log(straight)
    run = new_run("duo", "duo")
    interrupt_twice(run, sizes, 4, 9)
    assert identical(run.state(), straight.state())
