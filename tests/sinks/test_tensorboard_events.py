# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.proto import event_pb2
from tensorboard.context import RequestContext
from tensorboard.plugins.scalar.metadata import PLUGIN_NAME

from keras_gpu_watch.findings import CallbackSeconds, PipelineSummary, Stage
from keras_gpu_watch.knobs import END, Knobs
from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import GPU_FIELDS, GpuSamples, HostSamples
from keras_gpu_watch.sinks.tensorboard_events import TensorBoardEvents
from keras_gpu_watch.tags import TAGS

MakeSteps = Callable[..., StepArray]
MakeEpoch = Callable[..., EpochSummary]
MakeGpus = Callable[..., GpuSamples]
MakeHost = Callable[..., HostSamples]


def _scalars(log_dir: Path) -> dict[str, list[tuple[int, float, float]]]:
    """What TensorBoard's own server gives to its Scalars and Time Series tabs: tag -> (step, wall time, value)."""
    multiplexer = EventMultiplexer(tensor_size_guidance={PLUGIN_NAME: 0}).AddRunsFromDirectory(str(log_dir))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(log_dir))
    series = provider.read_scalars(RequestContext(), experiment_id="", plugin_name=PLUGIN_NAME, downsample=100_000)
    run = series.get("gpu_watch", {})
    return {tag: [(datum.step, datum.wall_time, datum.value) for datum in data] for tag, data in run.items()}


def _steps_of(log_dir: Path, tag: str) -> list[int]:
    return [step for step, _, _ in _scalars(log_dir)[tag]]


STAGE = Stage(
    index=1,
    op="map",
    function="decode",
    busy_seconds_per_batch=0.064,
    parallelism=2.0,
    wait_share=0.75,
    buffered_elements=1.5,
    capacity_batches_per_second=31.25,
)
PIPELINE = PipelineSummary(stages=(Stage(index=0, op="range", reason="not in the model"), STAGE))
# Seven, the slowest first.
CALLBACKS = tuple(CallbackSeconds(name=f"Slow {n}", epoch_seconds=7.0 - n, step_seconds=0.5) for n in range(7))


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    (tmp_path / "gpu_watch").mkdir()
    return str(tmp_path / "gpu_watch")


def test_tensorboard_shows_every_tag_and_no_other(
    tmp_path: Path,
    run_dir: str,
    make_steps: MakeSteps,
    make_gpu_samples: MakeGpus,
    make_host_samples: MakeHost,
    make_epoch: MakeEpoch,
) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    sink.samples(make_gpu_samples(0.1, gpus=2), make_host_samples(0.1))
    sink.steps(make_steps(20))
    knobs = Knobs(parallel_calls={1: 8}, buffer_sizes={1: 4}, private_threadpool_size=10)
    sink.epoch(make_epoch(validation_seconds=2.0, pipeline=PIPELINE, callbacks=CALLBACKS[:1], knobs=knobs), "{}")
    sink.close("{}")
    names = [tag.name.replace("<stage>", "1_map_decode").replace("<name>", "Slow_0") for tag in TAGS]
    both = [name.replace("<i>", number) for name in names for number in "01"]
    assert set(_scalars(tmp_path)) == set(both)


def test_values_arrive_in_the_units_of_their_tags(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=100, resumed=False)
    sink.steps(make_steps(20, first_step=101, wait=0.004, compute=0.005, host=0.001))
    sink.epoch(make_epoch(goodput=0.5, input_wait_share=0.4, first_batch_seconds=0.25, examples_per_second=320.0), "{}")
    sink.close("{}")
    shown = {tag: [(step, round(value, 4)) for step, _, value in data] for tag, data in _scalars(tmp_path).items()}
    assert shown["step/input_wait_ms"] == [(step, 4.0) for step in range(101, 121)]
    assert shown["step/total_ms"][-1] == (120, 10.0)
    assert shown["window/input_wait_share_percent"] == [(120, 40.0)]
    assert shown["window/input_wait_sum_ms"] == [(120, 80.0)]
    assert shown["epoch/goodput_percent"] == [(120, 50.0)]
    assert shown["epoch/input_wait_share_percent"] == [(120, 40.0)]
    assert shown["epoch/first_batch_seconds"] == [(120, 0.25)]
    assert shown["epoch/examples_per_second"] == [(120, 320.0)]


