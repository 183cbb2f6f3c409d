# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.scalar.metadata import PLUGIN_NAME

from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.sinks.tensorboard_events import TensorBoardEvents
from keras_gpu_watch.tags import TAGS

MakeSteps = Callable[..., StepArray]
MakeEpoch = Callable[..., EpochSummary]


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


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    (tmp_path / "gpu_watch").mkdir()
    return str(tmp_path / "gpu_watch")


def test_tensorboard_shows_every_tag_and_no_other(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps, make_epoch: MakeEpoch
) -> None:
    sink = TensorBoardEvents(run_dir, "batch", start_step=0, resumed=False)
    sink.steps(make_steps(20))
    sink.epoch(make_epoch(), "{}")
    sink.close("{}")
    assert set(_scalars(tmp_path)) == {tag.name for tag in TAGS}


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
    }


def test_a_point_carries_the_wall_clock_time_of_its_steps_end(
    tmp_path: Path, run_dir: str, make_steps: MakeSteps
) -> None:
    sink = TensorBoardEvents(
        run_dir, "batch", start_step=0, resumed=False, mono=lambda: 50.0, wall_clock=lambda: 1_700_000_000.0
    )
    sink.steps(make_steps(1, start=40.0))
    sink.close("{}")
    assert _scalars(tmp_path)["step/total_ms"][0][1] == pytest.approx(1_700_000_000.0 - 10.0 + 0.01)


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
