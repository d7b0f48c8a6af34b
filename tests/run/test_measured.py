"""What the saves of earlier runs tell."""

from __future__ import annotations

import json
from pathlib import Path

from dlbhpc.layout import OutputLayout
from dlbhpc.run.measured import Saves, worst_saves


def told(output: OutputLayout, attempt: int, *saves: tuple[float, int]) -> None:
    folder = output.attempt(attempt)
    folder.mkdir(parents=True)
    events = [{"event": "saved", "seconds": seconds, "bytes": size} for seconds, size in saves]
    events.append({"event": "saved", "seconds": "x", "bytes": None})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_nothing_was_saved_yet(tmp_path: Path) -> None:
    told(OutputLayout(tmp_path), 1)
    assert worst_saves([OutputLayout(tmp_path), OutputLayout(tmp_path / "none")]) is None


def test_the_longest_of_the_newest_saves_of_each_run(tmp_path: Path) -> None:
    one, other = OutputLayout(tmp_path / "one"), OutputLayout(tmp_path / "other")
    told(one, 1, (99.0, 99))
    told(one, 2, (88.0, 88), *[(2.0, 20)] * 19, (3.0, 10))
    told(one, 3)
    told(other, 1, (1.0, 30))
    assert worst_saves([one, other]) == Saves(3.0, 30)
