# SPDX-License-Identifier: Apache-2.0
"""How much memory the buffers of some settings may take, and settings that fit into a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.knobs import END, Knob, Knobs, Tunable
from keras_gpu_watch.tuning.limits import NUMBERS


def fit_into(knobs: Knobs, max_bytes: float | None, tunable: Tunable, stages: Mapping[int, Stage]) -> Knobs:
    """The same settings, with smaller buffers and fewer calls where all together would hold more than is allowed.

    Args:
        knobs: The settings.
        max_bytes: That all may hold; `None`: not known, which allows few elements only.
        tunable: The pipeline.
        stages: What was measured of its stages, by index.
    """
    by_place = {(knob.kind, knob.index): knob for knob in tunable.knobs}
    left = max_bytes
    calls: dict[int, int] = {}
    for index, value in knobs.parallel_calls.items():
        knob = by_place.get(("parallel_calls", index))
        calls[index], left = _fitting(value, knob, left, stages, least=(knob.written if knob else None) or 1)
    buffers: dict[int, int] = {}
    for index, value in knobs.buffer_sizes.items():
        knob = by_place.get(("buffer_size", index))
        value = min(value, NUMBERS.unknown_prefetch) if _element_bytes(knob, stages) is None else value
        buffers[index], left = _fitting(value, knob, left, stages, least=1)
    return replace(knobs, parallel_calls=calls, buffer_sizes=buffers)


class MemoryWatch:
    """Watches how much the process grows while buffers are in use that the tuner has set."""

    def __init__(self) -> None:
        self._before_bytes: float | None = None

    def grown_bytes(self, held_bytes: float | None, knobs: Knobs) -> float:
        """Growth since the last epoch without such buffers, or since the first epoch seen.

        Args:
            held_bytes: The most that the process held in an epoch; `None`: not known, which tells no growth.
            knobs: The epoch's settings.
        """
        if held_bytes is None:
            return 0.0
        if knobs.is_empty or self._before_bytes is None:
            self._before_bytes = max(held_bytes, self._before_bytes or 0.0)
        return held_bytes - self._before_bytes


def halved(knobs: Knobs) -> Knobs:
    """The same settings with buffers half as deep."""
    sizes = {index: max(1, size // 2) if size > 0 else size for index, size in knobs.buffer_sizes.items()}
    return replace(knobs, buffer_sizes=sizes)


def held_bytes(knobs: Knobs, tunable: Tunable, stages: Mapping[int, Stage]) -> float:
    """What the buffers of some settings hold when they are full, as far as the size of elements is known."""
    held = 0.0
    for knob in tunable.knobs:
        values = knobs.parallel_calls if knob.kind == "parallel_calls" else knobs.buffer_sizes
        held += max(values.get(knob.index, 0), 0) * (_element_bytes(knob, stages) or 0.0)
    return held


def _fitting(
    value: int, knob: Knob | None, left: float | None, stages: Mapping[int, Stage], least: int
) -> tuple[int, float | None]:
    """As many elements as fit, and what is left for the others."""
    size = _element_bytes(knob, stages)
    if value < 0 or size is None or left is None or size <= 0:
        return value, left
    count = max(min(value, int(left // size)), min(least, value))
    return count, max(0.0, left - count * size)


def _element_bytes(knob: Knob | None, stages: Mapping[int, Stage]) -> float | None:
    """Of one element behind a knob's stage: measured, or from its shape."""
    if knob is None:
        return None
    stage = stages.get(max(stages, default=0) if knob.index == END else knob.index)
    measured = None if stage is None else stage.bytes_per_element
    return knob.element_bytes if measured is None else measured
