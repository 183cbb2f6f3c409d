# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from trainings import BATCHES, dataset, tiny_model

from keras_gpu_watch import GPUWatch
from keras_gpu_watch.records import STEP_DTYPE


@pytest.mark.parametrize(
    ("arguments", "kind", "name"),
    [
        ({"log_dir": 3}, TypeError, "log_dir"),
        ({"log_dir": None}, TypeError, "log_dir"),
        ({"log_dir": b"logs"}, TypeError, "log_dir"),
        ({"autotune": 1}, TypeError, "autotune"),
        ({"autotune": None}, TypeError, "autotune"),
        ({"update_freq": 0}, ValueError, "update_freq"),
        ({"update_freq": -5}, ValueError, "update_freq"),
        ({"update_freq": True}, ValueError, "update_freq"),
        ({"update_freq": 2.5}, ValueError, "update_freq"),
        ({"update_freq": "step"}, ValueError, "update_freq"),
        ({"update_freq": [1]}, ValueError, "update_freq"),
        ({"gpu_interval": 0.05}, ValueError, "gpu_interval"),
        ({"gpu_interval": float("nan")}, ValueError, "gpu_interval"),
        ({"gpu_interval": float("inf")}, ValueError, "gpu_interval"),
        ({"gpu_interval": "1"}, ValueError, "gpu_interval"),
        ({"gpu_interval": True}, ValueError, "gpu_interval"),
        ({"console": 1}, TypeError, "console"),
        ({"console": "no"}, TypeError, "console"),
    ],
)
def test_a_wrong_argument_raises_at_construction_and_says_what_was_received_and_expected(
    arguments: dict[str, Any], kind: type[Exception], name: str
):
    with pytest.raises(kind) as caught:
        GPUWatch(**arguments)
    message = str(caught.value)
    assert message.startswith(f"Invalid value for argument `{name}`. Received: {name}={arguments[name]!r}. Expected: ")


@pytest.mark.parametrize("log_dir", ["", "logs", Path("logs"), "gs://bucket/logs"])
@pytest.mark.parametrize("update_freq", ["batch", "epoch", 1, 10_000])
@pytest.mark.parametrize("gpu_interval", [0.1, 1, 60.0])
def test_every_documented_argument_is_accepted(
    log_dir: str | Path, update_freq: str | int, gpu_interval: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    GPUWatch(log_dir, update_freq=update_freq, gpu_interval=gpu_interval, console=False, autotune=False)
    assert os.listdir(tmp_path) == []


def test_other_arguments_than_log_dir_are_named():
    with pytest.raises(TypeError):
        GPUWatch("logs", False)  # type: ignore[call-arg]


def test_before_fit_there_is_an_empty_report_and_no_step():
    watch = GPUWatch()
    assert watch.report.epochs == ()
    assert watch.report.info is None
    assert watch.batches().dtype == STEP_DTYPE
    assert len(watch.batches()) == 0


def test_a_tilde_stands_for_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tiny_model().fit(dataset(), verbose=0, callbacks=[GPUWatch("~/logs", console=False)])
    assert (tmp_path / "logs" / "gpu_watch" / "report.json").exists()


def test_a_path_object_works_like_its_string(tmp_path: Path):
    tiny_model().fit(dataset(), verbose=0, callbacks=[GPUWatch(tmp_path / "logs", console=False)])
    assert (tmp_path / "logs" / "gpu_watch" / "report.json").exists()


def test_the_batches_are_one_structured_row_for_each_call(log_dir: str):
    watch = GPUWatch(log_dir, console=False)
    tiny_model().fit(dataset(), epochs=2, verbose=0, callbacks=[watch])
    rows = watch.batches()
    assert isinstance(rows, np.ndarray)
    assert rows.dtype == STEP_DTYPE
    assert rows["epoch"].tolist() == [0] * BATCHES + [1] * BATCHES
    assert np.all(np.diff(rows["call_seconds"]) > 0)
    assert np.all(rows["done_seconds"] > rows["call_seconds"])
    assert np.isnan(rows["host_seconds"]).sum() == 2


def test_it_is_a_keras_callback_like_any_other():
    assert isinstance(GPUWatch(), keras.callbacks.Callback)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda watch: pickle.loads(pickle.dumps(watch))])
def test_a_copy_watches_for_itself(log_dir: str, copied: Callable[[GPUWatch], GPUWatch]):
    original = GPUWatch(log_dir, console=False, update_freq=7)
    other = copied(original)
    tiny_model().fit(dataset(), verbose=0, callbacks=[other])
    assert len(other.report.epochs) == 1
    assert original.report.epochs == ()
