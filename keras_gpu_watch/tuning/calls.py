# SPDX-License-Identifier: Apache-2.0
"""How many calls at a time each stage needs, and the threads for them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from keras_gpu_watch.findings import AUTOTUNE
from keras_gpu_watch.knobs import Knob, Knobs, Tunable
from keras_gpu_watch.tuning.evidence import Observation
from keras_gpu_watch.tuning.limits import NUMBERS
from keras_gpu_watch.tuning.room import Room

_OWN_THREADS = ("interleave", "TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
"""Stages whose calls have threads of their own."""


def calls_knobs(tunable: Tunable) -> list[Knob]:
    """The knobs that set a stage's calls."""
    return [knob for knob in tunable.knobs if knob.kind == "parallel_calls"]


def written_calls(tunable: Tunable, index: int) -> int | None:
    """A stage's calls as the user wrote them."""
    return next((knob.written for knob in calls_knobs(tunable) if knob.index == index), None)


def busy_seconds(knob: Knob, observation: Observation) -> float | None:
    """A stage's work for a batch, all its calls together; `None`: not measured."""
    stage = observation.stages.get(knob.index)
    return None if stage is None else stage.busy_seconds_per_batch


def calls_now(knob: Knob, observation: Observation, current: Knobs) -> int:
    """Calls that may run at a time; those of AUTOTUNE as it has chosen them."""
    stage = observation.stages.get(knob.index)
    if stage is not None and stage.parallelism is not None:
        return max(1, round(stage.parallelism))
    value = current.parallel_calls.get(knob.index, knob.written)
    if value == AUTOTUNE:
        return observation.cores
    return value or 1


def calls_wanted(knob: Knob, observation: Observation, room: Room, *, unknown_is_waiting: bool) -> int | None:
    """Calls that a stage's measured work needs.

    Args:
        knob: The stage's.
        observation: The epoch.
        room: What is allowed.
        unknown_is_waiting: Whether a stage of which it isn't known is taken for one that waits.

    Returns:
        `None`: more calls would not help, or nothing is known.
    """
    stage, is_blamed = observation.stages.get(knob.index), knob.index == observation.blamed_index
    if stage is None or (observation.is_python_bound and stage.python is not None and not is_blamed):
        return None
    if observation.is_python_bound and is_blamed:
        # One trial: code that leaves the lock now and then runs beside itself.
        return limited(observation.cores, knob, room)
    busy = stage.busy_seconds_per_batch
    if busy is None:
        # Nothing is measured: a guess, for the stage that is to blame only.
        guess = 4 * observation.cores if observation.cause == "latency" else observation.cores
        return limited(guess, knob, room) if is_blamed else None
    needed = math.ceil(NUMBERS.spare * busy / (observation.rest_seconds or math.inf))
    is_waiting = unknown_is_waiting if stage.is_waiting is None else stage.is_waiting
    return limited(needed if is_waiting else min(needed, observation.cores), knob, room)


def limited(calls: int, knob: Knob, room: Room) -> int:
    """As many calls as are allowed."""
    return max(1, min(calls, room.max_calls, knob.limit or calls))


def carried_over(calls: dict[int, int], observation: Observation, tunable: Tunable) -> dict[int, int]:
    """What AUTOTUNE has found for the other stages: in a new iterator it would begin at 1 again."""
    found = {
        knob.index: round(stage.parallelism)
        for knob in calls_knobs(tunable)
        if knob.written == AUTOTUNE
        and (stage := observation.stages.get(knob.index)) is not None
        and stage.parallelism is not None
    }
    return {**{index: value for index, value in found.items() if value >= 1}, **calls}


def threads_for(calls: Mapping[int, int], observation: Observation, tunable: Tunable) -> int | None:
    """A pool with a thread for each call, where the pool that is there has fewer.

    Args:
        calls: By index of the stage, as far as they are not as written.
        observation: The epoch.
        tunable: The pipeline.

    Returns:
        `None`: the pool that is there will do.
    """
    in_pool = 0
    for knob in calls_knobs(tunable):
        stage = observation.stages.get(knob.index)
        if stage is not None and stage.op in _OWN_THREADS:
            continue
        value = calls.get(knob.index, knob.written)
        in_pool += observation.cores if value == AUTOTUNE else value or 0
    if not tunable.threadpool_is_tunable or in_pool <= (tunable.private_threadpool_size or observation.cores):
        return None
    # The stages between them take their turn in the same pool.
    return in_pool + observation.cores
