# SPDX-License-Identifier: Apache-2.0
"""An epoch's account, from its boundaries and the sums over its steps (docs/measuring.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keras_gpu_watch.accounting.totals import StepTotals
from keras_gpu_watch.records import EpochSummary, Floats

ESTIMATED_SHARE = 0.01
"""Fields are marked as estimates when more than this share of the wall time was split by an estimate."""
ESTIMATED_FIELDS = (
    "input_wait_seconds",
    "compute_seconds",
    "input_wait_share",
    "input_wait_p50_seconds",
    "input_wait_p95_seconds",
    "input_wait_max_seconds",
    "goodput",
    "ceiling_speedup",
)
"""All that rests on the split of a call into wait and compute."""

SUBMISSION_ONLY = (
    "compute is not known: the train step returns host values only, so the end of its work on the device is not seen. "
    "Return a tensor from train_step to have it measured"
)

TOO_FEW_READINGS = "input wait is not known: too few steps of this epoch have a reading"


@dataclass(frozen=True, slots=True)
class EpochFrame:
    """What is known of an epoch besides its steps (times on the monotonic clock)."""

    epoch: int
    begin_seconds: float
    end_seconds: float
    """The next boundary."""
    test_end_seconds: float | None = None
    """When validation ended; `None` without validation."""
    watch_overhead_seconds: float = 0.0
    disagreements_seconds: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    is_timed: bool = True
    """False when step timing has failed: what followed the last step known is unattributed, not the epoch's end."""
    submission_only: bool = False
    """No returned value lived on the device: calls end when work is submitted, not when it is done."""


def summarize(frame: EpochFrame, totals: StepTotals | None) -> EpochSummary:
    """Where the epoch's seconds went.

    Args:
        frame: Boundaries of the epoch.
        totals: Sums over all of its steps; `None` for an epoch without any.

    Returns:
        The account. Its parts add up to `wall_seconds`.
    """
    wall = frame.end_seconds - frame.begin_seconds
    if totals is None:
        return _without_steps(frame, wall)
    first_batch = totals.first_call_seconds - frame.begin_seconds + totals.first_wait_seconds
    step = totals.call_seconds - totals.compile_seconds - totals.first_wait_seconds
    wait = totals.input_wait_seconds
    compute = None if wait is None or frame.submission_only else step - wait
    validation = None
    # An evaluation before the last step is some callback's: host time.
    if frame.test_end_seconds is not None and frame.test_end_seconds >= totals.last_done_seconds:
        validation = frame.test_end_seconds - totals.last_done_seconds
    after_last = frame.end_seconds - totals.last_done_seconds - (validation or 0.0)
    epoch_end = after_last if frame.is_timed else 0.0
    parts = (first_batch, totals.compile_seconds, step, totals.host_seconds, validation or 0.0, epoch_end)
    p50, p95 = (None, None) if wait is None else _percentiles(totals.steady_waits_seconds)
    return EpochSummary(
        epoch=frame.epoch,
        steps=totals.steps,
        steady_steps=totals.steady_steps,
        compile_steps=len(totals.compile_spans),
        last_step=totals.last_step,
        batches=totals.batches,
        examples=totals.examples,
        wall_seconds=wall,
        first_batch_seconds=first_batch,
        compile_seconds=totals.compile_seconds,
        step_seconds=step,
        input_wait_seconds=wait,
        compute_seconds=compute,
        host_seconds=totals.host_seconds,
        validation_seconds=validation,
        epoch_end_seconds=epoch_end,
        unattributed_seconds=wall - sum(parts),
        watch_overhead_seconds=frame.watch_overhead_seconds,
        input_wait_share=_share(totals) if compute is not None else None,
        input_wait_p50_seconds=p50,
        input_wait_p95_seconds=p95,
        input_wait_max_seconds=None if p50 is None else totals.steady_wait_max_seconds,
        goodput=None if compute is None else _ratio(compute, wall),
        ceiling_speedup=_ceiling(totals) if compute is not None else None,
        batches_per_second=_ratio(totals.steady_batches, totals.steady_seconds),
        examples_per_second=_ratio(totals.steady_examples, totals.steady_seconds),
        pace_batches_per_second=_pace(totals.steady_paces),
        pace_noise=_pace_noise(totals.steady_paces),
        typical_steps=totals.typical_steps if compute is not None else (),
        sources_disagreement_seconds=_median(frame.disagreements_seconds),
        estimated=ESTIMATED_FIELDS if totals.estimated_seconds > ESTIMATED_SHARE * wall and wait is not None else (),
        notes=_notes(frame, wait),
    )


def _notes(frame: EpochFrame, wait: float | None) -> tuple[str, ...]:
    unexplained = (TOO_FEW_READINGS,) if wait is None and not frame.notes else ()
    return frame.notes + unexplained + ((SUBMISSION_ONLY,) if frame.submission_only else ())


def _share(totals: StepTotals) -> float | None:
    return _ratio(totals.steady_wait_sum_seconds, totals.steady_seconds)


def _ceiling(totals: StepTotals) -> float | None:
    return _ratio(totals.steady_seconds, totals.steady_seconds - totals.steady_wait_sum_seconds)


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole > 0 else None


def _percentiles(waits: Floats) -> tuple[float | None, float | None]:
    if not len(waits):
        return None, None
    p50, p95 = np.percentile(waits, (50, 95))
    return float(p50), float(p95)


def _pace(blocks: Floats) -> float | None:
    return _ratio(float(blocks[:, 1].sum()), float(blocks[:, 0].sum()))


def _pace_noise(blocks: Floats) -> float | None:
    """Standard error of the mean of the blocks' times a batch, as a share of it; `None` with fewer than two blocks."""
    if len(blocks) < 2:
        return None
    times = blocks[:, 0] / blocks[:, 1]
    return float(times.std(ddof=1) / np.sqrt(len(times)) / times.mean()) if times.mean() > 0 else None


def _median(values: tuple[float, ...]) -> float | None:
    return float(np.median(values)) if values else None


def _without_steps(frame: EpochFrame, wall: float) -> EpochSummary:
    validation = None if frame.test_end_seconds is None else frame.test_end_seconds - frame.begin_seconds
    rest = wall - (validation or 0.0)
    return EpochSummary(
        epoch=frame.epoch,
        wall_seconds=wall,
        # Most likely the first batch never came.
        first_batch_seconds=rest if frame.is_timed else 0.0,
        validation_seconds=validation,
        unattributed_seconds=0.0 if frame.is_timed else rest,
        watch_overhead_seconds=frame.watch_overhead_seconds,
        notes=frame.notes,
    )