def test_what_was_not_measured_is_not_written(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    steps = make_steps(3, wait=[np.nan, 0.0, 0.004], host=[np.nan, 0.001, 0.001])
    steps["compute_seconds"][0] = np.nan
    sink.steps(steps)
    sink.epoch(make_epoch(goodput=None, input_wait_share=None, ceiling_speedup=None, examples_per_second=0.0), "{}")
    sink.close("{}")
    shown = {tag: [(step, round(value, 4)) for step, _, value in data] for tag, data in _scalars(tmp_path).items()}
    assert shown["step/input_wait_ms"] == [(2, 0.0), (3, 4.0)]
    assert [step for step, _ in shown["step/compute_ms"]] == [2, 3]
    assert [step for step, _ in shown["step/host_ms"]] == [2, 3]
    assert [step for step, _ in shown["step/total_ms"]] == [1, 2, 3]
    assert {tag for tag in shown if tag.startswith("epoch/")} == {
        "epoch/first_batch_seconds",
        "epoch/examples_per_second",
        "epoch/compile_seconds",
    }


def test_stages_callbacks_validation_and_compiling_arrive_at_the_epochs_last_step(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    sink = TensorBoardEvents(
        run_dir, "epoch", start_step=0, resumed=False, mono=lambda: 50.0, wall_clock=lambda: 1_700_000_000.0
    )
    idle = dataclasses.replace(
        STAGE, wait_share=0.0, buffered_elements=None, parallelism=np.nan, capacity_batches_per_second=np.inf
    )
    sink.steps(make_steps(20))
    findings = {"pipeline": PIPELINE, "callbacks": CALLBACKS, "validation_seconds": 2.5, "compile_seconds": 0.25}
    sink.epoch(make_epoch(0, **findings), "{}")
    sink.steps(make_steps(20, first_step=21))
    sink.epoch(make_epoch(1, pipeline=PipelineSummary(stages=(idle,)), compile_seconds=0.0), "{}")
    sink.close("{}")
    shown = _scalars(tmp_path)
    values = {tag: [(step, round(value, 4)) for step, _, value in data] for tag, data in shown.items()}
    assert values["epoch/validation_seconds"] == [(20, 2.5)]
    assert values["epoch/compile_seconds"] == [(20, 0.25), (40, 0.0)]
    assert {tag: data for tag, data in values.items() if tag.startswith(("pipeline/", "callback/"))} == {
        "pipeline/1_map_decode/busy_ms_per_batch": [(20, 64.0), (40, 64.0)],
        "pipeline/1_map_decode/parallelism": [(20, 2.0)],
        "pipeline/1_map_decode/wait_share_percent": [(20, 75.0), (40, 0.0)],
        "pipeline/1_map_decode/buffered_elements": [(20, 1.5)],
        "pipeline/1_map_decode/capacity_batches_per_second": [(20, 31.25)],
        **{f"callback/Slow_{n}/seconds": [(20, 7.5 - n)] for n in range(5)},
    }
    assert shown["callback/Slow_0/seconds"][0][1] == 1_700_000_000.0


def test_a_huge_pipeline_gets_scalars_of_sixty_stages_that_stay_the_same(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    def pipeline(busiest: int) -> PipelineSummary:
        busy = [0.5 if n == busiest else 0.001 * n for n in range(100)]
        return PipelineSummary(
            stages=tuple(Stage(index=n, op="map", busy_seconds_per_batch=seconds) for n, seconds in enumerate(busy))
        )

    sink = TensorBoardEvents(run_dir, "epoch", start_step=0, resumed=False)
    for epoch, busiest in enumerate((7, 3)):
        sink.steps(make_steps(20, first_step=1 + 20 * epoch))
        sink.epoch(make_epoch(epoch, pipeline=pipeline(busiest)), "{}")
    sink.close("{}")
    steps = {
        tag: [step for step, _, _ in data] for tag, data in _scalars(tmp_path).items() if tag.startswith("pipeline/")
    }
    assert steps == {f"pipeline/{n}_map/busy_ms_per_batch": [20, 40] for n in (7, *range(41, 100))}


def test_a_stage_of_any_name_is_a_scalar_of_its_own(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    names = ("<lambda>", "../../etc", "a b", "größe\n", "a.b")
    stages = tuple(
        Stage(index=n, op="map", function=name, busy_seconds_per_batch=0.001) for n, name in enumerate(names)
    )
    sink = TensorBoardEvents(run_dir, "epoch", start_step=0, resumed=False)
    sink.steps(make_steps(1))
    sink.epoch(make_epoch(pipeline=PipelineSummary(stages=stages)), "{}")
    sink.close("{}")
    tags = [tag for tag in _scalars(tmp_path) if tag.startswith("pipeline/")]
    assert len(tags) == len(names)
    assert all(re.fullmatch(r"pipeline/[0-9]_\w+/busy_ms_per_batch", tag, flags=re.ASCII) for tag in tags)


def test_a_point_carries_the_wall_clock_time_of_its_steps_end(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps
) -> None:
    sink = TensorBoardEvents(
        run_dir, "batch", start_step=0, resumed=False, mono=lambda: 50.0, wall_clock=lambda: 1_700_000_000.0
    )
    sink.steps(make_steps(1, start=40.0))
    sink.close("{}")
    assert _scalars(tmp_path)["step/total_ms"][0][1] == pytest.approx(1_700_000_000.0 - 10.0 + 0.01)


def test_readings_of_the_devices_arrive_in_the_units_of_their_tags(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    gpu = {
        "utilization_percent": 1.0,
        "memory_used_percent": 2.0,
        "power_watts": 3.0,
        "temperature_celsius": 4.0,
        "sm_clock_mhz": 5.0,
        "sm_activity_percent": 6.0,
        "tensor_activity_percent": 7.0,
        "dram_activity_percent": 8.0,
    }
    host = {"cpu_percent": 9.0, "process_cpu_percent": 10.0, "iowait_percent": 11.0, "memory_percent": 12.0}
    host["interpreter_busy_percent"] = 14.0
    sink = TensorBoardEvents(run_dir, "epoch", start_step=0, resumed=False)
    second = {name: [value, value + 100.0] for name, value in gpu.items()}
    sink.samples(
        make_gpu_samples(0.005, gpus=2, **second),
        make_host_samples(0.005, disk_read_bytes_per_second=13.0 * 2**20, **host),
    )
    sink.steps(make_steps(1))
    sink.close("{}")
    expected = {
        **{f"gpu0/{name}": value for name, value in gpu.items()},
        **{f"gpu1/{name}": value + 100.0 for name, value in gpu.items()},
        **{f"host/{name}": value for name, value in host.items()},
        "host/disk_read_mib_per_second": 13.0,
    }
    shown = {tag: data for tag, data in _scalars(tmp_path).items() if not tag.startswith("window/")}
    assert {tag: [value for _, _, value in data] for tag, data in shown.items()} == {
        tag: [value] for tag, value in expected.items()
    }


def test_samples_lie_on_the_step_axis_at_their_own_wall_clock_time(
    tmp_path: Path,
    run_dir: str,
    make_steps: MakeSteps,
    make_gpu_samples: MakeGpus,
    make_host_samples: MakeHost,
    make_epoch: MakeEpoch,
) -> None:
    sink = TensorBoardEvents(
        run_dir, "batch", start_step=100, resumed=False, mono=lambda: 50.0, wall_clock=lambda: 1_700_000_000.0
    )
    # Step 101 ends at 41 s, step 102 at 42 s and so on.
    for time in (40.5, 42.25, 42.75):
        sink.samples(make_gpu_samples(time, utilization_percent=time), make_host_samples([]))
    sink.steps(make_steps(4, first_step=101, wait=0.5, compute=0.5, host=0.0, start=40.0))
    # Validation, then an epoch of one step.
    sink.samples(make_gpu_samples(60.0, utilization_percent=60.0), make_host_samples([]))
    sink.epoch(make_epoch(), "{}")
    sink.steps(make_steps(1, first_step=105, start=61.0))
    sink.samples(make_gpu_samples(70.0, utilization_percent=70.0), make_host_samples([]))
    sink.close("{}")
    shown = _scalars(tmp_path)["gpu0/utilization_percent"]
    pairs = [(step, value) for step, _, value in shown]
    assert pairs == [(101, 40.5), (103, 42.25), (103, 42.75), (104, 60.0), (105, 70.0)]
    assert [wall for _, wall, _ in shown] == pytest.approx([1_699_999_950.0 + value for _, _, value in shown])


def test_a_reading_that_is_missing_is_a_gap_and_a_reading_of_zero_is_written(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    busy = [50.0, 60.0, 0.0, np.nan, np.nan, np.nan, 51.0, 61.0]
    gpus = make_gpu_samples([0.005, 0.015, 0.025, 0.035], gpus=2, utilization_percent=busy, sm_activity_percent=np.nan)
    # GPU 1 is lost for two samples; GPU 0 answers, but for one sample without its utilization.
    sink.samples(gpus[[0, 1, 2, 4, 6, 7]], make_host_samples([]))
    sink.steps(make_steps(4))
    sink.close("{}")
    shown = {tag: [(step, value) for step, _, value in data] for tag, data in _scalars(tmp_path).items()}
    assert shown["gpu0/utilization_percent"] == [(1, 50.0), (2, 0.0), (4, 51.0)]
    assert shown["gpu1/utilization_percent"] == [(1, 60.0), (4, 61.0)]
    assert [step for step, _ in shown["gpu0/power_watts"]] == [1, 2, 3, 4]
    assert [step for step, _ in shown["gpu1/power_watts"]] == [1, 4]
    assert not [tag for tag in shown if tag.endswith("sm_activity_percent") or tag.startswith("host/")]


def test_gpus_that_come_and_go_in_any_combination_keep_their_values_and_few_events_are_kept(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    sink = TensorBoardEvents(run_dir, "epoch", start_step=0, resumed=False)
    sink.steps(make_steps(300))
    watts = np.random.rand(300, 8) * 100
    watts[np.random.rand(300, 8) < 0.5] = np.nan
    for step in range(300):
        sink.samples(make_gpu_samples(0.01 * step + 0.005, gpus=8, power_watts=watts[step]), make_host_samples([]))
    sink.close("{}")
    shown = _scalars(tmp_path)
    for gpu in range(8):
        (present,) = np.nonzero(~np.isnan(watts[:, gpu]))
        data = shown[f"gpu{gpu}/power_watts"]
        assert [step for step, _, _ in data] == (present + 1).tolist()
        assert [value for _, _, value in data] == pytest.approx(watts[present, gpu].tolist())
    # An event of 8 GPUs holds 10 kB: there is no other way to see that they don't pile up.
    assert len(sink._sample_series._events) <= 32


def test_samples_become_visible_in_a_validation_that_is_longer_than_they_are_held(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    now = 100.0
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False, mono=lambda: now)
    sink.steps(make_steps(1, start=now))
    for _ in range(100):
        now += 0.5
        sink.samples(make_gpu_samples(now), make_host_samples([]))
    assert len(_scalars(tmp_path)["gpu0/utilization_percent"]) >= 60
    sink.close("{}")
    assert len(_scalars(tmp_path)["gpu0/utilization_percent"]) == 100


def test_one_sample_of_all_devices_is_one_event_and_one_without_a_reading_is_none(
    run_dir: str, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    for time in (0.5, 1.0, 1.5):
        sink.samples(make_gpu_samples(time, gpus=8), make_host_samples(time))
    sink.samples(make_gpu_samples(2.0, gpus=8, **dict.fromkeys(GPU_FIELDS, np.nan)), make_host_samples([]))
    sink.close("{}")
    (name,) = os.listdir(run_dir)
    # The format's version, the session's start, and the samples.
    assert len(list(tf.compat.v1.io.tf_record_iterator(os.path.join(run_dir, name)))) == 2 + 3


KILLED = """
import os, signal, sys
import numpy as np
from keras_gpu_watch.records import STEP_DTYPE
from keras_gpu_watch.samples import GPU_SAMPLE_DTYPE, HOST_SAMPLE_DTYPE
from keras_gpu_watch.sinks.tensorboard_events import TensorBoardEvents

now = 0.0
sink = TensorBoardEvents(sys.argv[1], "batch", start_step=0, resumed=False, mono=lambda: now)
for number in range(1, 201):
    now = 0.1 * number
    gpus = np.zeros(8, GPU_SAMPLE_DTYPE)
    gpus["seconds"], gpus["gpu"], gpus["power_watts"] = now - 0.05, np.arange(8), number
    sink.samples(gpus, np.zeros(0, HOST_SAMPLE_DTYPE))
    step = np.zeros(1, STEP_DTYPE)
    step["step"], step["done_seconds"] = number, now
    sink.steps(step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_wrote_until_a_second_before_is_readable(tmp_path: Path, run_dir: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, run_dir], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    shown = _scalars(tmp_path)
    for gpu in range(8):
        data = shown[f"gpu{gpu}/power_watts"]
        assert [(step, value) for step, _, value in data] == [(step, step) for step in range(1, len(data) + 1)]
        assert len(data) >= 189


def test_one_step_is_one_event(run_dir: str, make_steps: MakeSteps) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    sink.steps(make_steps(7))
    sink.close("{}")
    (name,) = os.listdir(run_dir)
    records = list(tf.compat.v1.io.tf_record_iterator(os.path.join(run_dir, name)))
    # The format's version, the session's start, seven steps and the last window.
    assert len(records) == 2 + 7 + 1


def test_a_resumed_run_replaces_what_the_interrupted_one_wrote_beyond_the_checkpoint(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    interrupted = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    interrupted.steps(make_steps(10))
    interrupted.epoch(make_epoch(0), "{}")
    interrupted.steps(make_steps(8, first_step=11, wait=9.0))
    interrupted.close("{}")
    resumed = TensorBoardEvents(run_dir, "batch", start_step=10, resumed=True)
    resumed.steps(make_steps(3, first_step=11, wait=0.25))
    resumed.close("{}")
    shown = _scalars(tmp_path)
    assert [step for step, _, _ in shown["step/input_wait_ms"]] == list(range(1, 14))
    assert [value for _, _, value in shown["step/input_wait_ms"]][-3:] == [250.0] * 3
    assert [step for step, _, _ in shown["epoch/goodput_percent"]] == [10]
    assert [step for step, _, _ in shown["window/input_wait_max_ms"]] == [10, 13]


def test_a_new_file_sorts_after_the_earlier_ones_even_when_the_clock_was_set_back(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps
) -> None:
    def write(first_step: int, wall_seconds: float) -> None:
        resumed = first_step > 1
        sink = TensorBoardEvents(run_dir, "batch", first_step - 1, resumed, wall_clock=lambda: wall_seconds)
        sink.steps(make_steps(1, first_step=first_step))
        sink.close("{}")

    write(1, 1_700_000_100.0)
    write(2, 1_700_000_100.0)
    write(3, 1_600_000_000.0)
    assert len(os.listdir(run_dir)) == 3
    assert _steps_of(tmp_path, "step/total_ms") == [1, 2, 3]


def test_step_points_follow_update_freq_and_windows_are_always_written(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps
) -> None:
    sink = TensorBoardEvents(run_dir, "epoch", start_step=0, resumed=False)
    sink.steps(make_steps(40))
    sink.close("{}")
    assert _steps_of(tmp_path, "window/input_wait_max_ms") == [20, 40]
    assert "step/total_ms" not in _scalars(tmp_path)


def test_a_last_point_of_fewer_steps_is_written_at_the_end(tmp_path: Path, run_dir: str, make_steps: MakeSteps) -> None:
    sink = TensorBoardEvents(run_dir, 4, start_step=0, resumed=False)
    sink.steps(make_steps(6))
    sink.close("{}")
    assert _steps_of(tmp_path, "step/total_ms") == [4, 6]


def test_the_file_is_flushed_at_most_once_a_second_and_at_each_epochs_end(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    now = [100.0]
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False, mono=lambda: now[0])
    visible = []
    for first_step, seconds in ((1, 100.0), (2, 100.9), (3, 101.1), (4, 101.2)):
        now[0] = seconds
        sink.steps(make_steps(1, first_step=first_step))
        visible.append(len(_steps_of(tmp_path, "step/total_ms")))
    sink.epoch(make_epoch(), "{}")
    visible.append(len(_steps_of(tmp_path, "step/total_ms")))
    sink.close("{}")
    assert visible == [1, 1, 3, 3, 4]


def test_a_run_without_steps_leaves_no_file_and_closing_twice_is_fine(run_dir: str, make_steps: MakeSteps) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    sink.steps(make_steps(0))
    sink.close("{}")
    sink.close("{}")
    assert os.listdir(run_dir) == []


def test_a_directory_that_has_gone_is_an_os_error_that_names_it(tmp_path: Path, make_steps: MakeSteps) -> None:
    sink = TensorBoardEvents(str(tmp_path / "nowhere"), "batch", start_step=0, resumed=False)
    with pytest.raises(OSError, match="nowhere"):
        sink.steps(make_steps(1))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_an_os_error(run_dir: str, make_steps: MakeSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_gpu_watch.sinks.storage.join", lambda *_: "/dev/full")
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    with pytest.raises(OSError, match="No space left"):
        sink.steps(make_steps(1))


def test_an_hour_of_millisecond_steps_stays_far_below_the_size_limit(run_dir: str, make_steps: MakeSteps) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    chunk = make_steps(50_000)
    for _ in range(3_600 * 1_000 // len(chunk)):
        sink.steps(chunk)
        chunk["step"] += len(chunk)
    sink.close("{}")
    (name,) = os.listdir(run_dir)
    assert 1e6 < os.path.getsize(os.path.join(run_dir, name)) < 16e6


def test_a_day_of_eight_gpus_sampled_ten_times_a_second_stays_far_below_the_size_limit_and_keeps_its_gap(
    run_dir: str, make_steps: MakeSteps, make_gpu_samples: MakeGpus, make_host_samples: MakeHost
) -> None:
    half_an_hour, parts = 1_800, 48
    sink = TensorBoardEvents(run_dir, "epoch", start_step=0, resumed=False)
    steps = make_steps(half_an_hour, wait=0.5, compute=0.5, host=0.0)
    gpus = make_gpu_samples(0.05 + np.arange(10 * half_an_hour) / 10, gpus=8, utilization_percent=50.0)
    host = make_host_samples(0.05 + np.arange(2 * half_an_hour) / 2)
    for part in range(parts):
        # The last GPU is lost from hour 10 to hour 16, and slower before than afterwards.
        lost = 20 <= part < 32
        gpus["power_watts"] = np.where(gpus["gpu"] == 7, 100.0 if part < 20 else 300.0, 200.0)
        sink.steps(steps)
        sink.samples(gpus[gpus["gpu"] != 7] if lost else gpus, host)
        for rows, times in ((steps, "done_seconds"), (steps, "call_seconds"), (gpus, "seconds"), (host, "seconds")):
            rows[times] += half_an_hour
        steps["step"] += half_an_hour
    sink.close("{}")
    (name,) = os.listdir(run_dir)
    path = os.path.join(run_dir, name)
    assert 4e6 < os.path.getsize(path) < 16e6
    watts: dict[str, list[tuple[int, float]]] = {"gpu7/power_watts": [], "gpu4/power_watts": []}
    # TensorBoard's own reader takes 20 s for so many scalars.
    for record in tf.compat.v1.io.tf_record_iterator(path):
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            if value.tag in watts:
                watts[value.tag].append((event.step, value.simple_value))
    # A point covers 102 s by then.
    assert not [step for step, _ in watts["gpu7/power_watts"] if 36_000 + 103 < step <= 57_600]
    assert {round(value) for _, value in watts["gpu7/power_watts"]} == {100, 300}
    assert {round(value) for _, value in watts["gpu4/power_watts"]} == {200}
    assert max(np.diff([step for step, _ in watts["gpu4/power_watts"]])) <= 103


def test_knobs_that_were_tuned_are_scalars_by_their_stages_name(
    tmp_path: Path, run_dir: str, make_epoch: MakeEpoch
) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    sink.epoch(make_epoch(pipeline=PIPELINE, knobs=Knobs()), "{}")
    knobs = Knobs(parallel_calls={1: 8, 7: 2}, buffer_sizes={END: 4}, private_threadpool_size=10)
    sink.epoch(make_epoch(pipeline=PIPELINE, knobs=knobs), "{}")
    sink.close("{}")
    tuned = {name: points for name, points in _scalars(tmp_path).items() if name.startswith("tuner/")}
    assert {name: [value for *_, value in points] for name, points in tuned.items()} == {
        "tuner/1_map_decode/parallel_calls": [8.0],
        "tuner/7/parallel_calls": [2.0],
        "tuner/added/buffer_size": [4.0],
        "tuner/private_threadpool_size": [10.0],
    }
