# SPDX-License-Identifier: Apache-2.0
"""The plain records that every part hands on: a step, a chunk of steps, an epoch's account.

Units: seconds, ratios 0..1, counts. "Not measured" is `None` in a dataclass and NaN in an array, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from keras_gpu_watch.findings import CallbackSeconds, PipelineSummary, StepTimes, Verdict
from keras_gpu_watch.knobs import Knobs
from keras_gpu_watch.samples import GpuSummary, HostSummary

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
StepArray = NDArray[np.void]
"""A structured array of `STEP_DTYPE`: one row for each call of the train function."""


class StepKind(IntEnum):
    """What a step may be used for. Only steady steps enter shares, percentiles and rates."""

    STEADY = 0
    FIRST = 1
    """The first step of an epoch: its wait is the epoch's first-batch time."""
    COMPILE = 2
    """A step that traced or compiled: its time is compile time, not wait or compute."""


STEP_DTYPE = np.dtype(
    [
        ("epoch", np.int32),
        # Optimizer iteration after the step: the axis of every chart.
        ("step", np.int64),
        # Batches that the call consumed: `steps_per_execution`, fewer in a short last group.
        ("batches", np.int32),
        # NaN where the batch dimension is not known.
        ("examples", np.float64),
        ("kind", np.uint8),
        # True where input wait and compute are an estimate rather than a reading.
        ("estimated", np.bool_),
        # Entry of the train function and the moment its values were on the host, on the clock of `time.perf_counter`.
        ("call_seconds", np.float64),
        ("done_seconds", np.float64),
        # From the previous step's `done` to this step's `call`; NaN for an epoch's first step.
        ("host_seconds", np.float64),
        # NaN where the wait is not known. `compute = done - call - input wait` for steady and first steps.
        ("input_wait_seconds", np.float64),
        ("compute_seconds", np.float64),
        # Tracing, compiling and the first run of a COMPILE step; 0 for the others.
        ("compile_seconds", np.float64),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSummary:
    """Where one epoch's seconds went (all times in seconds; `None` = not measured, see `notes`).

    `wall = first batch + compile + step + host + validation + epoch end + unattributed`, and
    `step = input wait + compute` wherever the two could be told apart.
    """

    epoch: int
    steps: int = 0
    """Calls of the train function."""
    last_step: int | None = None
    """Optimizer iteration after the epoch's last step; `None` without steps."""
    steady_steps: int = 0
    """Steps that neither compiled nor were the epoch's first: what shares, percentiles and rates rest on."""
    compile_steps: int = 0
    """Steps that traced or compiled."""
    batches: int = 0
    examples: float | None = None
    """Of all its batches; `None` where the batch dimension is not known."""
    wall_seconds: float
    """From `on_epoch_begin` to the next epoch's, or to `on_train_end`."""
    first_batch_seconds: float = 0.0
    """From `on_epoch_begin` to the first batch: `iter()`, shuffle refill, cold start."""
    compile_seconds: float = 0.0
    """Steps that traced or compiled, less the part of them that waited for their batch where that is known."""
    step_seconds: float = 0.0
    """Time inside the train function that is neither first batch nor compile: input wait + compute."""
    input_wait_seconds: float | None = None
    compute_seconds: float | None = None
    host_seconds: float = 0.0
    """Between two steps: callbacks, progress bar, logging, summaries, checkpoints in mid-epoch."""
    validation_seconds: float | None = None
    """From the last step to `on_test_end`; `None` when no validation ran in this epoch."""
    epoch_end_seconds: float = 0.0
    """From the last step (or the end of validation) to the boundary: everybody's `on_epoch_end`, the extra `iter()`."""
    unattributed_seconds: float = 0.0
    watch_overhead_seconds: float = 0.0
    """Of which keras-gpu-watch used on the training thread (contained in the parts above)."""
    input_wait_share: float | None = None
    """Input wait / (input wait + compute + host) over steady steps."""
    input_wait_p50_seconds: float | None = None
    """Percentiles and maximum of a steady step's input wait."""
    input_wait_p95_seconds: float | None = None
    input_wait_max_seconds: float | None = None
    goodput: float | None = None
    """Compute / wall."""
    ceiling_speedup: float | None = None
    """How many times faster steady steps would go if input were free: (wait + compute + host) / (compute + host)."""
    batches_per_second: float | None = None
    """Over steady steps, like `examples_per_second`, so that compiling and validating don't distort the rate."""
    examples_per_second: float | None = None
    pace_batches_per_second: float | None = None
    """The same rate, where the slowest twentieth of compute and host times counts no more than the next one: a stall of
    a callback or of the garbage collector changes it little, one of the input in full."""
    pace_noise: float | None = None
    """Its relative standard error, from how much blocks of consecutive steps differ."""
    sources_disagreement_seconds: float | None = None
    """Median difference of a step's wait between in-graph stamps and tf.data's own gap times, where both are there."""
    gpus: tuple[GpuSummary, ...] = ()
    """One for each GPU of the report's `devices` that gave samples in this epoch."""
    host: HostSummary | None = None
    process_cpu_seconds: float | None = None
    """CPU time of this process in the whole epoch, all threads together."""
    pipeline: PipelineSummary | None = None
    """The input pipeline's stages; `None` where nothing is known of it."""
    knobs: Knobs | None = None
    """Settings of the input pipeline that tuning has changed, for all of its batches; `None`: not tuned, or changed in
    its midst."""
    callbacks: tuple[CallbackSeconds, ...] = ()
    """The other callbacks of the list, the slowest first."""
    typical_steps: tuple[StepTimes, ...] = ()
    """A few steady steps in a row whose wait is about the mean: what the picture of an epoch shows."""
    verdict: Verdict | None = None
    other_verdicts: tuple[Verdict, ...] = ()
    """What else costs time, the greatest loss first."""
    estimated: tuple[str, ...] = ()
    """Names of the fields above that are estimates."""
    notes: tuple[str, ...] = ()
    """Why something is not measured, one sentence each."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What the user asked for, checked."""

    log_dir: str
    """`~` is expanded."""
    update_freq: str | int = "batch"
    console: bool = True
    gpu_interval_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known when a `fit` starts."""

    run_dir: str | None
    """Where this run's files are; `None` when nothing can be written."""
    start_step: int
    """Optimizer iterations at the first `on_epoch_begin` of the run, before it was ever resumed."""
    steps_per_execution: int
    resumed: bool
    """True when the files of an earlier run are continued."""
    on_accelerator: bool | None = None
    """Whether the model's variables live on a GPU or TPU."""
    jit_compile: bool | None = None
    run_eagerly: bool | None = None
    replicas: int | None = None
    """Of a distribution strategy, over all workers; 1 without one."""
