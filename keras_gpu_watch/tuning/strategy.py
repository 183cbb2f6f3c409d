# SPDX-License-Identifier: Apache-2.0
"""Which settings to try next: by arithmetic from what an epoch measured, one hypothesis at a time. Nothing is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from keras_gpu_watch.findings import AUTOTUNE, Stage
from keras_gpu_watch.knobs import END, Knob, Knobs, Tunable
from keras_gpu_watch.tuning.evidence import Observation
from keras_gpu_watch.tuning.limits import NUMBERS
from keras_gpu_watch.tuning.memory import fit_into
from keras_gpu_watch.tuning.room import Room
from keras_gpu_watch.tuning.wording import changes_in_words, duration

_OWN_THREADS = ("interleave", "TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
"""Stages whose calls have threads of their own."""


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
    for knob in _calls_knobs(room.tunable):
        wanted = _calls_wanted(knob, observation, room, unknown_is_waiting=unknown_is_waiting)
        if wanted is not None and wanted > _calls_now(knob, observation, current):
            calls[knob.index] = wanted
            reasons.append(_work_in_words(knob, observation, rest_seconds))
    buffers = _deeper(observation, current, room, rest_seconds, is_rebuilt=calls != current.parallel_calls)
    if calls == current.parallel_calls and buffers == current.buffer_sizes:
        return None
    if observation.is_bursty and buffers != current.buffer_sizes:
        reasons.append(f"a batch takes up to {duration(observation.summary.input_wait_max_seconds or 0.0)} longer")
    calls = _carried_over(calls, observation, room.tunable)
    knobs = Knobs(
        parallel_calls=calls,
        buffer_sizes=buffers,
        private_threadpool_size=_threads(calls, observation, current, room),
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
    knob = next((each for each in _calls_knobs(room.tunable) if each.index == observation.blamed_index), None)
    stage = observation.stages.get(observation.blamed_index if observation.blamed_index is not None else END)
    if knob is None or stage is None or stage.is_waiting is False or observation.is_python_bound:
        return None
    calls_now = _calls_now(knob, observation, current)
    wanted = _limited(2 * calls_now, knob, room)
    if wanted <= calls_now:
        return None
    calls = {**current.parallel_calls, knob.index: wanted}
    knobs = replace(current, parallel_calls=calls, private_threadpool_size=_threads(calls, observation, current, room))
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
    for knob in _calls_knobs(room.tunable):
        busy = _busy_seconds(knob, observation)
        if knob.index not in calls or busy is None or calls[knob.index] == AUTOTUNE:
            continue
        needed = max(1, math.ceil(NUMBERS.spare * busy / period_seconds), knob.written or 1)
        if calls[knob.index] > NUMBERS.rich_factor * needed:
            calls[knob.index] = needed
    if calls == current.parallel_calls:
        return None
    calls = {index: value for index, value in calls.items() if value != _written(room.tunable, index)}
    knobs = replace(current, parallel_calls=calls, private_threadpool_size=_threads(calls, observation, current, room))
    proposal = _proposal(knobs, current, observation, room, "the work needs no more")
    return None if proposal is None else replace(proposal, is_trimming=True)


def _proposal(knobs: Knobs, current: Knobs, observation: Observation, room: Room, why: str) -> Proposal | None:
    knobs = fit_into(knobs, room.max_bytes, room.tunable, observation.stages)
    if knobs == current:
        return None
    return Proposal(knobs=knobs, hypothesis=f"{changes_in_words(current, knobs, room.tunable)}: {why}")


def _calls_knobs(tunable: Tunable) -> list[Knob]:
    return [knob for knob in tunable.knobs if knob.kind == "parallel_calls"]


def _written(tunable: Tunable, index: int) -> int | None:
    return next((knob.written for knob in _calls_knobs(tunable) if knob.index == index), None)


def _busy_seconds(knob: Knob, observation: Observation) -> float | None:
    stage = observation.stages.get(knob.index)
    return None if stage is None else stage.busy_seconds_per_batch


def _calls_now(knob: Knob, observation: Observation, current: Knobs) -> int:
    """Calls that may run at a time; those of AUTOTUNE as it has chosen them."""
    stage = observation.stages.get(knob.index)
    if stage is not None and stage.parallelism is not None:
        return max(1, round(stage.parallelism))
    value = current.parallel_calls.get(knob.index, knob.written)
    if value == AUTOTUNE:
        return observation.cores
    return value or 1


def _calls_wanted(knob: Knob, observation: Observation, room: Room, *, unknown_is_waiting: bool) -> int | None:
    """`None`: more calls would not help, or nothing is known."""
    stage, is_blamed = observation.stages.get(knob.index), knob.index == observation.blamed_index
    if stage is None or (observation.is_python_bound and stage.python is not None and not is_blamed):
        return None
    if observation.is_python_bound and is_blamed:
        # One trial: code that leaves the lock now and then runs beside itself.
        return _limited(observation.cores, knob, room)
    busy = stage.busy_seconds_per_batch
    if busy is None:
        # Nothing is measured: a guess, for the stage that is to blame only.
        guess = 4 * observation.cores if observation.cause == "latency" else observation.cores
        return _limited(guess, knob, room) if is_blamed else None
    needed = math.ceil(NUMBERS.spare * busy / (observation.rest_seconds or math.inf))
    is_waiting = unknown_is_waiting if stage.is_waiting is None else stage.is_waiting
    return _limited(needed if is_waiting else min(needed, observation.cores), knob, room)


def _limited(calls: int, knob: Knob, room: Room) -> int:
    return max(1, min(calls, room.max_calls, knob.limit or calls))


def _carried_over(calls: dict[int, int], observation: Observation, tunable: Tunable) -> dict[int, int]:
    """What AUTOTUNE has found for the other stages: in a new iterator it would begin at 1 again."""
    found = {
        knob.index: round(stage.parallelism)
        for knob in _calls_knobs(tunable)
        if knob.written == AUTOTUNE
        and (stage := observation.stages.get(knob.index)) is not None
        and stage.parallelism is not None
    }
    return {**{index: value for index, value in found.items() if value >= 1}, **calls}


def _threads(calls: dict[int, int], observation: Observation, current: Knobs, room: Room) -> int | None:
    """A pool with a thread for each call, where the pool that is there has fewer."""
    written = room.tunable.private_threadpool_size
    in_pool = 0
    for knob in _calls_knobs(room.tunable):
        stage = observation.stages.get(knob.index)
        if stage is not None and stage.op in _OWN_THREADS:
            continue
        value = calls.get(knob.index, knob.written)
        in_pool += observation.cores if value == AUTOTUNE else value or 0
    present = current.private_threadpool_size or written or observation.cores
    if not room.tunable.threadpool_is_tunable or in_pool <= (written or observation.cores):
        return None
    # The stages between them take their turn in the same pool.
    return max(in_pool + observation.cores, 1) if in_pool + 1 > present or calls != current.parallel_calls else present


def _last_prefetch(tunable: Tunable) -> Knob | None:
    knobs = [knob for knob in tunable.knobs if knob.kind == "buffer_size"]
    at_end = next((knob for knob in knobs if knob.index == END), None)
    return at_end or max(knobs, key=lambda knob: knob.index, default=None)


def _buffer_now(knob: Knob, observation: Observation, current: Knobs) -> int:
    """Elements that it may hold now."""
    value = current.buffer_sizes.get(knob.index, knob.written)
    if value is not None and value != AUTOTUNE:
        return value
    stage = observation.stages.get(knob.index)
    if knob.index == END:
        stage = next((each for each in reversed(observation.pipeline.stages) if each.op == "prefetch"), None)
    return round(stage.buffer_limit) if stage is not None and stage.buffer_limit else 0


def _deeper(
    observation: Observation, current: Knobs, room: Room, rest_seconds: float, *, is_rebuilt: bool
) -> dict[int, int]:
    """Buffers that hold what the longest wait lasts, or at least one batch beside the one that is taken."""
    buffers = {**current.buffer_sizes}
    knob = _last_prefetch(room.tunable)
    if knob is None:
        return buffers
    now = _buffer_now(knob, observation, current)
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


def _twice_the_buffer(observation: Observation, current: Knobs, room: Room) -> Proposal | None:
    knob = _last_prefetch(room.tunable)
    if knob is None:
        return None
    now = max(1, _buffer_now(knob, observation, current))
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
