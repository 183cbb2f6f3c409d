# SPDX-License-Identifier: Apache-2.0
"""A training and its input pipeline as arithmetic: what an epoch would measure under any settings, without running it.

Stages run beside each other and beside the step, each as fast as its calls, its threads and the cores allow; bursts are
bridged by what the last prefetch holds.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keras_gpu_watch.findings import PipelineSummary, Stage, Verdict
from keras_gpu_watch.knobs import END, Knob, Knobs, Tunable
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.tuning import Observation, Tuner

STEPS = 200


@dataclass(frozen=True, kw_only=True)
class SimulatedStage:
    """A map; its work is for one batch, all calls together."""

    work_seconds: float
    is_waiting: bool = False
    calls: int | None = None
    """As written."""
    is_tunable: bool = True
    python: str | None = None
    limit: int | None = None
    element_bytes: float = 1000.0


@dataclass(kw_only=True)
class Simulation:
    """One training."""

    stages: tuple[SimulatedStage, ...]
    step_seconds: float = 0.010
    cores: float = 4.0
    pool: int | None = None
    prefetch: int | None = None
    """As written, at the end; `None`: the one that TensorFlow adds."""
    burst_seconds: float = 0.0
    burst_every: int = 20
    noise: float = 0.005
    """Relative standard error of an epoch's rate."""
    seed: int = 0
    cause: str | None = None
    """Of the verdict, where arithmetic on stages does not tell it."""
    is_measured: bool = True
    tells_waiting: bool = True
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    @property
    def tunable(self) -> Tunable:
        """What may be changed: the calls of each map, and a buffer at the end."""
        knobs = [
            Knob(
                index=index,
                label=f"map(stage_{index})",
                kind="parallel_calls",
                written=stage.calls,
                limit=stage.limit,
                element_bytes=stage.element_bytes,
                python=stage.python,
            )
            for index, stage in enumerate(self.stages)
            if stage.is_tunable
        ]
        place = END if self.prefetch is None else len(self.stages)
        buffer = Knob(index=place, label="prefetch", kind="buffer_size", written=self.prefetch, element_bytes=1000.0)
        return Tunable(shape="simulated", knobs=(*knobs, buffer), private_threadpool_size=self.pool)

    def calls(self, knobs: Knobs) -> list[int]:
        """Calls at a time of each stage, as far as there are threads for them."""
        wanted = [knobs.parallel_calls.get(index) or stage.calls or 1 for index, stage in enumerate(self.stages)]
        threads = knobs.private_threadpool_size or self.pool or int(self.cores)
        return [min(each, threads) for each in wanted]

    def slowest_seconds(self, knobs: Knobs) -> float:
        """Time a batch of the slowest stage, or of the cores if all that computes is more than they can do."""
        each = []
        for stage, calls in zip(self.stages, self.calls(knobs), strict=True):
            each.append(stage.work_seconds / (1 if stage.python == "py_function" else calls))
        computing = sum(stage.work_seconds for stage in self.stages if not stage.is_waiting)
        return max(*each, computing / self.cores, 0.0)

    def period_seconds(self, knobs: Knobs) -> float:
        """From one batch to the next, in the mean."""
        # What bursts take can be fetched ahead, but not be gone.
        mean = max(self.step_seconds, self.slowest_seconds(knobs) + self.burst_seconds / self.burst_every)
        held = self.held(knobs)
        unbridged = max(0.0, self.burst_seconds - held * self.step_seconds) if self.burst_seconds else 0.0
        return mean + unbridged / self.burst_every

    def held(self, knobs: Knobs) -> int:
        """Batches that the last prefetch holds."""
        place = END if self.prefetch is None else len(self.stages)
        return knobs.buffer_sizes.get(place, self.prefetch or 2)

    def rate(self, knobs: Knobs) -> float:
        """Batches per second, without noise."""
        return 1 / self.period_seconds(knobs)

    def best_rate(self) -> float:
        """Of an exhaustive grid of settings."""
        calls = (1, 2, 4, 8, 16, 32, 64, 128)
        tunable = [index for index, stage in enumerate(self.stages) if stage.is_tunable]
        place = END if self.prefetch is None else len(self.stages)
        rates = []
        for chosen in itertools.product(calls, repeat=len(tunable)):
            limits = [self.stages[index].limit or 128 for index in tunable]
            by_stage = {index: min(each, most) for index, each, most in zip(tunable, chosen, limits, strict=True)}
            for size in (1, 2, 8, 32, 128):
                pool = max(sum(chosen) + 4, self.pool or 0)
                knobs = Knobs(parallel_calls=by_stage, buffer_sizes={place: size}, private_threadpool_size=pool)
                rates.append(self.rate(knobs))
        return max(*rates, self.rate(Knobs()))

    def epoch(self, number: int, knobs: Knobs, **changes: Any) -> Observation:
        """What an epoch with some settings measures."""
        period = self.period_seconds(knobs) * (1 + self.noise * self.random.standard_normal())
        wait = max(0.0, period - self.step_seconds)
        stages = tuple(self._stage(index, knobs, wait > 0) for index in range(len(self.stages)))
        longest = self.burst_seconds if self.burst_seconds else wait
        summary = EpochSummary(
            epoch=number,
            steps=STEPS,
            steady_steps=STEPS,
            batches=STEPS,
            wall_seconds=STEPS * period,
            first_batch_seconds=0.05,
            input_wait_share=wait / period,
            input_wait_p50_seconds=0.0 if self.burst_seconds else wait,
            input_wait_max_seconds=longest,
            batches_per_second=1 / period,
            pace_batches_per_second=1 / period,
            pace_noise=self.noise,
            pipeline=PipelineSummary(
                stages=stages if self.is_measured else (), slowest_seconds_per_batch=self.slowest_seconds(knobs)
            ),
            verdict=self._verdict(wait / period, stages),
        )
        observation = Observation(
            summary=summary,
            knobs=knobs,
            is_first=number == 0,
            usable_cores=self.cores,
            process_memory_bytes=1e9,
            free_memory_bytes=10e9,
        )
        return replace(observation, **changes)

    def _stage(self, index: int, knobs: Knobs, waits: bool) -> Stage:
        stage, calls = self.stages[index], self.calls(knobs)
        times = [each.work_seconds / count for each, count in zip(self.stages, calls, strict=True)]
        return Stage(
            index=index,
            op="map",
            function=f"stage_{index}",
            source=f"train.py:{index + 1}",
            python=stage.python,
            num_parallel_calls=stage.calls,
            busy_seconds_per_batch=stage.work_seconds,
            parallelism=float(calls[index]),
            is_waiting=stage.is_waiting if self.tells_waiting else None,
            bytes_per_element=stage.element_bytes,
            wait_share=float(index == int(np.argmax(times))) if waits else None,
        )

    def _verdict(self, share: float, stages: tuple[Stage, ...]) -> Verdict:
        if share < 0.05:
            return Verdict(kind="compute_bound")
        is_bursty = self.burst_seconds > 0 and self.slowest_seconds(Knobs()) <= self.step_seconds
        blamed = next((stage.index for stage in stages if stage.wait_share), None)
        return Verdict(
            kind="bursty_input" if is_bursty else "input_bound",
            cause=self.cause or ("shallow_prefetch" if is_bursty else None),
            stage_index=blamed,
        )


def train(simulation: Simulation, tuner: Tuner, epochs: int = 9, first: int = 0) -> list[str]:
    """One `fit`; gives what the console would show."""
    lines = [] if first else tuner.begin(simulation.tunable, 10e9)
    for number in range(first, first + epochs):
        lines += tuner.judge(simulation.epoch(number, tuner.knobs))
    return lines


def is_close(found: float, best: float) -> bool:
    """Whether a rate is as good as the best, as tuning promises it."""
    return found >= 0.95 * best and math.isfinite(best)
