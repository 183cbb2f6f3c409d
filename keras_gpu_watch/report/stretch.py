# SPDX-License-Identifier: Apache-2.0
"""A typical stretch of steps on one time axis: what the pictures of an epoch show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from keras_gpu_watch.findings import StepTimes
from keras_gpu_watch.records import EpochSummary

BlockKind = Literal["host", "idle", "compute", "prepare"]

NO_PICTURE = "No picture of the steps: it is not known how long each of them waited for its batch."
PREPARE_UNKNOWN = "(its time is not known)"
MOST_TICKS = 6
# Below this share of the stretch, work between steps is not worth a word.
_NAMED_SHARE = 0.01
# A step waited if it did for this part of the time that a batch takes; less is what it costs to fetch one.
_WAITED_SHARE = 0.05
_UNITS = ((10.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "us"))


@dataclass(frozen=True, slots=True)
class Block:
    """Something that takes some of the time."""

    kind: BlockKind
    number: int
    """Of the step that it belongs to, from 1."""
    begin_seconds: float
    """On the stretch's axis, like the end."""
    end_seconds: float

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end_seconds - self.begin_seconds


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some steps in a row, and the preparing of their batches."""

    train: tuple[Block, ...]
    """Without gaps, from 0 to the end."""
    prepare: tuple[Block, ...]
    """Empty where it is not known how long a batch takes."""
    batches_per_step: int
    worker: str
    """What idles while a step waits: `"the GPU"`, `"the GPUs"` or `"training"`."""

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.train[-1].end_seconds

    def share(self, kind: BlockKind) -> float:
        """Part of the time that training spends on something, 0..1."""
        return sum(block.seconds for block in self.train if block.kind == kind) / self.seconds


@dataclass(frozen=True, slots=True)
class Axis:
    """Where a time axis has its ticks."""

    ticks_seconds: tuple[float, ...]
    labels: tuple[str, ...]
    """One for each tick; the last one has the unit."""


def stretch_of(epoch: EpochSummary) -> Stretch | None:
    """Lay an epoch's typical steps out on a time axis.

    Args:
        epoch: The epoch's account.

    Returns:
        The stretch; `None` where there are no steps whose times are all known.
    """
    steps = epoch.typical_steps
    times = [time for step in steps for time in (step.host_seconds, step.input_wait_seconds, step.compute_seconds)]
    if not all(math.isfinite(time) and time >= 0 for time in times) or not sum(times) > 0:
        return None
    train = tuple(_train(steps))
    batches = max(round(epoch.batches / epoch.steps), 1) if epoch.steps else 1
    slowest = None if epoch.pipeline is None else epoch.pipeline.slowest_seconds_per_batch
    prepare = _prepare(steps, slowest * batches) if slowest is not None and 0 < slowest < math.inf else ()
    worker = ("training", "the GPU", "the GPUs")[min(len(epoch.gpus), 2)]
    return Stretch(train, prepare, batches, worker)


def axis_of(seconds: float) -> Axis:
    """Round times that divide a stretch into a few parts.

    Args:
        seconds: Length of the stretch; above 0.

    Returns:
        Ticks from 0 to the last one that is not beyond the stretch.
    """
    magnitude = 10.0 ** math.floor(math.log10(seconds / MOST_TICKS))
    distance = next(step * magnitude for step in (1, 2, 5, 10) if seconds / (step * magnitude) <= MOST_TICKS)
    ticks = tuple(count * distance for count in range(int(seconds / distance + 1e-9) + 1))
    _, scale, unit = next(row for row in _UNITS if seconds >= row[0])
    labels = [f"{tick / scale:.6g}" for tick in ticks]
    return Axis(ticks, (*labels[:-1], f"{labels[-1]} {unit}"))


def sentence(stretch: Stretch) -> str:
    """What the picture shows, in one sentence."""
    idle, host = stretch.share("idle"), stretch.share("host")
    verb = "idle" if stretch.worker == "the GPUs" else "idles"
    steps = len({block.number for block in stretch.train})
    head = f"In {'this step' if steps == 1 else f'these {steps} steps'} {stretch.worker} {verb}"
    if stretch.worker == "training":
        # Callbacks are training's own work: it is only idle while it waits.
        rest = f"; {percent(host)} goes to callbacks and other work between steps" if host >= _NAMED_SHARE else ""
        return f"{head} {percent(idle)} of the time, waiting for batches{rest}."
    if host < _NAMED_SHARE:
        return f"{head} {percent(idle)} of the time, waiting for batches."
    return (
        f"{head} {percent(idle + host)} of the time: {percent(idle)} waiting for batches, {percent(host)} during "
        "callbacks and other work between steps."
    )


def numbers_words(stretch: Stretch) -> str:
    """What the numbers in the picture count."""
    last = max(block.number for block in stretch.train)
    numbers = "1" if last == 1 else f"1-{last}"
    if stretch.batches_per_step > 1:
        return f"{numbers}: step{'' if last == 1 else 's'} of {stretch.batches_per_step} batches"
    return f"{numbers}: batch{'' if last == 1 else 'es'}"


def percent(share: float) -> str:
    """A share in words."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def _train(steps: Sequence[StepTimes]) -> Iterator[Block]:
    now = 0.0
    for number, step in enumerate(steps, start=1):
        parts: tuple[tuple[BlockKind, float], ...] = (
            ("host", step.host_seconds),
            ("idle", step.input_wait_seconds),
            ("compute", step.compute_seconds),
        )
        for kind, seconds in parts:
            if seconds > 0:
                yield Block(kind, number, now, now + seconds)
            now += seconds


def _prepare(steps: Sequence[StepTimes], seconds: float) -> tuple[Block, ...]:
    """When each batch was prepared.

    A step that waited got its batch when the wait ended, and until then it was being prepared. The others' batches may
    have been ready any time before: they are put as late as would do, for nothing tells when it was.
    """
    calls, readies = _moments(steps)
    waited = [step.input_wait_seconds >= _WAITED_SHARE * seconds for step in steps]
    blocks: list[Block] = []
    following = math.inf
    for number in range(len(steps) - 1, -1, -1):
        end = min(readies[number], following)
        begin = min(end - seconds, calls[number]) if waited[number] else end - seconds
        # Nothing is prepared before the batch that a step before waited for.
        earliest = max((ready for ready, did in zip(readies[:number], waited, strict=False) if did), default=0.0)
        begin = max(begin, earliest)
        if end > begin:
            blocks.append(Block("prepare", number + 1, begin, end))
        following = begin
    return tuple(reversed(blocks))


def _moments(steps: Sequence[StepTimes]) -> tuple[list[float], list[float]]:
    """When each step asked for its batch, and when it got it."""
    calls, readies = [], []
    now = 0.0
    for step in steps:
        calls.append(now + step.host_seconds)
        readies.append(calls[-1] + step.input_wait_seconds)
        now = readies[-1] + step.compute_seconds
    return calls, readies
