# SPDX-License-Identifier: Apache-2.0
"""What a training leaves on disk and on the console."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from trainings import BATCHES, dataset, read_report, tiny_model

from keras_gpu_watch import GPUWatch, tags

STEP_TAGS = {"step/input_wait_ms", "step/compute_ms", "step/host_ms", "step/total_ms"}
EPOCH_TAGS = {
    "epoch/goodput_percent",
    "epoch/input_wait_share_percent",
    "epoch/ceiling_speedup",
    "epoch/first_batch_seconds",
    "epoch/compile_seconds",
    "epoch/examples_per_second",
}


def read_run(run_dir: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def _generic(tag: str) -> str:
    """The tag as `tags` has it."""
    tag = re.sub(r"^gpu\d+/", "gpu<i>/", tag)
    return re.sub(r"^(pipeline|callback)/[^/]+/", lambda found: f"{found[1]}/<{_PLACES[found[1]]}>/", tag)


_PLACES = {"pipeline": "stage", "callback": "name"}


def steps_of(run: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in run.Scalars(tag)]


def train(log_dir: str | Path, model: keras.Model | None = None, epochs: int = 2, **arguments: Any) -> GPUWatch:
    watch = GPUWatch(log_dir, **{"console": False, **arguments})
    (model or tiny_model()).fit(dataset(), epochs=epochs, verbose=0, callbacks=[watch])
    return watch


def test_the_files_hold_every_step_and_every_epoch_and_nothing_else(log_dir: str):
    watch = train(log_dir)
    run_dir = Path(log_dir) / "gpu_watch"
    events, report = sorted(run_dir.iterdir(), key=lambda path: path.name == "report.json")
    assert "tfevents" in events.name
    assert report.name == "report.json"
    run = read_run(run_dir)
    written = {_generic(tag) for tag in run.Tags()["scalars"]}
    assert {tag for tag in written if tag.startswith(("step/", "epoch/"))} == STEP_TAGS | EPOCH_TAGS
    assert written <= {tag.name for tag in tags.TAGS}
    assert steps_of(run, "step/total_ms") == list(range(1, 2 * BATCHES + 1))
    assert steps_of(run, "epoch/goodput_percent") == [BATCHES, 2 * BATCHES]
    rows = watch.batches()
    totals = [event.value for event in run.Scalars("step/total_ms")]
    seconds = rows["done_seconds"] - rows["call_seconds"] + np.nan_to_num(rows["host_seconds"])
    assert totals == pytest.approx(1e3 * seconds, rel=1e-5)
    assert json.loads(watch.report.to_json()) == read_report(run_dir)


def test_samples_lie_on_the_step_axis_beside_the_steps(log_dir: str):
    slow = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.15))
    tiny_model().fit(dataset(), epochs=1, verbose=0, callbacks=[GPUWatch(log_dir, console=False), slow])
    run = read_run(Path(log_dir) / "gpu_watch")
    ends = {event.step: event.wall_time for event in run.Scalars("step/total_ms")}
    samples = run.Scalars("host/memory_percent")
    assert len({event.step for event in samples}) >= 2
    for event in samples:
        # Between the end of the step before and its own; after the last step there is only the end of `fit`.
        assert event.step == BATCHES or event.wall_time <= ends[event.step] + 0.01
        assert event.step == 1 or event.wall_time >= ends[event.step - 1] - 0.01


def test_update_freq_epoch_writes_no_step(log_dir: str):
    train(log_dir, update_freq="epoch")
    written = set(read_run(Path(log_dir) / "gpu_watch").Tags()["scalars"])
    assert written >= EPOCH_TAGS
    assert not written & STEP_TAGS


def test_update_freq_in_steps_writes_means(log_dir: str):
    watch = train(log_dir, update_freq=5)
    run = read_run(Path(log_dir) / "gpu_watch")
    assert steps_of(run, "step/host_ms") == [5, 10, 15, 20]
    hosts = watch.batches()["host_seconds"].reshape(4, 5)
    written = [event.value for event in run.Scalars("step/host_ms")]
    assert written == pytest.approx(1e3 * np.nanmean(hosts, axis=1), rel=1e-5)


# What Keras does when it reads the learning rate.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
@pytest.mark.parametrize("ours_first", [True, False])
def test_keras_own_tensorboard_callback_in_the_same_directory_keeps_working(log_dir: str, ours_first: bool):
    callbacks = [GPUWatch(log_dir, console=False), keras.callbacks.TensorBoard(log_dir, update_freq="batch")]
    model = tiny_model()
    model.fit(
        dataset(),
        validation_data=dataset(),
        epochs=2,
        verbose=0,
        callbacks=callbacks if ours_first else callbacks[::-1],
    )
    runs = EventMultiplexer(size_guidance={"tensors": 0}).AddRunsFromDirectory(log_dir)
    runs.Reload()
    assert set(runs.Runs()) == {"gpu_watch", "train", "validation"}
    assert len(runs.Scalars("gpu_watch", "epoch/goodput_percent")) == 2
    assert len(runs.Tensors("train", "epoch_loss")) == 2
    assert len(runs.Tensors("train", "batch_loss")) == 2 * BATCHES
    assert len(runs.Tensors("validation", "epoch_loss")) == 2


def test_a_second_callback_with_the_same_model_continues_the_run(log_dir: str):
    model = tiny_model()
    train(log_dir, model)
    watch = train(log_dir, model)
    assert os.listdir(log_dir) == ["gpu_watch"]
    assert watch.report.info is not None
    assert watch.report.info.resumed
    assert watch.report.info.start_step == 0
    run = read_run(Path(log_dir) / "gpu_watch")
    assert steps_of(run, "step/total_ms") == list(range(1, 4 * BATCHES + 1))
    assert len(read_report(Path(log_dir) / "gpu_watch")["epochs"]) == 4


def test_a_fresh_model_gets_a_run_of_its_own(log_dir: str):
    train(log_dir)
    train(log_dir)
    assert sorted(os.listdir(log_dir)) == ["gpu_watch", "gpu_watch-2"]
    for name in ("gpu_watch", "gpu_watch-2"):
        assert steps_of(read_run(Path(log_dir) / name), "step/total_ms") == list(range(1, 2 * BATCHES + 1))


RESUMABLE = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import conftest
import keras
from trainings import dataset, tiny_model
from keras_gpu_watch import GPUWatch

class Kill(keras.callbacks.Callback):
    epoch = 0
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 2 and batch == 4:
            os.kill(os.getpid(), signal.SIGKILL)

extra = [Kill()] if sys.argv[1] == "killed" else []
backup = keras.callbacks.BackupAndRestore({backup!r})
watch = GPUWatch({log_dir!r}, console=False)
tiny_model().fit(dataset(), epochs=4, verbose=0, callbacks=[watch, backup, *extra])
"""


