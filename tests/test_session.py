# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from trainings import BATCHES, Sleeper, assert_closed, dataset, parts_seconds, read_report, tiny_model

from keras_gpu_watch import GPUWatch, ledger

TICK_SECONDS = 0.5
"""How often the background thread looks whether `fit` is still there."""


def test_a_fit_that_outlasts_several_looks_is_not_taken_for_interrupted(log_dir: str):
    watch = GPUWatch(log_dir, console=False)
    slow = Sleeper(on_train_batch_end=3 * TICK_SECONDS / BATCHES)
    tiny_model().fit(dataset(), verbose=0, callbacks=[slow, watch])
    assert watch.report.status == "finished"
    assert watch.report.epochs[0].batches == BATCHES


def test_an_epoch_added_up_in_pieces_gives_the_same_account(log_dir: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "EPOCH_STEPS_AT_ONCE", 1)
    watch = GPUWatch(log_dir, console=False)
    # The pieces are read by time: several of them need steps that take a while.
    monkeypatch.setattr("keras_gpu_watch.probes.step_timer.READ_EVERY_SECONDS", 0.0)
    tiny_model().fit(dataset(), epochs=2, verbose=0, callbacks=[watch])
    rows = watch.batches()
    for epoch in watch.report.epochs:
        of_epoch = rows[rows["epoch"] == epoch.epoch]
        assert (epoch.steps, epoch.batches) == (BATCHES, BATCHES)
        assert epoch.host_seconds == pytest.approx(np.nansum(of_epoch["host_seconds"]))
        assert_closed(epoch)


def test_hooks_called_by_hand_give_an_account_too(log_dir: str):
    model = tiny_model()
    watch = GPUWatch(log_dir, console=False)
    watch.set_model(model)
    model.make_train_function()
    plain = model.train_function
    watch.on_train_begin()
    for epoch in range(2):
        watch.on_epoch_begin(epoch)
        for batch, _ in enumerate(range(BATCHES)):
            if batch == 0:
                iterator = iter(dataset())
            watch.on_train_batch_begin(batch)
            model.train_function(iterator)
        watch.on_epoch_end(epoch)
    watch.on_train_end()
    assert model.train_function is plain
    assert watch.report.status == "finished"
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES, BATCHES]
    for account in watch.report.epochs:
        assert_closed(account)


def test_hooks_out_of_order_do_no_harm(log_dir: str):
    watch = GPUWatch(log_dir, console=False)
    watch.set_model(tiny_model())
    watch.on_test_end()
    watch.on_train_end()
    watch.on_epoch_begin(0)
    watch.on_train_batch_begin(0)
    watch.on_train_end()
    assert watch.report.epochs == ()
    assert not Path(log_dir).exists()


def test_a_callback_list_made_by_the_user_is_timed_like_one_made_by_fit(log_dir: str):
    model = tiny_model()
    watch = GPUWatch(log_dir, console=False)
    callbacks = keras.callbacks.CallbackList([watch, Sleeper(on_epoch_end=0.1)], add_history=True, model=model)
    time.sleep(0.3)
    model.fit(dataset(), epochs=2, verbose=0, callbacks=callbacks)
    assert watch.report.status == "finished"
    assert [epoch.batches for epoch in watch.report.epochs] == [BATCHES, BATCHES]
    # What happened between making the list and `fit` is no part of the run.
    assert (watch.report.startup_seconds or 0.0) < 0.25
    assert watch.report.epochs[0].epoch_end_seconds >= 0.1


def test_a_fit_on_another_thread_is_measured(log_dir: str):
    watch = GPUWatch(log_dir, console=False)
    slow = Sleeper(on_train_batch_end=2 * TICK_SECONDS / BATCHES)
    model = tiny_model()
    fit = threading.Thread(target=lambda: model.fit(dataset(), verbose=0, callbacks=[watch, slow]))
    fit.start()
    fit.join()
    assert watch.report.status == "finished"
    assert watch.report.epochs[0].batches == BATCHES


def test_the_second_fit_of_a_callback_goes_on_with_the_run_of_the_first(log_dir: str):
    model = tiny_model()
    watch = GPUWatch(log_dir, console=False)
    model.fit(dataset(), epochs=1, verbose=0, callbacks=[watch])
    first = watch.report
    model.fit(dataset(), initial_epoch=1, epochs=3, verbose=0, callbacks=[watch])
    report = watch.report
    assert report.info is not None
    assert report.info.resumed
    assert report.info.start_step == 0
    assert [epoch.epoch for epoch in report.epochs] == [0, 1, 2]
    assert report.epochs[0] == first.epochs[0]
    assert report.startup_seconds is not None
    total = report.startup_seconds + sum(parts_seconds(epoch) for epoch in report.epochs)
    assert report.wall_seconds == pytest.approx(total, abs=5e-3)
    assert watch.batches()["step"].tolist() == list(range(1, 3 * BATCHES + 1))
    assert [path.name for path in Path(log_dir).iterdir()] == ["gpu_watch"]
    assert len(read_report(Path(log_dir) / "gpu_watch")["epochs"]) == 3


def test_one_callback_with_a_fresh_model_begins_a_run_of_its_own(log_dir: str):
    watch = GPUWatch(log_dir, console=False)
    for _ in range(2):
        tiny_model().fit(dataset(), verbose=0, callbacks=[watch])
    assert len(watch.report.epochs) == 1
    assert sorted(path.name for path in Path(log_dir).iterdir()) == ["gpu_watch", "gpu_watch-2"]


def test_a_process_that_ends_in_the_middle_of_a_training_completes_its_files(log_dir: str):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import conftest
from trainings import dataset, tiny_model
from keras_gpu_watch import GPUWatch
model = tiny_model()
model.make_train_function()
watch = GPUWatch({log_dir!r}, console=False)
watch.set_model(model)
watch.on_train_begin()
watch.on_epoch_begin(0)
iterator = iter(dataset())
for _ in range(3):
    model.train_function(iterator)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    report = read_report(Path(log_dir) / "gpu_watch")
    assert report["status"] == "interrupted"
    assert report["epochs"][0]["batches"] == 3
