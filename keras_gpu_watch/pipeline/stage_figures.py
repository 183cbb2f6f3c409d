# SPDX-License-Identifier: Apache-2.0
"""What an epoch's sums say of each stage.

Work for one batch is work for one element times elements for one batch. Both hold although `repeat` starts all
counters anew at each turn: the first is a quotient of two counters of one node; the second is multiplied up from the
training's end, stage by stage, with tf.data's own ratio where it knows one (8 for `batch(8)`, 1 for `repeat`), else a
measured one.
"""

from __future__ import annotations

import dataclasses

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.tally import EpochTally, StageTally

NOT_SEEN = "it had come to its end before it was looked at, or works where tf.data does not see it"
REMOVED = "tf.data left it out or runs it as a part of another stage"
NOT_CAUGHT = "the datasets that it opens were gone at each look, and their work with them"

# An input of these that has no node is one that they don't need at that time.
_LEAVE_INPUTS_ALONE = ("cache", "concatenate", "choose_from_datasets")


def measured_stages(epoch: EpochTally) -> tuple[Stage, ...]:
    """The stages with what they did in the epoch, or the reason why that is not known.

    Args:
        epoch: The sums over the epoch's looks.
    """
    flows = _flows(epoch)
    stages = [_measured(stage, epoch, flows[stage.index]) for stage in epoch.stages]
    for lower in epoch.stages:
        for upper in lower.fused_with:
            if lower.index in epoch.tallies and upper not in epoch.tallies:
                stages[upper], stages[lower.index] = _shared(stages[upper], stages[lower.index], epoch)
    return tuple(stages)


def _flows(epoch: EpochTally) -> dict[int, float | None]:
    """Elements that each stage's node gives for one batch."""
    flows: dict[int, float | None] = {}
    takers = epoch.above()
    for stage in reversed(epoch.stages):
        above = takers[stage.index]
        flows[stage.index] = 1.0 if above is None else _times(flows[above], _ratio(epoch, above, stage.index))
    return flows


def _times(flow: float | None, ratio: float | None) -> float | None:
    if flow == 0.0:
        return 0.0
    return None if flow is None or ratio is None else flow * ratio


def _ratio(epoch: EpochTally, above: int, below: int) -> float | None:
    """Elements that a stage gives for one element of the stage above."""
    upper, lower = epoch.tallies.get(above), epoch.tallies.get(below)
    if upper is None:
        return None
    drawn = _inputs_per_element(upper)
    if drawn is not None:
        return drawn
    if upper.newest.kind in _LEAVE_INPUTS_ALONE:
        return _share_given(upper, lower)
    if lower is None:
        return None
    edge = lower.later if lower.later.above else lower.until_first
    return edge.given_above / edge.above if edge.above else None


def _share_given(upper: StageTally, lower: StageTally | None) -> float | None:
    """The share of a stage's elements that came from an input which it does not need all the time."""
    is_late = upper.later.elements > 0
    elements = (upper.later if is_late else upper.until_first).elements
    if not elements:
        return None
    return 0.0 if lower is None else (lower.later if is_late else lower.until_first).given_above / elements


def _inputs_per_element(tally: StageTally) -> float | None:
    sums = tally.later if tally.later.elements else tally.until_first
    if sums.drawn is None or not sums.elements:
        return None
    ratio = sums.drawn / sums.elements
    # A shuffle takes more than it gives only while it fills its buffer, and less while it empties it.
    return min(1.0, ratio) if tally.newest.kind in ("shuffle", "shuffle_and_repeat") else ratio


def _measured(stage: Stage, epoch: EpochTally, flow: float | None) -> Stage:
    tally = epoch.tallies.get(stage.index)
    if tally is None:
        if flow == 0.0 and not epoch.is_passed(stage.index):
            return dataclasses.replace(stage, elements=0.0, elements_per_batch=0.0, busy_seconds_per_batch=0.0)
        return dataclasses.replace(stage, reason=REMOVED if epoch.is_passed(stage.index) else NOT_SEEN)
    sums = tally.later if epoch.looks > 1 else tally.until_first
    given = tally.later if tally.later.elements else tally.until_first
    newest = tally.newest
    seconds = _seconds_per_element(tally)
    is_uncaught = newest.has_opened and not tally.opened_elements and given.elements
    return dataclasses.replace(
        stage,
        elements=sums.elements,
        elements_per_batch=flow,
        busy_seconds_per_batch=_times(flow, seconds),
        parallelism=newest.parallelism,
        parallelism_max=newest.parallelism_max,
        buffer_limit=_buffer_limit(stage, newest.buffer_limit),
        buffered_elements=tally.buffered_elements / tally.looks,
        buffered_bytes=tally.buffered_bytes / tally.looks,
        bytes_per_element=given.bytes / given.elements if given.elements else None,
        reason=NOT_CAUGHT if is_uncaught else None,
    )


def _seconds_per_element(tally: StageTally) -> float | None:
    sums = tally.later if tally.later.made else tally.until_first
    if not sums.made:
        return None
    own_seconds = sums.seconds / sums.made
    if not tally.newest.has_opened:
        return own_seconds
    if not tally.opened_elements:
        return None
    return own_seconds + tally.opened_seconds / tally.opened_elements


def _buffer_limit(stage: Stage, knob: float | None) -> float | None:
    """tf.data's model has no knob for a shuffle's buffer: it is as written."""
    if knob is None and stage.buffer_size is not None and stage.buffer_size >= 0:
        return float(stage.buffer_size)
    return knob


def _shared(upper: Stage, lower: Stage, epoch: EpochTally) -> tuple[Stage, Stage]:
    """Two stages that run as one: the lower one has the work, the upper one what comes out."""
    tally = epoch.tallies[lower.index]
    reason = f"tf.data runs it together with {lower.label}, where its work is measured"
    upper = dataclasses.replace(
        upper,
        elements=lower.elements,
        elements_per_batch=lower.elements_per_batch,
        bytes_per_element=lower.bytes_per_element,
        reason=reason,
    )
    ratio = _inputs_per_element(tally)
    if tally.newest.kind != "map_and_batch":
        return upper, lower
    upper = dataclasses.replace(upper, buffered_elements=lower.buffered_elements, buffered_bytes=lower.buffered_bytes)
    lower = dataclasses.replace(
        lower,
        elements=_times(lower.elements, ratio),
        elements_per_batch=_times(lower.elements_per_batch, ratio),
        bytes_per_element=None,
        buffered_elements=None,
        buffered_bytes=None,
    )
    return upper, lower
