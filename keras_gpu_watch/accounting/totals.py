# SPDX-License-Identifier: Apache-2.0
"""Sums over some consecutive steps of one epoch; two such sums can be merged."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keras_gpu_watch.accounting.typical import nearest_stretch, typical_stretch
from keras_gpu_watch.findings import StepTimes
from keras_gpu_watch.records import Bools, Floats, Ints, StepArray, StepKind

KNOWN_SHARE = 0.5
"""With a smaller share of the steps' waits known, the others are not estimated from them."""
STALLED_SHARE = 0.05
"""Share of the steady steps whose compute and host time may be a stall that tells nothing of the others."""
BLOCKS = 12
"""Pieces of the steady steps whose rates are compared, to tell how much of a difference may be chance."""
WAITS_KEPT = 200_000
"""An epoch's percentiles are taken from this many of its waits at most, chosen at random."""


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
    steady_paces: Floats = field(default_factory=lambda: np.empty((0, 2)))
    """Of each of some blocks of consecutive steady steps: the seconds of its batches without stalls outside of the
    input, and their number; shape (n, 2), empty where waits are not known."""
    typical_steps: tuple[StepTimes, ...] = ()


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
    whole_seconds = seconds + np.nan_to_num(steps["host_seconds"])
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
        steady_seconds=float(whole_seconds[steady].sum()),
        steady_paces=_paces(whole_seconds[steady], wait[steady], steps["batches"][steady]),
        steady_steps=int(steady.sum()),
        steady_batches=int(steps["batches"][steady].sum()),
        steady_examples=_known(float(steps["examples"][steady].sum())),
        steady_waits_seconds=waits,
        steady_wait_sum_seconds=float(waits.sum()),
        steady_wait_max_seconds=float(waits.max(initial=0.0)),
        typical_steps=typical_stretch(steps, steady, wait),
    )


def merge(older: StepTotals, newer: StepTotals) -> StepTotals:
    """Sums over two consecutive pieces of one epoch.

    Args:
        older: The piece that came first.
        newer: The piece right after it.
    """
    steps = older.steady_steps + newer.steady_steps
    wait_sum_seconds = older.steady_wait_sum_seconds + newer.steady_wait_sum_seconds
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
        steady_paces=np.concatenate([older.steady_paces, newer.steady_paces]),
        steady_steps=steps,
        steady_batches=older.steady_batches + newer.steady_batches,
        steady_examples=_sum_if_known(older.steady_examples, newer.steady_examples),
        steady_waits_seconds=_sample(older, newer),
        steady_wait_sum_seconds=wait_sum_seconds,
        steady_wait_max_seconds=max(older.steady_wait_max_seconds, newer.steady_wait_max_seconds),
        typical_steps=nearest_stretch((older.typical_steps, newer.typical_steps), wait_sum_seconds / max(steps, 1)),
    )


def _paces(seconds: Floats, wait: Floats, batches: Ints) -> Floats:
    """Blocks and not single steps, because steps in a row share their luck."""
    count = min(BLOCKS, len(seconds) // 2)
    if count < 2 or np.isnan(wait).any():
        return np.empty((0, 2))
    rest = (seconds - wait) / batches
    usual = wait + batches * np.minimum(rest, np.quantile(rest, 1 - STALLED_SHARE, method="lower"))
    pieces = zip(np.array_split(usual, count), np.array_split(batches, count), strict=True)
    return np.array([(piece.sum(), taken.sum()) for piece, taken in pieces])


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


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def _sum_if_known(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
