# SPDX-License-Identifier: Apache-2.0
"""What the rules look at: an epoch, those before it, the machine, and a few figures derived from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.findings import PipelineSummary, Stage
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.samples import Devices, Distribution, HostSummary


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Where a steady batch's time goes, in seconds."""

    wait_seconds: float
    rest_seconds: float
    """Compute and host: what is left if input were free. More than 0."""

    @property
    def period_seconds(self) -> float:
        """From one batch to the next."""
        return self.wait_seconds + self.rest_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The epoch that is judged, and all that may explain it."""

    epoch: EpochSummary
    """Or the sum of several."""
    parts: tuple[EpochSummary, ...] = ()
    """The epochs that it is the sum of; empty for a single one."""
    earlier: tuple[EpochSummary, ...] = ()
    devices: Devices
    info: RunInfo | None = None

    @property
    def is_first(self) -> bool:
        """Whether the epoch is its fit's first one, in which caches are cold and the step is compiled."""
        return not self.earlier or self.epoch.epoch <= self.earlier[-1].epoch

    @property
    def has_steps(self) -> bool:
        """Whether there are enough steady steps for a claim on them."""
        return self.epoch.steady_steps >= LIMITS.min_steady_steps

    @property
    def has_seconds(self) -> bool:
        """Whether the epoch is long enough for a claim on its parts."""
        return self.epoch.wall_seconds >= LIMITS.min_wall_seconds

    @property
    def wait_share(self) -> float | None:
        """Share of the input wait in steady steps; `None` without enough of them, or not measured.

        A single stall that is more than half of all waiting is left out: it says nothing of the other steps.
        """
        share = self.epoch.input_wait_share if self.has_steps else None
        longest, rate, steps = self.epoch.input_wait_max_seconds, self.epoch.batches_per_second, self.epoch.steps
        if share is None or longest is None or not rate or not steps:
            return share
        seconds = self.epoch.steady_steps * self.epoch.batches / steps / rate
        if longest <= LIMITS.explained_share * share * seconds:
            return share
        return ratio(share * seconds - longest, seconds - longest)

    @property
    def host_share(self) -> float:
        """Share of the host time in steps."""
        return ratio(self.epoch.host_seconds, self.epoch.step_seconds + self.epoch.host_seconds)

    @property
    def times(self) -> BatchTimes | None:
        """Of a steady batch; `None` where they are not known."""
        share, rate = self.epoch.input_wait_share, self.epoch.batches_per_second
        if share is None or not rate or not 0 <= share < 1:
            return None
        times = BatchTimes(share / rate, (1 - share) / rate)
        return times if 0 < times.rest_seconds < math.inf else None

    @property
    def ceiling(self) -> float | None:
        """How many times faster steps would go if input were free."""
        return self.epoch.ceiling_speedup

    @property
    def pipeline(self) -> PipelineSummary:
        """The input pipeline; one without stages where nothing is known of it."""
        return self.epoch.pipeline or PipelineSummary(input_kind="unknown")

    @property
    def host(self) -> HostSummary:
        """The host's statistics, without any where they are not sampled."""
        return self.epoch.host or HostSummary()

    @property
    def usable_cores(self) -> float | None:
        """What this process may use."""
        return self.devices.host.usable_cores if self.devices.host else None

    @property
    def on_accelerator(self) -> bool | None:
        """Whether the model lives on a GPU or TPU."""
        return self.info.on_accelerator if self.info else None

    @property
    def blamed(self) -> Stage | None:
        """The stage that the training waits for: the one with the largest share of the wait.

        Where nothing is measured, the only stage with Python code in it: it is what sets such a pipeline's pace.
        """
        shared = [stage for stage in self.pipeline.stages if stage.wait_share]
        if shared:
            return max(shared, key=lambda stage: stage.wait_share or 0.0)
        python = [stage for stage in self.pipeline.stages if stage.python]
        return python[0] if len(python) == 1 and not self.is_measured else None

    @property
    def is_measured(self) -> bool:
        """Whether any stage's work is known."""
        return any(stage.busy_seconds_per_batch is not None for stage in self.pipeline.stages)

    @property
    def explained_wait_seconds(self) -> float:
        """Wait for a batch that the stages' mean times explain: serial work, and what does not fit beside the step."""
        serial = self.pipeline.serial_seconds_per_batch or 0.0
        slowest = self.pipeline.slowest_seconds_per_batch or 0.0
        rest = self.times.rest_seconds if self.times else 0.0
        return serial + max(0.0, slowest - rest - serial)

    @property
    def is_wait_explained(self) -> bool:
        """Whether the stages' mean times explain most of the wait."""
        wait = self.times.wait_seconds if self.times else 0.0
        return self.explained_wait_seconds >= LIMITS.explained_share * wait

    @property
    def lock_share(self) -> float | None:
        """Share of the time in which Python code other than the training's own held the interpreter lock.

        The training's thread may have held it in the host time, and in the step where that is run eagerly. The share is
        of the time besides.
        """
        percent = mean(self.host.interpreter_busy_percent)
        if percent is None:
            return None
        own = self.host_share
        if self.info and self.info.run_eagerly:
            own = 1 - (self.epoch.input_wait_share or 0.0)
        return clip((percent / 100 - own) / (1 - own)) if own < 1 else 0.0

    def share_of_wall(self, seconds: float) -> float:
        """A part of the epoch's wall time, 0..1."""
        return ratio(seconds, self.epoch.wall_seconds)

    def speedup_without(self, seconds: float) -> float | None:
        """How many times faster the epoch would be without some of its seconds; `None`: nothing else is left."""
        rest = self.epoch.wall_seconds - min(seconds, self.epoch.wall_seconds)
        return max(1.0, self.epoch.wall_seconds / rest) if rest > 0 else None

    def below(self, stage: Stage) -> tuple[Stage, ...]:
        """All stages that a stage reads from, however far."""
        stages = self.pipeline.stages
        found: dict[int, Stage] = {}
        waiting = list(stage.inputs)
        while waiting:
            index = waiting.pop()
            if 0 <= index < len(stages) and index not in found:
                found[index] = stages[index]
                waiting.extend(stages[index].inputs)
        return tuple(found.values())


