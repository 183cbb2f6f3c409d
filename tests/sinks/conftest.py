# SPDX-License-Identifier: Apache-2.0
"""Records for the sinks' tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keras_gpu_watch.records import STEP_DTYPE, EpochSummary, StepArray, StepKind
from keras_gpu_watch.samples import (
    GPU_FIELDS,
    GPU_SAMPLE_DTYPE,
    HOST_FIELDS,
    HOST_SAMPLE_DTYPE,
    GpuSamples,
    HostSamples,
)


def _steps(
    count: int,
    first_step: int = 1,
    wait: object = 0.004,
    compute: object = 0.005,
    host: object = 0.001,
    start: float = 0.0,
) -> StepArray:
    chunk = np.zeros(count, STEP_DTYPE)
    chunk["step"] = np.arange(first_step, first_step + count)
    chunk["batches"] = 1
    chunk["examples"] = 32
    chunk["kind"] = StepKind.STEADY
    chunk["input_wait_seconds"] = wait
    chunk["compute_seconds"] = compute
    chunk["host_seconds"] = host
    call = np.nan_to_num(chunk["input_wait_seconds"]) + np.nan_to_num(chunk["compute_seconds"])
    chunk["done_seconds"] = start + np.cumsum(call + np.nan_to_num(chunk["host_seconds"]))
    chunk["call_seconds"] = chunk["done_seconds"] - call
    return chunk


def _epoch(epoch: int = 0, **changes: object) -> EpochSummary:
    fields: dict[str, object] = {
        "epoch": epoch,
        "steps": 100,
        "batches": 100,
        "wall_seconds": 10.0,
        "first_batch_seconds": 0.31,
        "compile_seconds": 0.0,
        "step_seconds": 9.0,
        "input_wait_seconds": 4.0,
        "compute_seconds": 5.0,
        "host_seconds": 0.5,
        "validation_seconds": None,
        "epoch_end_seconds": 0.19,
        "unattributed_seconds": 0.0,
        "watch_overhead_seconds": 0.001,
        "input_wait_share": 0.42,
        "input_wait_p50_seconds": 0.04,
        "input_wait_p95_seconds": 0.05,
        "input_wait_max_seconds": 0.06,
        "goodput": 0.5,
        "ceiling_speedup": 1.72,
        "batches_per_second": 10.0,
        "examples_per_second": 320.0,
        "sources_disagreement_seconds": None,
    }
    return EpochSummary(**{**fields, **changes})  # type: ignore[arg-type]


def _gpu_samples(times: object, gpus: int = 1, **readings: object) -> GpuSamples:
    seconds = np.atleast_1d(np.asarray(times, dtype=np.float64))
    rows = np.zeros(len(seconds) * gpus, GPU_SAMPLE_DTYPE)
    rows["gpu"] = np.tile(np.arange(gpus), len(seconds))
    # One is read after the other.
    rows["seconds"] = np.repeat(seconds, gpus) + 1e-4 * rows["gpu"]
    for number, field in enumerate(GPU_FIELDS):
        rows[field] = readings.get(field, 10.0 + number)
    return rows


def _host_samples(times: object, **readings: object) -> HostSamples:
    seconds = np.atleast_1d(np.asarray(times, dtype=np.float64))
    rows = np.zeros(len(seconds), HOST_SAMPLE_DTYPE)
    # The host is read after the GPUs.
    rows["seconds"] = seconds + 2e-3 if len(seconds) else seconds
    for number, field in enumerate(HOST_FIELDS):
        rows[field] = readings.get(field, 1.0 + number)
    return rows


@pytest.fixture
def make_gpu_samples() -> Callable[..., GpuSamples]:
    """Samples of `gpus` GPUs at the given times, in seconds; a reading may be one value or one for each row."""
    return _gpu_samples


@pytest.fixture
def make_host_samples() -> Callable[..., HostSamples]:
    """Samples of the host at the given times, in seconds."""
    return _host_samples


@pytest.fixture
def make_steps() -> Callable[..., StepArray]:
    """Steady steps of 10 ms, back to back, numbered from `first_step`."""
    return _steps


@pytest.fixture
def make_epoch() -> Callable[..., EpochSummary]:
    """An epoch's account with some of its fields changed."""
    return _epoch
