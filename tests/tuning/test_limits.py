# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from keras_gpu_watch import AutoTune
from keras_gpu_watch.tuning.limits import NUMBERS


@pytest.mark.parametrize(
    ("arguments", "kind", "name"),
    [
        ({"max_memory": 0}, ValueError, "max_memory"),
        ({"max_memory": 1.5}, TypeError, "max_memory"),
        ({"max_parallel_calls": -1}, ValueError, "max_parallel_calls"),
        ({"max_parallel_calls": True}, TypeError, "max_parallel_calls"),
        ({"parallel_python": 1}, TypeError, "parallel_python"),
        ({"state": 3}, TypeError, "state"),
        ({"state": ""}, TypeError, "state"),
    ],
)
def test_a_wrong_limit_raises_at_once_and_says_what_was_expected(
    arguments: dict[str, Any], kind: type[Exception], name: str
) -> None:
    with pytest.raises(kind, match=rf"`{name}`. Received: {name}=.* Expected: "):
        AutoTune(**arguments)


def test_a_state_in_the_home_directory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert AutoTune(state="~/tuned.json").state == "/somewhere/tuned.json"
    assert AutoTune(state=Path("tuned.json")).state == "tuned.json"


def test_every_number_has_a_source() -> None:
    assert all(field.metadata["source"] for field in dataclasses.fields(NUMBERS))