def mean(values: Distribution | None) -> float | None:
    """The mean of samples, where there are some."""
    return None if values is None or math.isnan(values.mean) else values.mean


def clip(share: float) -> float:
    """A share within 0..1."""
    return min(max(share, 0.0), 1.0)


def ratio(part: float, whole: float) -> float:
    """Share of a part, 0..1; 0 of nothing."""
    return clip(part / whole) if whole > 0 else 0.0


def work_seconds(context: Context, stage: Stage) -> float | None:
    """Work of the stage to blame for a batch, all its calls together; `None`: neither it nor batch times are known.

    The slowest part of a pipeline is at work all the time. If what is counted explains little of the wait, work of that
    stage was not counted, as that of a dataset which `flat_map` opened and closed between two looks.
    """
    busy, times = stage.busy_seconds_per_batch, context.times
    if times is None:
        return busy
    if busy is not None and context.is_wait_explained:
        return busy
    return max(busy or 0.0, times.period_seconds * calls_at_a_time(stage))


def stage_seconds(stage: Stage) -> float | None:
    """Time a batch that a stage needs with its calls at a time; `None`: not measured."""
    if stage.busy_seconds_per_batch is None:
        return None
    return stage.busy_seconds_per_batch / calls_at_a_time(stage)


def calls_at_a_time(stage: Stage) -> float:
    """Calls of a stage that may run at the same time; 1 of one without such a knob."""
    return max(1.0, stage.parallelism or 1.0)


def busy_seconds(stages: Sequence[Stage]) -> float:
    """Work of some stages for a batch, as far as it is measured."""
    return sum(stage.busy_seconds_per_batch or 0.0 for stage in stages)
