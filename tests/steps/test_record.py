from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlbhpc.steps import (
    COMPLETE,
    InvalidStep,
    OtherContract,
    StepError,
    StepRecord,
    StorageError,
    find_newest,
    read_record,
    recover,
    step_name,
    verify,
)
from dlbhpc.steps.names import step_of
from dlbhpc.steps.record import match, parse_record

Publish = Callable[..., StepRecord]

counts = st.integers(1, 2**63 - 1)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=5)


@st.composite
def records(draw: st.DrawFn) -> StepRecord:
    export = draw(st.booleans())
    return StepRecord(
        step=draw(st.integers(1, 99_999_999)),
        contract=draw(objects),
        world=draw(counts),
        state_bytes=draw(counts),
        state_sha256=draw(digests),
        export_bytes=draw(counts) if export else None,
        export_sha256=draw(digests) if export else None,
        attempt=draw(st.none() | counts),
        time=draw(st.none() | st.text(max_size=30)),
        extra=draw(objects),
    )


@settings(deadline=None)
@given(records())
def test_a_record_reads_back_as_it_was(record: StepRecord) -> None:
    assert parse_record(record.to_bytes(), "here") == record


@settings(deadline=None)
@given(st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
def test_any_document_is_a_record_or_a_step_error(data: bytes) -> None:
    with pytest.raises(StepError, match=r"^here: "):
        parse_record(data, "here")


@settings(deadline=None)
@given(records(), st.data())
def test_any_value_in_any_place_is_taken_as_it_is_or_refused(
    record: StepRecord, data: st.DataObject
) -> None:
    document = record.to_json()
    key = data.draw(st.sampled_from(sorted(document)))
    document[key] = data.draw(values)
    try:
        parsed = parse_record(json.dumps(document).encode(), "here")
    except StepError as error:
        assert key in str(error) or key.split("_")[0] in str(error)
        return
    held = getattr(parsed, key) if key != "schema_version" else 1
    # Absent and null are one; of the time nothing is asked.
    assert held == document[key] or (key == "time" and held is None)
    assert type(held) is type(document[key]) or key == "time"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", True),
        ("step", 0),
        ("step", 42.0),
        ("step", "42"),
        ("step", 100_000_000),
        ("world", 0),
        ("world", None),
        ("state_bytes", 0),
        ("state_bytes", -1),
        ("state_bytes", 2**63),
        ("state_sha256", "A" * 64),
        ("state_sha256", "a" * 63),
        ("state_sha256", "a" * 64 + "\n"),
        ("state_sha256", ["a"] * 64),
        ("export_bytes", None),
        ("export_sha256", None),
        ("export_bytes", 0),
        ("contract", None),
        ("contract", []),
        ("attempt", 0),
        ("attempt", "2"),
        ("schema_version", 0),
        ("schema_version", "1"),
        ("schema_version", True),
        ("extra", []),
    ],
)
def test_a_wrong_value_is_named(key: str, value: object) -> None:
    document = StepRecord(
        42, {}, 2, 10, "a" * 64, export_bytes=10, export_sha256="b" * 64, attempt=1
    ).to_json()
    document[key] = value
    with pytest.raises(InvalidStep, match=rf"^here: {key}: expected .* found "):
        parse_record(json.dumps(document).encode(), "here")


@pytest.mark.parametrize("key", ["step", "contract", "world", "state_bytes", "state_sha256"])
def test_a_missing_key_is_named(key: str) -> None:
    document = StepRecord(42, {}, 2, 10, "a" * 64).to_json()
    del document[key]
    with pytest.raises(InvalidStep, match=rf"^here: {key}: expected .* found nothing"):
        parse_record(json.dumps(document).encode(), "here")


def test_unknown_keys_and_a_strange_time_are_ignored() -> None:
    document = StepRecord(42, {"seed": 1}, 2, 10, "a" * 64).to_json()
    document |= {"files": [1], "colour": "blue", "time": 12.5}
    del document["schema_version"]
    parsed = parse_record(json.dumps(document).encode(), "here")
    assert parsed == StepRecord(42, {"seed": 1}, 2, 10, "a" * 64)


