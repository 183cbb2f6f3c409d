# SPDX-License-Identifier: Apache-2.0
"""Epochs whose typical steps are known."""

from __future__ import annotations

from collections.abc import Sequence

from keras_gpu_watch.findings import PipelineSummary, StepTimes
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.samples import GpuSummary


def epoch_of(
    steps: Sequence[tuple[float, float, float]],
    slowest_seconds: float | None = None,
    gpus: int = 0,
    batches_per_step: int = 1,
) -> EpochSummary:
    """An epoch with typical steps of (host, input wait, compute) seconds."""
    return EpochSummary(
        epoch=0,
        wall_seconds=1.0,
        steps=100,
        batches=100 * batches_per_step,
        typical_steps=tuple(StepTimes(*step) for step in steps),
        pipeline=None if slowest_seconds is None else PipelineSummary(slowest_seconds_per_batch=slowest_seconds),
        gpus=tuple(GpuSummary(gpu=number) for number in range(gpus)),
    )


INPUT_BOUND = epoch_of([(0.0, 0.03, 0.02)] * 8, slowest_seconds=0.05, gpus=1)
COMPUTE_BOUND = epoch_of([(0.0005, 0.0005, 0.049)] * 8, slowest_seconds=0.03, gpus=1)
BURSTY = epoch_of([(0.0, 0.0, 0.01)] * 2 + [(0.0, 0.09, 0.01)] + [(0.0, 0.0, 0.01)] * 5, slowest_seconds=0.008, gpus=2)
HOST_BOUND = epoch_of([(0.03, 0.0, 0.01)] * 8, slowest_seconds=0.008)
ONE_STEP = epoch_of([(0.0, 0.03, 0.02)])
SHORT = epoch_of([(0.00001, 0.00002, 0.00002)] * 8, slowest_seconds=0.00005)
LONG = epoch_of([(0.1, 2.0, 0.9)] * 8, slowest_seconds=0.1875, gpus=1, batches_per_step=16)
STALLED = epoch_of([(0.0, 0.5, 0.001)] * 8, slowest_seconds=0.501)
ALL = (INPUT_BOUND, COMPUTE_BOUND, BURSTY, HOST_BOUND, ONE_STEP, SHORT, LONG, STALLED)
NAN = float("nan")
UNKNOWN = (epoch_of([]), epoch_of([(0.0, NAN, 0.02)]), epoch_of([(0.0, 0.0, 0.0)]), epoch_of([(0.0, -1.0, 2.0)]))
