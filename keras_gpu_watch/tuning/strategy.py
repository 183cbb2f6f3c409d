# SPDX-License-Identifier: Apache-2.0
"""Which settings to try next: by arithmetic from what an epoch measured, one hypothesis at a time. Nothing is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from keras_gpu_watch.findings import AUTOTUNE, Stage
from keras_gpu_watch.knobs import END, Knob, Knobs
from keras_gpu_watch.tuning.buffers import buffer_now, deeper, last_prefetch
from keras_gpu_watch.tuning.calls import (
    busy_seconds,
    calls_knobs,
    calls_now,
    calls_wanted,
    carried_over,
    limited,
    threads_for,
    written_calls,
)
from keras_gpu_watch.tuning.evidence import Observation
from keras_gpu_watch.tuning.limits import NUMBERS
from keras_gpu_watch.tuning.memory import fit_into
from keras_gpu_watch.tuning.room import Room
from keras_gpu_watch.tuning.wording import changes_in_words, duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Settings to try, and why."""

    knobs: Knobs
    hypothesis: str
    is_trimming: bool = False
    """Whether it asks for less, and so need not be faster."""


def propose(
    observation: Observation, current: Knobs, room: Room, *, unknown_is_waiting: bool = True
) -> Proposal | None:
    """Ask for what the measured work needs, all knobs at once.

    Args:
        observation: An epoch with the current settings.
        current: The settings it ran with.
        room: What may be changed.
        unknown_is_waiting: Whether a stage of which it isn't known is taken for one that waits, so that it may have
            more calls than there are cores.

    Returns:
        `None` when no knob helps.
    """
    rest_seconds = observation.rest_seconds
    if not observation.is_input_bound or rest_seconds is None:
        return None
    calls = {**current.parallel_calls}
    reasons: list[str] = []
    for knob in calls_knobs(room.tunable):
        wanted = calls_wanted(knob, observation, room, unknown_is_waiting=unknown_is_waiting)
        if wanted is not None and wanted > calls_now(knob, observation, current):
            calls[knob.index] = wanted
            reasons.append(_work_in_words(knob, observation, rest_seconds))
    buffers = deeper(observation, current, room, rest_seconds, is_rebuilt=calls != current.parallel_calls)
    if calls == current.parallel_calls and buffers == current.buffer_sizes:
        return None
    if observation.is_bursty and buffers != current.buffer_sizes:
        reasons.append(f"a batch takes up to {duration(observation.summary.input_wait_max_seconds or 0.0)} longer")
    calls = carried_over(calls, observation, room.tunable)
    knobs = Knobs(
        parallel_calls=calls,
        buffer_sizes=buffers,
        private_threadpool_size=threads_for(calls, observation, room.tunable),
    )
    return _proposal(knobs, current, observation, room, "; ".join(reasons) or "the step waits for its input")


def escalate(observation: Observation, current: Knobs, room: Room) -> Proposal | None:
    """Ask for more where arithmetic sees no need, yet the step still waits: twice as much of what helped.

    Args:
        observation: An epoch with the current settings.
        current: The settings it ran with.
        room: What may be changed.
    """
    if not observation.is_input_bound:
        return None
    if observation.is_bursty:
        return _twice_the_buffer(observation, current, room)
    knob = next((each for each in calls_knobs(room.tunable) if each.index == observation.blamed_index), None)
    stage = observation.stages.get(observation.blamed_index if observation.blamed_index is not None else END)
    if knob is None or stage is None or stage.is_waiting is False or observation.is_python_bound:
        return None
    now = calls_now(knob, observation, current)
    wanted = limited(2 * now, knob, room)
    if wanted <= now:
        return None
    calls = {**current.parallel_calls, knob.index: wanted}
    threads = threads_for(calls, observation, room.tunable)
    knobs = replace(current, parallel_calls=calls, private_threadpool_size=threads)
    return _proposal(knobs, current, observation, room, "the step still waits for it")


def trim(observation: Observation, current: Knobs, room: Room) -> Proposal | None:
    """Ask for less where more is set than the measured work needs.

    Args:
        observation: An epoch with the current settings.
        current: The settings it ran with.
        room: What may be changed.
    """
    rest_seconds = observation.rest_seconds
    if rest_seconds is None or not current.parallel_calls:
        return None
    period_seconds = rest_seconds / (1 - (observation.wait_share or 0.0))
    calls = {**current.parallel_calls}
    for knob in calls_knobs(room.tunable):
        busy = busy_seconds(knob, observation)
        if knob.index not in calls or busy is None or calls[knob.index] == AUTOTUNE:
            continue
        needed = max(1, math.ceil(NUMBERS.spare * busy / period_seconds), knob.written or 1)
        if calls[knob.index] > NUMBERS.rich_factor * needed:
            calls[knob.index] = needed
    if calls == current.parallel_calls:
        return None
    calls = {index: value for index, value in calls.items() if value != written_calls(room.tunable, index)}
    threads = threads_for(calls, observation, room.tunable)
    knobs = replace(current, parallel_calls=calls, private_threadpool_size=threads)
    proposal = _proposal(knobs, current, observation, room, "the work needs no more")
    return None if proposal is None else replace(proposal, is_trimming=True)


def _proposal(knobs: Knobs, current: Knobs, observation: Observation, room: Room, why: str) -> Proposal | None:
    knobs = fit_into(knobs, room.max_bytes, room.tunable, observation.stages)
    if knobs == current:
        return None
    return Proposal(knobs=knobs, hypothesis=f"{changes_in_words(current, knobs, room.tunable)}: {why}")


def _twice_the_buffer(observation: Observation, current: Knobs, room: Room) -> Proposal | None:
    knob = last_prefetch(room.tunable)
    if knob is None:
        return None
    now = max(1, buffer_now(knob, observation, current))
    if 2 * now > NUMBERS.max_prefetch:
        return None
    knobs = replace(current, buffer_sizes={**current.buffer_sizes, knob.index: 2 * now})
    return _proposal(knobs, current, observation, room, "some batches still take long")


def _work_in_words(knob: Knob, observation: Observation, rest_seconds: float) -> str:
    stage: Stage | None = observation.stages.get(knob.index)
    if stage is None or stage.busy_seconds_per_batch is None:
        return f"the step waits for {knob.label}"
    kind = "waiting" if stage.is_waiting else "work"
    return f"a batch needs {duration(stage.busy_seconds_per_batch)} of {kind}, the step takes {duration(rest_seconds)}"
