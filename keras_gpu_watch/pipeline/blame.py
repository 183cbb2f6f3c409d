# SPDX-License-Identifier: Apache-2.0
"""Which stages make the training wait, and by how much each.

The training's thread does the *serial* work itself when it asks for a batch. Everything below a stage that works ahead
(`prefetch`, or any stage with parallel calls) runs beside the training, in *parts* of one thread, or one pool, each:

- a prefetch, with the sequential stages below it;
- the calls of a parallel stage, that are done `parallelism` at a time;
- the thread that pulls the inputs of a parallel stage, with the sequential stages below it.

A part that needs `T` seconds for a batch gives at most `1 / T` batches a second. So the training waits, a batch,
`serial + max(0, max T - (step + serial))`, where `step` is what it does between two batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from keras_gpu_watch.findings import PipelineSummary, Stage
from keras_gpu_watch.pipeline.node_names import OPENERS

NO_WAIT_SHARE = 0.01
"""Waits under this share of the step are no waits: they can't be told from the cost of fetching itself."""
HIDDEN_SHARE = 0.05
HIDDEN_RATIO = 1.5
"""Waits of at least this share of the step, and so many times all work that is counted, show work that is not."""

Part = Mapping[int, float]
"""Seconds a batch of each stage of it, by index."""


def blame(summary: PipelineSummary, step_seconds: float | None, input_wait_seconds: float | None) -> PipelineSummary:
    """Add capacities and shares in the input wait.

    The serial work has its own time as its share in the wait. The rest is shared among the parts that are slower than
    the step, as the cost of a runway is among the aircraft that need different lengths of it (the Shapley value of a
    maximum, Littlechild and Owen 1973): what lies between two neighbouring parts' times is shared equally by all parts
    that reach above it. Where the training waited although no part is slower than the step (a part was, now and then),
    the part with the longest time has all of the rest. Within a part, stages share by their time.

    Args:
        summary: Stages with their busy seconds a batch.
        step_seconds: Mean time between two batches other than the wait; `None`: not known.
        input_wait_seconds: Mean wait for a batch; `None`: not known.
    """
    if not any(stage.busy_seconds_per_batch is not None for stage in summary.stages):
        return summary
    if step_seconds is not None and input_wait_seconds is not None:
        stages_with_all = _with_hidden_work(summary.stages, step_seconds, input_wait_seconds)
        summary = dataclasses.replace(summary, stages=stages_with_all)
    serial, ahead = parts(summary.stages)
    shares = _shares(serial, ahead, step_seconds, input_wait_seconds)
    stages = [
        dataclasses.replace(stage, capacity_batches_per_second=_capacity(stage), wait_share=shares.get(stage.index))
        for stage in summary.stages
    ]
    return dataclasses.replace(
        summary,
        stages=tuple(stages),
        serial_seconds_per_batch=sum(serial.values()),
        slowest_seconds_per_batch=max((sum(part.values()) for part in ahead), default=None),
    )


def _with_hidden_work(stages: tuple[Stage, ...], step_seconds: float, input_wait_seconds: float) -> tuple[Stage, ...]:
    """Give the work that must be somewhere, and is not counted, to the stage that opens datasets.

    Even if each part ran only when the one above it asks, no batch would be waited for longer than all of their times
    together. What is beyond that is work in the datasets that `interleave` or `flat_map` opened.
    """
    serial, ahead = parts(stages)
    counted_seconds = sum(serial.values()) + sum(sum(part.values()) for part in ahead)
    opener = next((stage for stage in stages if stage.op in OPENERS), None)
    if opener is None or input_wait_seconds < max(HIDDEN_SHARE * step_seconds, HIDDEN_RATIO * counted_seconds):
        return stages
    # It goes on during the step, unless it is done on the training's own thread.
    period_seconds = input_wait_seconds if _is_serial(opener, stages) else step_seconds + input_wait_seconds
    busy_seconds = period_seconds * max(1.0, opener.parallelism or 1.0)
    found = dataclasses.replace(opener, busy_seconds_per_batch=busy_seconds, is_estimated=True, reason=None)
    return tuple(found if stage is opener else stage for stage in stages)


