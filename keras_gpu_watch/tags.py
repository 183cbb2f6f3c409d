# SPDX-License-Identifier: Apache-2.0
"""Every name that is written for TensorBoard, with its unit and meaning: shared by writer, reader and README."""

from __future__ import annotations

from dataclasses import dataclass

PLUGIN_NAME = "gpu_watch"
RUN_NAME = "gpu_watch"
"""Directory below `log_dir` that holds our own run."""
REPORT_FILE = "report.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Tag:
    """One scalar series."""

    name: str
    unit: str
    meaning: str


STEP_INPUT_WAIT = Tag("step/input_wait_ms", "ms", "Time this step waited for its batch")
STEP_COMPUTE = Tag("step/compute_ms", "ms", "The rest of the train function's call")
STEP_HOST = Tag("step/host_ms", "ms", "Between the previous step and this one: callbacks, logging, progress bar")
STEP_TOTAL = Tag("step/total_ms", "ms", "Host time and the call together")
WINDOW_SHARE = Tag(
    "window/input_wait_share_percent", "%", "Input wait / (input wait + compute + host) over a window of steps"
)
WINDOW_MEAN = Tag("window/input_wait_mean_ms", "ms", "Mean input wait of the window's steps")
WINDOW_P95 = Tag("window/input_wait_p95_ms", "ms", "95th percentile of the window's input waits")
WINDOW_MAX = Tag("window/input_wait_max_ms", "ms", "Longest input wait of the window: no stall is thinned away")
WINDOW_SUM = Tag("window/input_wait_sum_ms", "ms", "All input wait of the window")
EPOCH_GOODPUT = Tag("epoch/goodput_percent", "%", "Compute / wall time of the epoch")
EPOCH_SHARE = Tag("epoch/input_wait_share_percent", "%", "Input wait share of the epoch's steady steps")
EPOCH_CEILING = Tag("epoch/ceiling_speedup", "x", "How many times faster the steps would go if input were free")
EPOCH_FIRST_BATCH = Tag("epoch/first_batch_seconds", "s", "From the epoch's start to its first batch")
EPOCH_EXAMPLES = Tag("epoch/examples_per_second", "1/s", "Examples per second over the epoch's steady steps")
EPOCH_VALIDATION = Tag("epoch/validation_seconds", "s", "From the epoch's last step to the end of its validation")
EPOCH_COMPILE = Tag("epoch/compile_seconds", "s", "Steps that traced or compiled")
STAGE_BUSY = Tag(
    "pipeline/<stage>/busy_ms_per_batch", "ms", "The stage's own work for one batch, all its parallel calls together"
)
STAGE_PARALLELISM = Tag("pipeline/<stage>/parallelism", "calls", "Calls that may run at a time: AUTOTUNE's choice")
STAGE_WAIT_SHARE = Tag("pipeline/<stage>/wait_share_percent", "%", "Its share in the input wait")
STAGE_BUFFERED = Tag("pipeline/<stage>/buffered_elements", "elements", "Mean of what was in its buffer")
STAGE_CAPACITY = Tag(
    "pipeline/<stage>/capacity_batches_per_second", "1/s", "What it could give if nothing else held it up"
)
CALLBACK_SECONDS = Tag("callback/<name>/seconds", "s", "In one callback's hooks in the epoch, of the five slowest ones")
TUNER_CALLS = Tag("tuner/<stage>/parallel_calls", "calls", "Calls at a time that the tuner has set; -1: AUTOTUNE")
TUNER_BUFFER = Tag("tuner/<stage>/buffer_size", "elements", "Buffer that the tuner has set; -1: AUTOTUNE")
TUNER_THREADS = Tag("tuner/private_threadpool_size", "threads", "Threads that the tuner has given the pipeline")
GPU_UTILIZATION = Tag(
    "gpu<i>/utilization_percent", "%", "Share of the driver's sample period (1/6 to 1 s) in which a kernel ran"
)
GPU_MEMORY = Tag("gpu<i>/memory_used_percent", "%", "Used share of its memory, by all processes")
GPU_POWER = Tag("gpu<i>/power_watts", "W", "Power draw of the board")
GPU_TEMPERATURE = Tag("gpu<i>/temperature_celsius", "C", "Temperature of the chip")
GPU_SM_CLOCK = Tag("gpu<i>/sm_clock_mhz", "MHz", "Clock of the streaming multiprocessors")
GPU_SM_ACTIVITY = Tag(
    "gpu<i>/sm_activity_percent", "%", "Share of the streaming multiprocessors that were busy (Hopper and newer)"
)
GPU_TENSOR_ACTIVITY = Tag(
    "gpu<i>/tensor_activity_percent", "%", "Share of the time in which tensor cores were busy (Hopper and newer)"
)
GPU_DRAM_ACTIVITY = Tag("gpu<i>/dram_activity_percent", "%", "Used share of the memory bandwidth (Hopper and newer)")
HOST_CPU = Tag("host/cpu_percent", "%", "Of the cores that this process may use, busy with anything")
HOST_PROCESS_CPU = Tag("host/process_cpu_percent", "%", "Of the same cores, busy with this process")
HOST_IOWAIT = Tag("host/iowait_percent", "%", "Of the same cores, idle while something waits for a disk")
HOST_MEMORY = Tag("host/memory_percent", "%", "Used share of the memory that this process may use")
HOST_DISK_READ = Tag("host/disk_read_mib_per_second", "MiB/s", "Read from storage by this process")
HOST_INTERPRETER = Tag(
    "host/interpreter_busy_percent", "%", "How often Python code of other threads held the interpreter lock"
)

