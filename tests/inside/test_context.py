"""The attempt's file, read by the training process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlbhpc.errors import DlbhpcError
from dlbhpc.inside.context import AttemptContext

CONTENT = {
    "schema_version": 1,
    "attempt": 2,
    "output": "/out",
    "steps_dir": "/out/steps",
    "stop_file": "/out/attempts/00002/stop",
    "progress_file": "/out/attempts/00002/progress.json",
    "events_file": "/out/attempts/00002/events.jsonl",
    "contract": {"seed": 1},
    "nodes": 2,
    "gpus_per_node": 4,
    "total_steps": 240,
    "milestones": [60, 240],
    "milestone_every": None,
    "save_every_seconds": 600,
    "keep_last": 2,
    "export_bf16": True,
    "resumed_from": None,
}


def read(tmp_path, **changes):
    path = tmp_path / "attempt.json"
    path.write_text(json.dumps({**CONTENT, **changes}))
    return AttemptContext.from_file(path)


def test_all_values_are_read_and_unknown_keys_ignored(tmp_path):
    context = read(tmp_path, later="unknown")
    assert context.steps_dir == Path("/out/steps")
    assert context.world == 8
    assert context.save_every_seconds == 600.0
    assert context.resumed_from is None


def test_milestones_are_the_listed_steps_and_the_multiples(tmp_path):
    listed = read(tmp_path)
    assert [s for s in range(1, 241) if listed.is_milestone(s)] == [60, 240]
    every = read(tmp_path, milestones=None, milestone_every=100)
    assert [s for s in range(1, 241) if every.is_milestone(s)] == [100, 200]


WRONG = {
    "output steps_dir stop_file progress_file events_file": [1, None, []],
    "attempt nodes gpus_per_node total_steps keep_last": [0, -1, True, 1.5, None],
    "milestone_every resumed_from": [0, True, "1"],
    "contract": ["text", [], None],
    "milestones": ["text", {}, [1.5], 5],
    "save_every_seconds": ["1", True, None],
    "export_bf16": [1, "true", None],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for names, values in WRONG.items()
        for name in names.split()
        for value in values
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(tmp_path, name, value):
    with pytest.raises(DlbhpcError, match=name):
        read(tmp_path, **{name: value})


def test_a_missing_key_is_refused_by_name(tmp_path):
    path = tmp_path / "attempt.json"
    path.write_text(json.dumps({k: v for k, v in CONTENT.items() if k != "total_steps"}))
    with pytest.raises(DlbhpcError, match="total_steps"):
        AttemptContext.from_file(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_torn_file_is_refused_by_path(tmp_path, text):
    path = tmp_path / "attempt.json"
    path.write_text(text)
    with pytest.raises(DlbhpcError, match=r"attempt\.json"):
        AttemptContext.from_file(path)


def test_the_environment_names_the_file(tmp_path, monkeypatch):
    read(tmp_path)
    monkeypatch.setenv("DLBHPC_ATTEMPT_FILE", str(tmp_path / "attempt.json"))
    assert AttemptContext.from_environment().attempt == 2
    monkeypatch.delenv("DLBHPC_ATTEMPT_FILE")
    with pytest.raises(DlbhpcError, match="DLBHPC_ATTEMPT_FILE"):
        AttemptContext.from_environment()