def test_a_newer_format_is_not_called_torn() -> None:
    document = StepRecord(42, {}, 2, 10, "a" * 64).to_json() | {"schema_version": 2}
    with pytest.raises(StepError, match="newer than this program") as caught:
        parse_record(json.dumps(document).encode(), "here")
    assert not isinstance(caught.value, InvalidStep)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"step": ' + "9" * 5000 + "}",
        '{"step": NaN}',
        '{"a": ' * 100_000,
        '"' + "x" * (1 << 20) + '"',
        "\ufeff{}",
    ],
    ids=str,
)
def test_hostile_documents(text: str) -> None:
    with pytest.raises(InvalidStep, match=r"^here: "):
        parse_record(text.encode(), "here")


@pytest.mark.parametrize(
    "contract",
    [{"seed": float("nan")}, {"seed": (1, 2)}, {1: 2}, {"seed": 10**30}, {"seed": b"x"}],
    ids=str,
)
def test_what_json_cannot_give_back_is_refused_before_it_is_written(contract: Any) -> None:
    with pytest.raises(StepError, match=r"the record of step 42|seed"):
        StepRecord(42, contract, 2, 10, "a" * 64).to_bytes()


def test_a_document_nested_beyond_reason_is_refused() -> None:
    document = StepRecord(42, {}, 2, 10, "a" * 64).to_json()
    deep = json.dumps(document)[:-1] + ', "x": ' + "[" * 40 + "]" * 40 + "}"
    with pytest.raises(InvalidStep, match="nested deeper than 32"):
        parse_record(deep.encode(), "here")


def test_a_record_too_long_to_be_read_is_refused_before_it_is_written() -> None:
    with pytest.raises(StepError, match="at most 1048576 can be read"):
        StepRecord(42, {"plan": "x" * (1 << 20)}, 2, 10, "a" * 64).to_bytes()


def test_contract_and_world_must_match_when_asked_for() -> None:
    record = StepRecord(42, {"seed": 1, "world": 2}, 2, 10, "a" * 64)
    folder = Path("steps/step-00000042")
    match(folder, record, None, None)
    match(folder, record, {"world": 2, "seed": 1}, 2)
    with pytest.raises(
        OtherContract, match=r"step-00000042/COMPLETE.json: world differs: expected 4, found 2"
    ):
        match(folder, record, None, 4)
    with pytest.raises(OtherContract, match="differs in 'seed': expected 2, found 1"):
        match(folder, record, {"world": 2, "seed": 2}, 2)
    with pytest.raises(OtherContract, match="differs in 'seed': expected true, found 1"):
        match(folder, record, {"world": 2, "seed": True}, 2)
    with pytest.raises(OtherContract, match="differs in 'seed': expected nothing, found 1"):
        match(folder, record, {"world": 2}, 2)
    with pytest.raises(OtherContract, match="differs in 'plan': expected \"x\", found nothing"):
        match(folder, record, {"world": 2, "seed": 1, "plan": "x"}, 2)


def test_only_eight_digits_name_a_step() -> None:
    assert step_of(step_name(42)) == 42
    for name in (
        "step-42",
        "step-000000042",
        "step-0000004²",
        "step-00000042.bak",
        "Step-00000042",
    ):
        assert step_of(name) is None
    assert step_of("step-٠٠٠٠٠٠٤٢") is None


def test_the_name_must_agree(steps_dir: Path, publish: Publish) -> None:
    publish(steps_dir, 42)
    (steps_dir / step_name(42)).rename(steps_dir / step_name(43))
    with pytest.raises(InvalidStep, match=r"step differs: expected the step-00000043 .* found 42"):
        read_record(steps_dir / step_name(43))