STAGE_TAGS: tuple[Tag, ...] = (STAGE_BUSY, STAGE_PARALLELISM, STAGE_WAIT_SHARE, STAGE_BUFFERED, STAGE_CAPACITY)
"""Of each stage of the input pipeline: `<stage>` stands for its position and name."""
TUNER_TAGS: tuple[Tag, ...] = (TUNER_CALLS, TUNER_BUFFER, TUNER_THREADS)
"""Of each epoch with settings other than the user's own; a prefetch at the end that he did not write is `added`."""
GPU_TAGS: tuple[Tag, ...] = (
    GPU_UTILIZATION,
    GPU_MEMORY,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_SM_CLOCK,
    GPU_SM_ACTIVITY,
    GPU_TENSOR_ACTIVITY,
    GPU_DRAM_ACTIVITY,
)
"""Of each GPU: `<i>` stands for its position in the report's list."""
HOST_TAGS: tuple[Tag, ...] = (
    HOST_CPU,
    HOST_PROCESS_CPU,
    HOST_IOWAIT,
    HOST_MEMORY,
    HOST_DISK_READ,
    HOST_INTERPRETER,
)

TAGS: tuple[Tag, ...] = (
    STEP_INPUT_WAIT,
    STEP_COMPUTE,
    STEP_HOST,
    STEP_TOTAL,
    WINDOW_SHARE,
    WINDOW_MEAN,
    WINDOW_P95,
    WINDOW_MAX,
    WINDOW_SUM,
    EPOCH_GOODPUT,
    EPOCH_SHARE,
    EPOCH_CEILING,
    EPOCH_FIRST_BATCH,
    EPOCH_EXAMPLES,
    EPOCH_VALIDATION,
    EPOCH_COMPILE,
    *STAGE_TAGS,
    CALLBACK_SECONDS,
    *TUNER_TAGS,
    *GPU_TAGS,
    *HOST_TAGS,
)


def markdown_table() -> str:
    """The README's table of scalars.

    Returns:
        Markdown, one row per tag, ending in a newline.
    """
    rows = [f"| `{tag.name}` | {tag.unit} | {tag.meaning} |" for tag in TAGS]
    return "\n".join(["| Scalar | Unit | Meaning |", "| --- | --- | --- |", *rows]) + "\n"