@pytest.mark.slow
def test_a_killed_training_that_is_restored_continues_its_run_on_one_step_axis(log_dir: str, tmp_path: Path):
    code = RESUMABLE.format(tests=str(Path(__file__).parents[1]), backup=str(tmp_path / "backup"), log_dir=log_dir)
    killed = subprocess.run([sys.executable, "-c", code, "killed"], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    run_dir = Path(log_dir) / "gpu_watch"
    report = read_report(run_dir)
    assert report["status"] == "running"
    assert [epoch["epoch"] for epoch in report["epochs"]] == [0, 1]
    subprocess.run([sys.executable, "-c", code, "restored"], check=True, timeout=60)
    assert os.listdir(log_dir) == ["gpu_watch"]
    report = read_report(run_dir)
    assert report["status"] == "finished"
    assert report["start_step"] == 0
    assert [epoch["epoch"] for epoch in report["epochs"]] == [0, 1, 2, 3]
    assert [epoch["batches"] for epoch in report["epochs"]] == [BATCHES] * 4
    walls = sum(epoch["wall_seconds"] for epoch in report["epochs"])
    assert report["wall_seconds"] == pytest.approx(report["startup_seconds"] + walls, abs=0.005)
    assert steps_of(read_run(run_dir), "step/total_ms") == list(range(1, 4 * BATCHES + 1))


def test_a_log_directory_that_is_a_file_is_one_warning_and_training_goes_on(log_dir: str, capfd: Any):
    Path(log_dir).write_text("mine")
    watch = GPUWatch(log_dir)
    model = tiny_model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(dataset(), epochs=2, verbose=0, callbacks=[watch])
    ours = [str(warning.message) for warning in caught if "keras-gpu-watch" in str(warning.message)]
    assert len(ours) == 1
    assert log_dir in ours[0]
    assert watch.report.status == "finished"
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES, BATCHES]
    assert watch.report.info is not None
    assert watch.report.info.run_dir is None
    assert sum("can't be used as log_dir" in note for note in watch.report.notes) == 1
    assert Path(log_dir).read_text() == "mine"
    # The account is still printed.
    assert "GPU Watch epoch 2" in capfd.readouterr().out


def test_with_warnings_as_errors_a_log_directory_that_cannot_be_used_does_not_end_the_training(
    log_dir: str, caplog: pytest.LogCaptureFixture
):
    Path(log_dir).write_text("mine")
    watch = GPUWatch(log_dir, console=False)
    model = tiny_model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".shuffle=True. was passed")
        model.fit(dataset(), verbose=0, callbacks=[watch])
    assert watch.report.status == "finished"
    assert [record.levelname for record in caplog.records if record.name == "keras_gpu_watch"] == ["WARNING"]