@pytest.mark.parametrize("name", ["training_state.pt", "model_bf16.pt"])
def test_cut_flipped_and_grown_files_are_named(
    steps_dir: Path, publish: Publish, name: str
) -> None:
    record = publish(steps_dir, 42)
    folder = steps_dir / step_name(42)
    whole = (folder / name).read_bytes()
    verify(folder, record, content=True)

    (folder / name).write_bytes(whole[:-1])
    with pytest.raises(InvalidStep, match=rf"{name}: size differs: expected {len(whole)} bytes, "):
        verify(folder, record)
    (folder / name).write_bytes(whole + b"x")
    with pytest.raises(InvalidStep, match=rf"{name}: size differs: .* found {len(whole) + 1} "):
        verify(folder, record)
    (folder / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    verify(folder, record)
    with pytest.raises(InvalidStep, match=rf"{name}: sha256 differs: expected [0-9a-f]{{64}}, "):
        verify(folder, record, content=True)
    (folder / name).unlink()
    with pytest.raises(InvalidStep, match=rf"{name}: expected a regular file, found none"):
        verify(folder, record)


def test_links_pipes_and_folders_are_no_files(steps_dir: Path, publish: Publish) -> None:
    record = publish(steps_dir, 42)
    folder = steps_dir / step_name(42)
    state = folder / "training_state.pt"
    elsewhere = folder / "elsewhere"
    state.rename(elsewhere)
    state.symlink_to(elsewhere)
    with pytest.raises(InvalidStep, match="expected a regular file"):
        verify(folder, record)
    state.unlink()
    os.mkfifo(state)
    with pytest.raises(InvalidStep, match="expected a regular file"):
        verify(folder, record)
    state.unlink()
    state.mkdir()
    with pytest.raises(InvalidStep, match="expected a regular file"):
        verify(folder, record)


def test_what_cannot_be_read_is_not_called_torn(
    steps_dir: Path, publish: Publish, system: Callable[..., Any]
) -> None:
    record = publish(steps_dir, 42)
    folder = steps_dir / step_name(42)
    for work in (lambda: read_record(folder), lambda: verify(folder, record, content=True)):
        stand_in, _ = system(work)
        at = stand_in.log.index("open")
        _, result = system(work, at, fail=5)
        assert isinstance(result, StorageError)
        assert "EIO" in str(result)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200
)
@given(data=st.data())
def test_a_mutated_step_is_passed_over_or_unchanged_in_meaning(
    tmp_path: Path, publish: Publish, contract: dict[str, Any], data: st.DataObject
) -> None:
    steps_dir = tmp_path / "steps"
    if not steps_dir.exists():
        steps_dir.mkdir()
        publish(steps_dir, 10)
        publish(steps_dir, 20)
    old, new = (read_record(steps_dir / step_name(step)) for step in (10, 20))
    name = data.draw(st.sampled_from([COMPLETE, "training_state.pt", "model_bf16.pt"]))
    path = steps_dir / step_name(20) / name
    whole = path.read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    torn = whole[:start] + data.draw(st.binary(max_size=3)) + whole[end:]
    path.write_bytes(torn)
    try:
        found = find_newest(steps_dir, contract=contract, world=2)
    finally:
        path.write_bytes(whole)
    if found.record != old:
        assert found.record is not None
        assert torn == whole or name == COMPLETE
        for key in ("step", "contract", "world", "state_bytes", "state_sha256"):
            assert getattr(found.record, key) == getattr(new, key)
    else:
        (skipped,) = found.skipped
        assert skipped.name == step_name(20)
        assert name in skipped.reason


def test_content_is_not_read_unless_asked(steps_dir: Path, publish: Publish) -> None:
    publish(steps_dir, 10)
    publish(steps_dir, 20)
    (steps_dir / step_name(20) / "training_state.pt").write_bytes(b"STATE of 20")
    assert find_newest(steps_dir, check_content=False).record == read_record(
        steps_dir / step_name(20)
    )
    recovery = recover(steps_dir)
    assert recovery.record is not None
    assert recovery.record.step == 10
