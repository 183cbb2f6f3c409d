# SPDX-License-Identifier: Apache-2.0
"""Accounts of epochs whose reason for being slow is known, as records: nothing runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.rule import Rule
from keras_gpu_watch.findings import PipelineSummary, Stage
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.samples import (
    Devices,
    Distribution,
    GpuDevice,
    GpuSummary,
    HostDevice,
    HostSummary,
)

GIB = 2**30


def an_epoch(
    *, wait: float | None = 0.0, compute: float = 0.010, hooks: float = 0.0, steps: int = 100, **changes: Any
) -> EpochSummary:
    """An epoch of steady steps of one batch, from a step's seconds; its parts add up."""
    rest = compute + hooks
    period = rest + (wait or 0.0)
    parts = sum(
        changes.get(name) or 0.0
        for name in ("first_batch_seconds", "compile_seconds", "validation_seconds", "epoch_end_seconds")
    )
    known = {
        "epoch": 0,
        "steps": steps,
        "steady_steps": steps,
        "batches": steps,
        "wall_seconds": steps * period + parts,
        "step_seconds": steps * (compute + (wait or 0.0)),
        "input_wait_seconds": None if wait is None else steps * wait,
        "compute_seconds": None if wait is None else steps * compute,
        "host_seconds": steps * hooks,
        "input_wait_share": None if wait is None else wait / period,
        "input_wait_p50_seconds": wait,
        "input_wait_p95_seconds": wait,
        "input_wait_max_seconds": wait,
        "ceiling_speedup": None if wait is None else period / rest,
        "batches_per_second": 1 / period,
    }
    return EpochSummary(**{**known, **changes})


def constant(value: float | None) -> Distribution | None:
    """Samples that are all the same."""
    return None if value is None else Distribution(value, value, value, value)


def a_host(*, cpu: float | None = None, lock: float | None = None, memory: float | None = 50.0) -> HostSummary:
    """Percents of this process's CPU time, of the interpreter lock, of the memory in use."""
    return HostSummary(
        samples=20,
        process_cpu_percent=constant(cpu),
        interpreter_busy_percent=constant(lock),
        memory_max_percent=memory,
    )


def a_machine(cores: float = 8.0, *, gpus: tuple[GpuDevice, ...] = ()) -> Devices:
    """A machine with 16 GiB of memory."""
    host = HostDevice(usable_cores=cores, usable_memory_bytes=16 * GIB)
    return Devices(status="sampled" if gpus else "no gpu", gpus=gpus, host=host)


def some_info(**changes: Any) -> RunInfo:
    known = {"run_dir": None, "start_step": 0, "steps_per_execution": 1, "resumed": False, "on_accelerator": True}
    return RunInfo(**{**known, **changes})


def a_gpu(use: float | None, *, p95: float | None = None, activity: float | None = None, **changes: Any) -> GpuSummary:
    """A GPU by its mean utilization in percent."""
    spread = None if use is None else Distribution(use, use, use, use if p95 is None else p95)
    return GpuSummary(gpu=0, samples=20, utilization_percent=spread, sm_activity_percent=constant(activity), **changes)


def a_pipeline(*stages: Stage, **changes: Any) -> PipelineSummary:
    """Stages one after the other; what is not measured of the whole follows from them, all of them working ahead."""
    chained = [replace(stage, index=index, inputs=_input_of(stage, index)) for index, stage in enumerate(stages)]
    seconds = [
        stage.busy_seconds_per_batch / (stage.parallelism or 1.0)
        for stage in chained
        if stage.busy_seconds_per_batch is not None
    ]
    known = {
        "serial_seconds_per_batch": 0.0 if seconds else None,
        "slowest_seconds_per_batch": max(seconds, default=None),
    }
    return PipelineSummary(**{"stages": tuple(chained), "polls": 5, **known, **changes})


def _input_of(stage: Stage, index: int) -> tuple[int, ...]:
    return stage.inputs or ((index - 1,) if index else ())


def a_source(op: str = "from_tensor_slices", **changes: Any) -> Stage:
    known = {"busy_seconds_per_batch": 0.0001, "wait_share": 0.0, "elements_per_batch": 32.0, "elements": 3200.0}
    return Stage(**{"index": 0, "op": op, **known, **changes})


def a_map(busy: float | None, **changes: Any) -> Stage:
    """The map to blame: `busy` seconds a batch of 32."""
    known: dict[str, Any] = {
        "op": "map",
        "function": "decode",
        "source": "train.py:42",
        "busy_seconds_per_batch": busy,
        "wait_share": 1.0 if busy is not None else None,
        "elements_per_batch": 32.0,
        "elements": 3200.0,
    }
    return Stage(**{"index": 1, **known, **changes})


def a_batch(**changes: Any) -> Stage:
    known = {"op": "batch", "batch_size": 32, "busy_seconds_per_batch": 0.0002, "wait_share": 0.0}
    return Stage(**{"index": 2, "elements_per_batch": 1.0, "elements": 100.0, **known, **changes})


def a_prefetch(size: int = 2) -> Stage:
    return Stage(index=3, op="prefetch", buffer_size=size, buffer_limit=float(size), busy_seconds_per_batch=0.0)


def a_context(epoch: EpochSummary | None = None, *earlier: EpochSummary, **changes: Any) -> Context:
    known = {"devices": a_machine(), "info": some_info()}
    return Context(**{"epoch": epoch or an_epoch(), "earlier": earlier, **known, **changes})


def find_by(rule: Rule, context: Context) -> Any:
    """A rule's verdict, or `None`: tests say by themselves whether there is one."""
    return rule.find(context)
