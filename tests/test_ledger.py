# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest

from keras_gpu_watch import ledger as ledger_module
from keras_gpu_watch.guard import Guard
from keras_gpu_watch.ledger import Ledger
from keras_gpu_watch.recorder import Recorder
from keras_gpu_watch.records import STEP_DTYPE, EpochSummary, StepArray, StepKind
from keras_gpu_watch.samples import GPU_SAMPLE_DTYPE, HOST_SAMPLE_DTYPE, Devices, GpuDevice, GpuSamples, HostSamples

STEP_SECONDS = 0.1
DEVICES = Devices(status="sampled", gpus=(GpuDevice(name="card"),))


def steps(count: int, begin_seconds: float) -> StepArray:
    chunk = np.zeros(count, STEP_DTYPE)
    chunk["step"] = np.arange(1, count + 1)
    chunk["batches"], chunk["examples"], chunk["kind"] = 1, 8, StepKind.STEADY
    chunk["call_seconds"] = begin_seconds + np.arange(count) * STEP_SECONDS
    chunk["done_seconds"] = chunk["call_seconds"] + STEP_SECONDS
    chunk["compute_seconds"] = STEP_SECONDS
    chunk["host_seconds"][0] = np.nan
    return chunk


def samples(begin_seconds: float, end_seconds: float, utilization: float) -> tuple[GpuSamples, HostSamples]:
    times = np.arange(begin_seconds, end_seconds, 0.1)
    gpus = np.full(len(times), 0, GPU_SAMPLE_DTYPE)
    for name in (GPU_SAMPLE_DTYPE.names or ())[2:]:
        gpus[name] = np.nan
    gpus["seconds"], gpus["utilization_percent"] = times, utilization
    gpus["energy_joules"] = 100.0 * times
    host = np.full(len(times), 0, HOST_SAMPLE_DTYPE)
    host["seconds"], host["cpu_percent"] = times, 30.0
    return gpus, host


def run_epoch(ledger: Ledger, epoch: int, begin_seconds: float, utilization: float) -> EpochSummary:
    """Five seconds: half a second before the steps, four seconds of them, half a second after them."""
    ledger.begin(epoch, begin_seconds)
    ledger.add(steps(40, begin_seconds + 0.5))
    for gpus, host in zip(*samples(begin_seconds, begin_seconds + 5.0, utilization), strict=True):
        ledger.add_samples(gpus.reshape(1), host.reshape(1))
    return ledger.close(ledger.frame(begin_seconds + 5.0), DEVICES)


def make_ledger(notes: list[str] | None = None) -> Ledger:
    return Ledger(Recorder(), Guard((notes if notes is not None else []).append))


def test_an_epochs_account_has_its_own_steps_and_samples() -> None:
    ledger = make_ledger()

    summaries = [
        run_epoch(ledger, epoch, 100.0 + 5.0 * epoch, utilization) for epoch, utilization in ((0, 40), (1, 60))
    ]

    for summary, utilization in zip(summaries, (40.0, 60.0), strict=True):
        assert (summary.steps, summary.examples) == (40, 320.0)
        (gpu,) = summary.gpus
        assert gpu.utilization_percent is not None
        assert gpu.utilization_percent.mean == utilization
        assert gpu.energy_joules == pytest.approx(500.0, rel=0.03)
        assert gpu.joules_per_example == pytest.approx(500.0 / 320, rel=0.03)
        assert summary.host is not None
        assert summary.host.cpu_percent is not None
        assert summary.host.cpu_percent.mean == 30.0
    assert not ledger.is_open


def test_a_long_epoch_is_added_up_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_epoch(make_ledger(), 0, 100.0, 50.0)
    monkeypatch.setattr(ledger_module, "EPOCH_STEPS_AT_ONCE", 7)
    ledger = make_ledger()
    ledger.begin(0, 100.0)
    for piece in np.split(steps(40, 100.5), 10):
        ledger.add(piece)
    for gpus, host in zip(*samples(100.0, 105.0, 50.0), strict=True):
        ledger.add_samples(gpus.reshape(1), host.reshape(1))

    in_pieces = ledger.close(ledger.frame(105.0), DEVICES)

    assert (in_pieces.gpus, in_pieces.host) == (whole.gpus, whole.host)
    for field in dataclasses.fields(EpochSummary):
        # The steps for the picture lie within one piece.
        if field.name not in ("gpus", "host", "typical_steps"):
            assert getattr(in_pieces, field.name) == pytest.approx(getattr(whole, field.name), abs=1e-9), field.name


def test_the_account_of_time_survives_that_of_the_samples(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("planted")

    notes: list[str] = []
    ledger = make_ledger(notes)
    monkeypatch.setattr(ledger_module, "summarize_gpus", broken)
    with caplog.at_level(logging.CRITICAL, "keras_gpu_watch"):
        summaries = [run_epoch(ledger, epoch, 100.0 + 5.0 * epoch, 40.0) for epoch in range(2)]

    assert [summary.step_seconds for summary in summaries] == pytest.approx([4.0, 4.0])
    assert summaries[0].gpus == ()
    assert len(notes) == 1
    assert ledger_module.SAMPLE_ACCOUNT in notes[0]


def test_what_an_unfinished_epoch_left_is_forgotten() -> None:
    ledger = make_ledger()
    ledger.begin(0, 100.0)
    ledger.add(steps(5, 100.0))
    ledger.add_samples(*samples(100.0, 101.0, 99.0))

    ledger.clear()
    summary = run_epoch(ledger, 0, 200.0, 40.0)

    assert summary.steps == 40
    # Nothing of the time between the two is in it: the stub's counter gains 100 J a second.
    assert summary.gpus[0].energy_joules == pytest.approx(500.0, rel=0.03)
    assert summary.gpus[0].utilization_percent is not None
    assert summary.gpus[0].utilization_percent.p95 == 40.0
