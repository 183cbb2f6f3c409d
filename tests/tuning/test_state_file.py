# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_gpu_watch.knobs import Knobs
from keras_gpu_watch.tuning import dump_state, load_state
from keras_gpu_watch.tuning.state_file import MAX_SHAPES

KNOBS = Knobs(parallel_calls={2: 32, 5: -1}, buffer_sizes={-1: 4}, private_threadpool_size=34)


def test_settings_come_back_as_they_were_written() -> None:
    for knobs in (KNOBS, Knobs()):
        assert load_state(dump_state(None, "abc", knobs), "abc") == (knobs, None)


def test_those_of_other_pipelines_are_kept_and_the_oldest_make_room() -> None:
    text = None
    for number in range(MAX_SHAPES + 1):
        text = dump_state(text, f"shape {number}", Knobs(parallel_calls={0: number + 1}))
    assert text is not None
    assert load_state(text, "shape 0")[0] is None
    assert load_state(text, "shape 1")[0] == Knobs(parallel_calls={0: 2})
    # The one that is written again is the newest.
    text = dump_state(dump_state(text, "shape 1", KNOBS), "one more", KNOBS)
    assert load_state(text, "shape 1")[0] == KNOBS
    assert load_state(text, "shape 2")[0] is None


def test_another_pipelines_settings_are_not_taken() -> None:
    knobs, message = load_state(dump_state(None, "abc", KNOBS), "abd")
    assert knobs is None
    assert message == "they are of another pipeline, or this one has changed"


def _with(**fields: Any) -> str:
    good: dict[str, Any] = {"parallel_calls": {}, "buffer_sizes": {}, "private_threadpool_size": None}
    return json.dumps({"schema_version": 1, "pipelines": {"abc": {**good, **fields}}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("x" * 2_000_000, "letters"),
        ("[]", "version 1"),
        ('{"schema_version": 2, "pipelines": {}}', "version 1"),
        ('{"schema_version": 1, "pipelines": []}', "`pipelines`"),
        ('{"schema_version": 1, "pipelines": {"abc": 3}}', "settings"),
        (_with(parallel_calls=[1]), "`parallel_calls`"),
        (_with(parallel_calls={"2": 0}), "`parallel_calls`"),
        (_with(parallel_calls={"2": 10_001}), "`parallel_calls`"),
        (_with(parallel_calls={"2": True}), "`parallel_calls`"),
        (_with(parallel_calls={"2": 1.5}), "`parallel_calls`"),
        (_with(parallel_calls={"2": "__import__('os')"}), "`parallel_calls`"),
        (_with(buffer_sizes={"-2": 1}), "`buffer_sizes`"),
        (_with(buffer_sizes={"two": 1}), "`buffer_sizes`"),
        (_with(buffer_sizes={"\u0663": 1}), "`buffer_sizes`"),
        (_with(buffer_sizes={str(number): 1 for number in range(1001)}), "`buffer_sizes`"),
        (_with(private_threadpool_size=-1), "`private_threadpool_size`"),
    ],
)
def test_what_is_no_settings_is_told_and_replaced_when_written(text: str, words: str) -> None:
    knobs, message = load_state(text, "abc")
    assert knobs is None
    assert words in (message or "")
    assert load_state(dump_state(text, "abc", KNOBS), "abc") == (KNOBS, None)


_VALUES: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@given(fields=_VALUES, calls=_VALUES, text=st.text())
def test_no_text_whatsoever_is_more_than_a_message(fields: Any, calls: Any, text: str) -> None:
    whole = json.dumps({"schema_version": 1, "pipelines": {"abc": fields}})
    for each in (text, whole, json.dumps(fields), _with(parallel_calls=calls)):
        knobs, message = load_state(each, "abc")
        assert (knobs is None) == (message is not None)
        if knobs is not None:
            assert min(knobs.parallel_calls, default=-1) >= -1
            assert all(value == -1 or 1 <= value <= 10_000 for value in knobs.parallel_calls.values())
