# SPDX-License-Identifier: Apache-2.0
"""Pure arithmetic: an epoch's steps and boundaries in, its account out (docs/measuring.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keras_gpu_watch.records import Bools, EpochSummary, Floats, StepArray, StepKind

ESTIMATED_SHARE = 0.01
"""Fields are marked as estimates when more than this share of the wall time was split by an estimate."""
KNOWN_SHARE = 0.5
"""With a smaller share of the steps' waits known, the others are not estimated from them."""
WAITS_KEPT = 200_000
"""An epoch's percentiles are taken from this many of its waits at most, chosen at random."""

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
class StepTotals:
    """Sums over some consecutive steps of one epoch (seconds; `None` = not known)."""

    steps: int
    last_step: int
    """Optimizer iteration after the last step."""
    batches: int
    examples: float | None
    first_call_seconds: float
    last_done_seconds: float
    call_seconds: float
    """Time inside the train function."""
    compile_seconds: float
    compile_spans: Floats
    """Call and done of each step that compiled; shape (n, 2)."""
    first_wait_seconds: float
    """Wait of the epoch's first step, 0 when it isn't among these steps or not known."""
    input_wait_seconds: float | None
    """Of all steps but the first one."""
    host_seconds: float
    estimated_seconds: float
    """Calls whose split is an estimate."""
    steady_seconds: float
    """Wait, compute and host of the steady steps."""
    steady_steps: int
    steady_batches: int
    steady_examples: float | None
    steady_waits_seconds: Floats
    """Of the steady steps, or a random choice of them; empty where waits are not known."""
    steady_wait_sum_seconds: float
    steady_wait_max_seconds: float


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


def measure(steps: StepArray) -> StepTotals:
    """Add some steps up.

    Args:
        steps: At least one row of `STEP_DTYPE`, consecutive and of one epoch.

    Returns:
        Their sums. Waits that are not known are estimated from the known ones' compute, if at least half are known.
    """
    seconds = steps["done_seconds"] - steps["call_seconds"]
    compiling = steps["kind"] == StepKind.COMPILE
    wait, filled = _with_estimates(steps, seconds, compiling)
    known = not np.isnan(wait[~compiling]).any()
    begins = bool(np.isnan(steps["host_seconds"][0]))
    first_wait = float(np.nan_to_num(wait[0])) if begins else 0.0
    steady = steps["kind"] == StepKind.STEADY
    waits = wait[steady] if known else np.empty(0)
    return StepTotals(
        steps=len(steps),
        last_step=int(steps["step"][-1]),
        batches=int(steps["batches"].sum()),
        examples=_known(float(steps["examples"].sum())),
        first_call_seconds=float(steps["call_seconds"][0]),
        last_done_seconds=float(steps["done_seconds"][-1]),
        call_seconds=float(seconds.sum()),
        compile_seconds=float(steps["compile_seconds"].sum()),
        compile_spans=np.column_stack([steps["call_seconds"], steps["done_seconds"]])[compiling],
        first_wait_seconds=first_wait,
        input_wait_seconds=float(np.nansum(wait)) - first_wait if known else None,
        host_seconds=float(np.nansum(steps["host_seconds"])),
        estimated_seconds=float(seconds[filled | steps["estimated"]].sum()),
        steady_seconds=float((seconds + np.nan_to_num(steps["host_seconds"]))[steady].sum()),
        steady_steps=int(steady.sum()),
        steady_batches=int(steps["batches"][steady].sum()),
        steady_examples=_known(float(steps["examples"][steady].sum())),
        steady_waits_seconds=waits,
        steady_wait_sum_seconds=float(waits.sum()),
        steady_wait_max_seconds=float(waits.max(initial=0.0)),
    )


def merge(older: StepTotals, newer: StepTotals) -> StepTotals:
    """Sums over two consecutive pieces of one epoch.

    Args:
        older: The piece that came first.
        newer: The piece right after it.
    """
    return StepTotals(
        steps=older.steps + newer.steps,
        last_step=newer.last_step,
        batches=older.batches + newer.batches,
        examples=_sum_if_known(older.examples, newer.examples),
        first_call_seconds=older.first_call_seconds,
        last_done_seconds=newer.last_done_seconds,
        call_seconds=older.call_seconds + newer.call_seconds,
        compile_seconds=older.compile_seconds + newer.compile_seconds,
        compile_spans=np.concatenate([older.compile_spans, newer.compile_spans]),
        first_wait_seconds=older.first_wait_seconds + newer.first_wait_seconds,
        input_wait_seconds=_sum_if_known(older.input_wait_seconds, newer.input_wait_seconds),
        host_seconds=older.host_seconds + newer.host_seconds,
        estimated_seconds=older.estimated_seconds + newer.estimated_seconds,
        steady_seconds=older.steady_seconds + newer.steady_seconds,
        steady_steps=older.steady_steps + newer.steady_steps,
        steady_batches=older.steady_batches + newer.steady_batches,
        steady_examples=_sum_if_known(older.steady_examples, newer.steady_examples),
        steady_waits_seconds=_sample(older, newer),
        steady_wait_sum_seconds=older.steady_wait_sum_seconds + newer.steady_wait_sum_seconds,
        steady_wait_max_seconds=max(older.steady_wait_max_seconds, newer.steady_wait_max_seconds),
    )


def _sample(older: StepTotals, newer: StepTotals) -> Floats:
    """Waits of both pieces; where they are too many, a random choice in proportion to the steps they stand for.

    Every second one would not do: it may hit or miss each stall of a regular pattern.
    """
    pieces = (older, newer)
    if sum(len(piece.steady_waits_seconds) for piece in pieces) <= WAITS_KEPT:
        return np.concatenate([piece.steady_waits_seconds for piece in pieces])
    random = np.random.default_rng(older.steps)
    steps = older.steady_steps + newer.steady_steps
    wanted = [round(WAITS_KEPT * piece.steady_steps / steps) for piece in pieces]
    counts = [min(count, len(piece.steady_waits_seconds)) for count, piece in zip(wanted, pieces, strict=True)]
    return np.concatenate(
        [
            random.choice(piece.steady_waits_seconds, count, replace=False)
            for piece, count in zip(pieces, counts, strict=True)
        ]
    )


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
        sources_disagreement_seconds=_median(frame.disagreements_seconds),
        estimated=ESTIMATED_FIELDS if totals.estimated_seconds > ESTIMATED_SHARE * wall and wait is not None else (),
        notes=_notes(frame, wait),
    )


def _with_estimates(steps: StepArray, seconds: Floats, compiling: Bools) -> tuple[Floats, Bools]:
    """Each step's wait, and which of them were filled in: the call less the known steps' compute per batch."""
    wait = steps["input_wait_seconds"].copy()
    missing = np.isnan(wait) & ~compiling
    known = ~np.isnan(wait) & ~compiling
    if not missing.any() or known.sum() < KNOWN_SHARE * (~compiling).sum():
        return wait, np.zeros(len(steps), np.bool_)
    compute = float(np.median(steps["compute_seconds"][known] / steps["batches"][known]))
    guess = np.clip(seconds - compute * steps["batches"], 0.0, seconds)
    return np.where(missing, guess, wait), missing


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


def _median(values: tuple[float, ...]) -> float | None:
    return float(np.median(values)) if values else None


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def _sum_if_known(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


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
