# SPDX-License-Identifier: Apache-2.0
"""Turning every knob in every epoch changes no element and no order, for many kinds of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exact_pipelines import KINDS, plain

from keras_gpu_watch import watch
from keras_gpu_watch.knobs import Knobs, Tunable

EPOCHS = 5
CALLS = (4, 1, None, 3, -1)
BUFFERS = (1, 5, None, -1, 2)
"""By epoch; `None`: the user's own pipeline again."""


def knobs_of(epoch: int, tunable: Tunable) -> Knobs:
    calls, buffer = CALLS[epoch], BUFFERS[epoch]
    if calls is None or buffer is None:
        return Knobs()
    return Knobs(
        parallel_calls={
            knob.index: min(calls, knob.limit or calls) for knob in tunable.knobs if knob.kind == "parallel_calls"
        },
        buffer_sizes={knob.index: buffer for knob in tunable.knobs if knob.kind == "buffer_size"},
        private_threadpool_size=1 + epoch,
    )


def epochs(dataset: Any, between: Callable[[], None], turn: Callable[[int], None]) -> list[Any]:
    """What `fit` gets: it makes a second iterator at the end of each epoch that it never uses."""
    seen = []
    for epoch in range(EPOCHS):
        turn(epoch)
        seen.append([plain(element) for element in dataset])
        if epoch % 2:
            turn(epoch + 1)
        iter(dataset)
        between()
    return seen


@pytest.mark.parametrize("name", KINDS)
def test_every_element_is_the_one_without_us(name: str, tmp_path: Path) -> None:
    expected = epochs(*KINDS[name](tmp_path / "plain"), lambda epoch: None)
    dataset, between = KINDS[name](tmp_path / "turned")
    watched: Any = watch(dataset)
    tunable = watched.tunable()

    def turn(epoch: int) -> None:
        assert watched.failure is None
        if epoch < EPOCHS:
            watched.set_knobs(knobs_of(epoch, tunable))

    assert epochs(watched, between, turn) == expected
    assert watched.failure is None
    assert tunable.knobs or name == "no automatics"