class Vandal(keras.callbacks.Callback):
    """Puts a full device in the place of what is about to be written."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.run_dir = run_dir

    def on_epoch_begin(self, epoch, logs=None) -> None:
        if epoch == 0:
            (self.run_dir / f"report.json.{os.getpid()}.tmp").symlink_to("/dev/full")


def test_a_full_disk_is_one_warning_and_training_goes_on(log_dir: str):
    run_dir = Path(log_dir) / "gpu_watch"
    watch = GPUWatch(log_dir, console=False)
    with pytest.warns(RuntimeWarning, match=r"report\.json cannot be written any more") as caught:
        tiny_model().fit(dataset(), epochs=3, verbose=0, callbacks=[watch, Vandal(run_dir)])
    assert len([warning for warning in caught if "keras-gpu-watch" in str(warning.message)]) == 1
    assert watch.report.status == "finished"
    assert len(watch.report.epochs) == 3
    # The other file is written to its end.
    assert steps_of(read_run(run_dir), "step/total_ms") == list(range(1, 3 * BATCHES + 1))


def test_a_run_directory_that_is_deleted_under_way_does_not_end_the_training(log_dir: str):
    import shutil

    remover = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: shutil.rmtree(log_dir, True))
    watch = GPUWatch(log_dir, console=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tiny_model().fit(dataset(), epochs=3, verbose=0, callbacks=[watch, remover])
    assert len([warning for warning in caught if "keras-gpu-watch" in str(warning.message)]) <= 1
    assert watch.report.status == "finished"
    assert len(watch.report.epochs) == 3


def test_console_false_prints_nothing_at_all(log_dir: str, capfd: Any):
    train(log_dir)
    # TensorFlow may speak for itself on standard error.
    output = capfd.readouterr()
    assert output.out == ""
    assert "GPU Watch" not in output.err
    assert "keras-gpu-watch" not in output.err


def test_console_output_to_a_file_has_a_line_an_epoch_a_table_and_no_control_codes(log_dir: str, capfd: Any):
    train(log_dir, console=True)
    text = capfd.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("GPU Watch epoch ")]
    assert [line[: len("GPU Watch epoch 1:")] for line in lines] == ["GPU Watch epoch 1:", "GPU Watch epoch 2:"]
    assert "GPU Watch: seconds per epoch" in text
    assert not {"\x1b", "\r", "\b"} & set(text)


def test_a_note_is_printed_once(log_dir: str, capfd: Any):
    train(log_dir, tiny_model(steps_per_execution=4), epochs=3, console=True)
    lines = capfd.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("GPU Watch: steps_per_execution=4")]) == 1


def test_the_progress_bar_of_keras_is_left_alone(log_dir: str, capfd: Any):
    outputs = []
    for callbacks in ([], [GPUWatch(log_dir, console=False)]):
        keras.utils.set_random_seed(0)
        tiny_model().fit(dataset(), epochs=2, verbose=2, callbacks=callbacks)
        # Times differ from run to run.
        lines = capfd.readouterr().out.splitlines()
        outputs.append([line.rpartition(" - ")[2] if "loss" in line else line for line in lines])
    assert outputs[0] == outputs[1]


def test_the_report_of_every_state_is_json(log_dir: str):
    states: list[str] = []

    class Reader(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None) -> None:
            states.append(watch.report.to_json())

    watch = GPUWatch(log_dir, console=False)
    states.append(watch.report.to_json())
    tiny_model().fit(dataset(), epochs=2, verbose=0, callbacks=[watch, Reader()])
    states.append(watch.report.to_json())
    for text in states:
        assert "NaN" not in text
        assert "Infinity" not in text
        json.loads(text)
    assert json.loads(states[0])["info"] is None
    assert json.loads(states[-2])["status"] == "running"
    assert len(json.loads(states[-1])["epochs"]) == 2


def test_workers_of_one_job_write_to_directories_of_their_own(log_dir: str):
    code = textwrap.dedent(f"""
        import json, os, sys
        cluster = {{"worker": ["localhost:1", "localhost:2"]}}
        os.environ["TF_CONFIG"] = json.dumps({{"cluster": cluster, "task": {{"type": "worker", "index": 1}}}})
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        import conftest
        from trainings import dataset, tiny_model
        from keras_gpu_watch import GPUWatch
        tiny_model().fit(dataset(), verbose=0, callbacks=[GPUWatch({log_dir!r}, console=False)])
    """)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert read_report(Path(log_dir) / "gpu_watch" / "worker-1")["status"] == "finished"