def _is_serial(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether the training's own thread asks it for elements, and waits for them."""
    waiting = [stages[-1]]
    while waiting:
        above = waiting.pop()
        if above is stage:
            return not works_ahead(stage)
        if not works_ahead(above):
            waiting.extend(stages[below] for below in above.inputs)
    return False


def parts(stages: Sequence[Stage]) -> tuple[Part, tuple[Part, ...]]:
    """Who does which work: the training's own thread, and each part that works ahead.

    Stages whose work is not known are left out.

    Args:
        stages: Sources first.

    Returns:
        The serial part, and those that work ahead.
    """
    serial: dict[int, float] = {}
    ahead: list[dict[int, float]] = []
    # Each stage with the part of the thread that asks it for elements.
    waiting: list[tuple[Stage, dict[int, float]]] = [(stages[-1], serial)] if stages else []
    while waiting:
        stage, part = waiting.pop()
        if stage.parallelism is not None:
            ahead.append({})
            _add(ahead[-1], stage)
        if works_ahead(stage):
            part = {}
            ahead.append(part)
        if stage.parallelism is None:
            _add(part, stage)
        waiting.extend((stages[below], part) for below in stage.inputs)
    return serial, tuple(part for part in ahead if part)


def works_ahead(stage: Stage) -> bool:
    """Whether a stage fetches from its inputs on a thread of its own."""
    return stage.op == "prefetch" or stage.parallelism is not None


def _add(part: dict[int, float], stage: Stage) -> None:
    seconds = _seconds(stage)
    if seconds is not None:
        part[stage.index] = seconds


def _seconds(stage: Stage) -> float | None:
    """Time a batch that a stage needs at its parallelism."""
    if stage.busy_seconds_per_batch is None:
        return None
    return stage.busy_seconds_per_batch / max(1.0, stage.parallelism or 1.0)


def _capacity(stage: Stage) -> float | None:
    seconds = _seconds(stage)
    return 1 / seconds if seconds else None


def _shares(
    serial: Part, ahead: Sequence[Part], step_seconds: float | None, input_wait_seconds: float | None
) -> dict[int, float]:
    """Each stage's share, none where there is no wait or no work to share it."""
    if not input_wait_seconds or step_seconds is None or input_wait_seconds < NO_WAIT_SHARE * step_seconds:
        return {}
    serial_seconds = sum(serial.values())
    times = [sum(part.values()) for part in ahead]
    weights = _rest_weights(times, step_seconds + serial_seconds)
    of_serial = min(1.0, serial_seconds / input_wait_seconds) if any(weights) else 1.0
    shares = _split(of_serial, serial)
    for part, weight in zip(ahead, weights, strict=True):
        shares.update(_split((1 - of_serial) * weight, part))
    return shares if any(shares.values()) else {}


def _rest_weights(times: Sequence[float], hidden_seconds: float) -> list[float]:
    """Each part's share in the wait that is not serial."""
    excess = [max(0.0, seconds - hidden_seconds) for seconds in times]
    if any(excess):
        return [share / max(excess) for share in runway_shares(excess)]
    slowest = max(times, default=0.0)
    return [float(slowest > 0 and index == times.index(slowest)) for index in range(len(times))]


def runway_shares(lengths: Sequence[float]) -> list[float]:
    """The Shapley value of a maximum: each one's part in `max(lengths)`.

    Args:
        lengths: What each one needs, 0 or more.
    """
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    shares = [0.0] * len(lengths)
    reached = below = 0.0
    for rank, index in enumerate(order):
        reached += (lengths[index] - below) / (len(lengths) - rank)
        below = lengths[index]
        shares[index] = reached
    return shares


def _split(amount: float, part: Part) -> dict[int, float]:
    total = sum(part.values())
    return {index: amount * seconds / total if total else 0.0 for index, seconds in part.items()}
