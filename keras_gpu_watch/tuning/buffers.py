# SPDX-License-Identifier: Apache-2.0
"""How deep the last prefetch must be."""

from __future__ import annotations

import math

from keras_gpu_watch.findings import AUTOTUNE
from keras_gpu_watch.knobs import END, Knob, Knobs, Tunable
from keras_gpu_watch.tuning.evidence import Observation
from keras_gpu_watch.tuning.limits import NUMBERS
from keras_gpu_watch.tuning.room import Room


def last_prefetch(tunable: Tunable) -> Knob | None:
    """The prefetch that the training reads from, written or to be added; `None`: it may not be changed."""
    knobs = [knob for knob in tunable.knobs if knob.kind == "buffer_size"]
    at_end = next((knob for knob in knobs if knob.index == END), None)
    return at_end or max(knobs, key=lambda knob: knob.index, default=None)


def buffer_now(knob: Knob, observation: Observation, current: Knobs) -> int:
    """Elements that it may hold now."""
    value = current.buffer_sizes.get(knob.index, knob.written)
    if value is not None and value != AUTOTUNE:
        return value
    stage = observation.stages.get(knob.index)
    if knob.index == END:
        stage = next((each for each in reversed(observation.pipeline.stages) if each.op == "prefetch"), None)
    return round(stage.buffer_limit) if stage is not None and stage.buffer_limit else 0


def deeper(
    observation: Observation, current: Knobs, room: Room, rest_seconds: float, *, is_rebuilt: bool
) -> dict[int, int]:
    """Buffers that hold what the longest wait lasts, or at least one batch beside the one that is taken.

    Args:
        observation: The epoch.
        current: Its settings.
        room: What is allowed.
        rest_seconds: What a batch takes besides its wait.
        is_rebuilt: Whether other knobs are turned as well.

    Returns:
        Elements by index of the prefetch.
    """
    buffers = {**current.buffer_sizes}
    knob = last_prefetch(room.tunable)
    if knob is None:
        return buffers
    now = buffer_now(knob, observation, current)
    if observation.is_bursty:
        missing = (observation.summary.input_wait_max_seconds or 0.0) / rest_seconds
        wanted = 2 ** math.ceil(math.log2(max(now + missing, NUMBERS.min_prefetch)))
    elif is_rebuilt or observation.cause == "no_prefetch" or observation.pipeline.serial_seconds_per_batch:
        wanted = NUMBERS.min_prefetch
    else:
        return buffers
    if knob.written == AUTOTUNE and not observation.is_bursty:
        return buffers
    if wanted > now or (knob.index == END and knob.index not in buffers):
        buffers[knob.index] = min(max(wanted, now), NUMBERS.max_prefetch)
    return buffers
