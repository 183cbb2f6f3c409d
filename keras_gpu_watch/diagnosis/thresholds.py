# SPDX-License-Identifier: Apache-2.0
"""Every number that a verdict rests on, with the reason for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _limit(value: float, source: str) -> Any:
    return field(default=value, metadata={"source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits of the rules; a field's metadata name the `source`. Shares are 0..1, percents 0..100 as NVML's."""

    moderately_input_share: float = _limit(0.05, "XProf: a step that waits less of its time is not input-bound")
    highly_input_share: float = _limit(0.20, "XProf: from here on highly input-bound")
    min_steady_steps: int = _limit(20, "TraceML: fewer steps allow no strong claim")
    min_wall_seconds: float = _limit(
        1.0, "Ours: what rests on seconds instead of steps must not rest on the start of a few threads"
    )
    host_share: float = _limit(0.10, "TraceML: warns when this much of a step is neither input nor compute")
    high_host_share: float = _limit(0.20, "TraceML: the same, critical")
    epoch_start_share: float = _limit(0.10, "Ours: nothing is trained meanwhile, as in host time")
    high_epoch_start_share: float = _limit(0.20, "Ours: as for host time")
    compile_share: float = _limit(0.10, "Ours: as for host time")
    usual_compile_steps: int = _limit(
        3, "Ours: a full batch, a short last one, and a short last call with several batches a call"
    )
    validation_share: float = _limit(
        0.25,
        "Ours: a forward pass over a fifth of the data costs about a tenth of an epoch; more than twice that is "
        "worth a word",
    )
    high_validation_share: float = _limit(0.50, "Ours: more than everything else together")
    gpu_p95_percent: float = _limit(70.0, "SageMaker Debugger: a GPU whose 95th percentile is lower is underused")
    gpu_mean_percent: float = _limit(50.0, "PyTorch Profiler's TensorBoard plugin: a GPU less used than this")
    sm_activity_percent: float = _limit(
        30.0,
        "TraceML's limit of low use, here for the multiprocessors: a single small kernel counts as full utilization",
    )
    short_step_seconds: float = _limit(
        0.010, "Ours: launching a step's kernels takes a few milliseconds, whatever the size of the batch"
    )
    throttled_share: float = _limit(0.05, "Ours: of the samples, as in the remarks on each GPU")
    interpreter_busy_percent: float = _limit(
        60.0, "Ours: of the time that the training's own thread leaves; one thread of pure Python makes it 90 and more"
    )
    pace_share: float = _limit(0.80, "Ours: a stage that is at work this much of the time sets the pace")
    waiting_cpu_share: float = _limit(
        0.40,
        "Ours: work that uses the CPU for less of its time waits; below a half, since other processes stretch work",
    )
    sure_waiting_cpu_share: float = _limit(
        0.20, "Ours: where other processes leave no core idle, work that computes still gets as much, with four of them"
    )
    full_cpu_percent: float = _limit(85.0, "Ours: all cores are in use, but for what scheduling leaves")
    explained_share: float = _limit(0.50, "Ours: the mean rates, one cause, or callbacks must explain this much")
    even_wait_share: float = _limit(
        0.50, "Ours: waits whose median is at least this share of their mean are even, not bursts"
    )
    spare_calls_share: float = _limit(0.20, "Ours: more parallel calls than the mean needs, because calls differ")
    max_parallel_calls: int = _limit(256, "Ours: each call has a thread and an element in memory")
    max_prefetch: int = _limit(512, "Ours: longer stalls are no bursts")
    memory_share: float = _limit(1 / 3, "Ours: of the free memory, for a cache or a buffer; the rest is other people's")
    copied_bytes_per_second: float = _limit(1e9, "Ours: a thread that moves as much does hardly anything but copy")
    large_element_bytes: float = _limit(
        16 * 2**20, "Ours: larger than the caches of a CPU, so that each copy goes through memory"
    )
    cold_epoch_ratio: float = _limit(2.0, "Ours: as many times as long as the epochs after it")
    target_validation_share: float = _limit(0.10, "Ours: what a lower `validation_freq` aims at")


LIMITS = Thresholds()
