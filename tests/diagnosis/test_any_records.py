# SPDX-License-Identifier: Apache-2.0
"""Whatever the records hold, there is a verdict, and it promises no more than it may."""

from __future__ import annotations

import ast
import dataclasses
import math

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from keras_gpu_watch.diagnosis import diagnose, diagnose_run
from keras_gpu_watch.findings import CallbackSeconds, PipelineSummary, Stage
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.samples import Devices, Distribution, GpuDevice, GpuSummary, HostDevice, HostSummary

PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
SECONDS = st.one_of(st.just(0.0), st.floats(1e-9, 1e6), st.floats(0, 1e300))
SHARES = st.one_of(st.sampled_from([0.0, 0.05, 0.2, 1.0]), st.floats(0, 1))
COUNTS = st.integers(0, 10_000)
OPS = st.sampled_from(
    [
        "map",
        "batch",
        "prefetch",
        "shuffle",
        "cache",
        "interleave",
        "flat_map",
        "filter",
        "from_generator",
        "TFRecordDataset",
        "zip",
        "repeat",
    ]
)
NAMES = st.one_of(st.none(), st.just("decode"), st.text(max_size=20))


def maybe(values):
    return st.one_of(st.none(), values)


def distributions():
    percents = st.floats(0, 100)
    return maybe(st.builds(Distribution, percents, percents, percents, percents))


STAGES = st.builds(
    Stage,
    index=st.just(0),
    op=OPS,
    inputs=st.lists(st.integers(0, 5), max_size=2).map(tuple),
    function=NAMES,
    source=NAMES,
    python=maybe(st.just("numpy_function")),
    is_random=maybe(st.booleans()),
    batch_size=maybe(st.integers(-1, 1000)),
    buffer_size=maybe(st.integers(-1, 10**9)),
    num_parallel_calls=maybe(st.integers(-1, 10**6)),
    cycle_length=maybe(st.integers(-1, 10**6)),
    added_by=st.sampled_from(["user", "keras", "tensorflow"]),
    elements=maybe(SECONDS),
    elements_per_batch=maybe(SECONDS),
    busy_seconds_per_batch=maybe(SECONDS),
    parallelism=maybe(SECONDS),
    buffer_limit=maybe(SECONDS),
    bytes_per_element=maybe(SECONDS),
    wait_share=maybe(SHARES),
)
PIPELINES = st.builds(
    PipelineSummary,
    input_kind=st.sampled_from(["tf.data", "PyDataset", "generator", "arrays", "unknown"]),
    stages=st.lists(STAGES, max_size=6).map(
        lambda stages: tuple(_numbered(stage, index) for index, stage in enumerate(stages))
    ),
    private_threadpool_size=maybe(COUNTS),
    serial_seconds_per_batch=maybe(SECONDS),
    slowest_seconds_per_batch=maybe(SECONDS),
)
HOSTS = st.builds(
    HostSummary,
    samples=COUNTS,
    process_cpu_percent=distributions(),
    interpreter_busy_percent=distributions(),
    memory_max_percent=maybe(st.floats(0, 100)),
)
GPUS = st.builds(
    GpuSummary,
    gpu=st.integers(0, 2),
    samples=COUNTS,
    utilization_percent=distributions(),
    sm_activity_percent=distributions(),
    thermal_throttle_share=maybe(SHARES),
    power_cap_share=maybe(SHARES),
    hardware_slowdown_share=maybe(SHARES),
)
CALLBACKS = st.builds(CallbackSeconds, name=st.text(max_size=9), step_seconds=SECONDS, epoch_seconds=SECONDS)
EPOCHS = st.builds(
    EpochSummary,
    epoch=st.integers(0, 3),
    steps=COUNTS,
    steady_steps=COUNTS,
    compile_steps=st.integers(0, 9),
    batches=COUNTS,
    wall_seconds=SECONDS,
    first_batch_seconds=SECONDS,
    compile_seconds=SECONDS,
    step_seconds=SECONDS,
    input_wait_seconds=maybe(SECONDS),
    compute_seconds=maybe(SECONDS),
    host_seconds=SECONDS,
    validation_seconds=maybe(SECONDS),
    epoch_end_seconds=SECONDS,
    input_wait_share=maybe(SHARES),
    input_wait_p50_seconds=maybe(SECONDS),
    input_wait_p95_seconds=maybe(SECONDS),
    input_wait_max_seconds=maybe(SECONDS),
    ceiling_speedup=maybe(st.floats(1, 1e9)),
    batches_per_second=maybe(SECONDS),
    gpus=st.lists(GPUS, max_size=2).map(tuple),
    host=maybe(HOSTS),
    pipeline=maybe(PIPELINES),
    callbacks=st.lists(CALLBACKS, max_size=2).map(tuple),
)
MACHINES = st.builds(
    Devices,
    gpus=st.lists(st.builds(GpuDevice, name=st.just("A"), other_processes=maybe(COUNTS)), max_size=2).map(tuple),
    host=maybe(st.builds(HostDevice, usable_cores=st.floats(0.1, 256), usable_memory_bytes=maybe(COUNTS))),
)
INFOS = maybe(
    st.builds(
        RunInfo,
        run_dir=st.none(),
        start_step=COUNTS,
        steps_per_execution=st.integers(1, 8),
        resumed=st.booleans(),
        on_accelerator=maybe(st.booleans()),
        jit_compile=maybe(st.booleans()),
        run_eagerly=maybe(st.booleans()),
        replicas=maybe(st.integers(1, 8)),
    )
)


def _numbered(stage, index):
    return dataclasses.replace(stage, index=index)


def check(verdict, ceiling):
    assert verdict.headline
    assert verdict.lost_share is None or 0 <= verdict.lost_share <= 1
    assert all(isinstance(value, float) and not math.isnan(value) for value in verdict.evidence.values())
    for suggestion in verdict.suggestions:
        if suggestion.code is not None:
            ast.parse(suggestion.code)
        gain = suggestion.expected_speedup
        assert gain is None or gain >= 1
        if "input" in verdict.kind and ceiling is not None and gain is not None:
            assert gain <= ceiling


# Without the phase that explains failures: it traces each line, and takes minutes.
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(st.lists(EPOCHS, min_size=1, max_size=3), MACHINES, INFOS)
def test_any_records_give_a_sound_verdict(epochs, devices, info):
    verdict, others = diagnose(epochs, devices, info)

    for each in (verdict, *others):
        check(each, epochs[-1].ceiling_speedup)
    run = diagnose_run(epochs, devices, info)
    assert run is not None
    check(run, None)
