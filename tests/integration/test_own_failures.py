# SPDX-License-Identifier: Apache-2.0
"""A part of ours that breaks is switched off, logged once and noted; training goes on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from trainings import BATCHES, dataset, read_report, tiny_model

from keras_gpu_watch import GPUWatch, ledger, watch
from keras_gpu_watch.accounting import summarize
from keras_gpu_watch.probes import step_timer
from keras_gpu_watch.probes.boundaries import Boundaries
from keras_gpu_watch.probes.gap_source import GapSource
from keras_gpu_watch.probes.gpu_sampler import GpuSampler
from keras_gpu_watch.probes.host_sampler import HostSampler
from keras_gpu_watch.probes.sampler import Sampler
from keras_gpu_watch.probes.stamp import Stamper
from keras_gpu_watch.probes.stamp_source import StampSource
from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.report.run_report import RunReport
from keras_gpu_watch.sinks.console import ConsoleSink
from keras_gpu_watch.sinks.fanout import BackgroundFanout
from keras_gpu_watch.sinks.json_report import JsonReport
from keras_gpu_watch.sinks.tensorboard_events import TensorBoardEvents

PARTS = {
    "stamp source": (StampSource, "resolve", "step timing"),
    "gap source": (GapSource, "resolve", "step timing"),
    "recorder": (Recorder, "add", "step timing"),
    "recorder, epoch": (Recorder, "take_epoch", "a callback hook"),
    "step timer": (step_timer.StepTimer, "_chunk", "step timing"),
    "boundaries": (Boundaries, "attach", "a callback hook"),
    "report": (RunReport, "to_json", "a callback hook"),
    "train function": (step_timer.StepTimer, "wrap", "a callback hook"),
    "console": (ConsoleSink, "epoch", "console output"),
    "console, end": (ConsoleSink, "close", "console output"),
    "event file": (TensorBoardEvents, "steps", "TensorBoard file"),
    "report file": (JsonReport, "epoch", "report.json"),
    "report file, end": (JsonReport, "close", "report.json"),
    "GPU sampler": (GpuSampler, "sample", "GPU sampling"),
    "host sampler": (HostSampler, "sample", "host sampling"),
    "recorder, samples": (Recorder, "add_samples", "handing on samples"),
    "sampling thread": (Sampler, "start", "sampling of GPUs and host"),
}
"""What is broken, and the name under which that is reported."""


class BrokenPartError(Exception):
    """Stands for any mistake of ours."""


def _break(*arguments: Any, **keywords: Any) -> Any:
    raise BrokenPartError("planted")


@pytest.mark.parametrize(
    ("part", "is_watched"), [*((part, part == "stamp source") for part in PARTS), ("gap source", True)]
)
def test_training_goes_on_when_a_part_of_ours_breaks(
    log_dir: str,
    part: str,
    is_watched: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: Any,
):
    owner, name, reported_as = PARTS[part]
    monkeypatch.setattr(owner, name, _break)
    model = tiny_model()
    model.make_train_function()
    own_function = model.train_function
    callback = GPUWatch(log_dir)
    data = watch(dataset()) if is_watched else dataset()
    history = model.fit(data, epochs=3, verbose=0, callbacks=[callback])
    assert len(history.history["loss"]) == 3
    assert model.optimizer.iterations.numpy() == 3 * BATCHES
    assert model.train_function is own_function
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert reported_as in errors[0].getMessage()
    assert errors[0].exc_info is not None
    noted = [note for note in callback.report.notes if note.startswith(reported_as)]
    assert len(noted) == 1
    assert "BrokenPartError: planted" in noted[0]
    # The next fit, with everything whole, is measured again.
    monkeypatch.undo()
    model.fit(data, epochs=1, verbose=0, callbacks=[callback])
    assert callback.report.status == "finished"
    assert callback.report.epochs[-1].batches == BATCHES


def test_without_a_writer_thread_the_files_are_written_at_the_end(log_dir: str, monkeypatch: pytest.MonkeyPatch):
    def no_more_threads(fanout: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BackgroundFanout, "start", no_more_threads)
    callback = GPUWatch(log_dir, console=False)
    tiny_model().fit(dataset(), epochs=3, verbose=0, callbacks=[callback])
    assert [path.name for path in Path(log_dir).iterdir()] == ["gpu_watch"]
    assert [epoch["batches"] for epoch in read_report(Path(log_dir) / "gpu_watch")["epochs"]] == [BATCHES] * 3
    assert any("can't start new thread" in note for note in callback.report.notes)


def test_a_failed_account_of_one_epoch_ends_the_watch_and_spoils_no_other(
    log_dir: str, monkeypatch: pytest.MonkeyPatch
):
    accounts = []

    def fail_once(*arguments: Any) -> Any:
        accounts.append(arguments)
        if len(accounts) == 2:
            raise BrokenPartError("planted")
        return summarize(*arguments)

    monkeypatch.setattr(ledger, "summarize", fail_once)
    callback = GPUWatch(log_dir, console=False)
    tiny_model().fit(dataset(), epochs=4, verbose=0, callbacks=[callback])
    assert [epoch.epoch for epoch in callback.report.epochs] == [0]
    assert callback.report.status == "interrupted"


def test_a_broken_part_is_noted_in_the_file_too(log_dir: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GapSource, "resolve", _break)
    tiny_model().fit(dataset(), epochs=2, verbose=0, callbacks=[GPUWatch(log_dir, console=False)])
    report = read_report(Path(log_dir) / "gpu_watch")
    assert report["status"] == "finished"
    assert any(note.startswith("step timing failed") for note in report["notes"])


def test_a_part_that_is_switched_off_is_not_asked_again(log_dir: str, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def count(*arguments: Any, **keywords: Any) -> Any:
        asked.append(1)
        raise BrokenPartError("planted")

    monkeypatch.setattr(GapSource, "resolve", count)
    tiny_model().fit(dataset(), epochs=3, verbose=0, callbacks=[GPUWatch(log_dir, console=False)])
    assert len(asked) == 1


def test_a_stamper_that_breaks_leaves_the_users_dataset(
    log_dir: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(Stamper, "__init__", _break)
    callback = GPUWatch(log_dir, console=False)
    tiny_model().fit(watch(dataset()), epochs=2, verbose=0, callbacks=[callback])
    assert [epoch.batches for epoch in callback.report.epochs] == [BATCHES, BATCHES]
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
    # tf.data's own model serves instead.
    assert callback.report.epochs[1].input_wait_seconds is not None
