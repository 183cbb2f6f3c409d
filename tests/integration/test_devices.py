# SPDX-License-Identifier: Apache-2.0
"""Real trainings beside NVML in every state that it may be in: they end well, and the report tells the truth."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvml_scenarios import NvmlStub, all_zero_card, bus_id_of, card, cards, split_card, uuid_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainings import Sleeper, assert_account_closes, assert_closed, dataset, read_report, tiny_model

from keras_gpu_watch import GPUWatch

STEPS = 40
STEP_SECONDS = 0.02
INTERVAL_SECONDS = 0.1


def train(log_dir: str, steps: int = STEPS, epochs: int = 1, **options: Any) -> GPUWatch:
    """A fit of steps that take 20 ms or a little more, sampled ten times a second."""
    gpu_watch = GPUWatch(log_dir, gpu_interval=INTERVAL_SECONDS, **options)
    sleeper = Sleeper(on_train_batch_end=STEP_SECONDS)
    tiny_model().fit(dataset(steps), epochs=epochs, verbose=0, shuffle=False, callbacks=[gpu_watch, sleeper])
    return gpu_watch


def said_of_gpus(out: str) -> list[str]:
    """The different lines about GPUs, without those of epochs; the table repeats them."""
    lines = (line.strip().removeprefix("GPU Watch:").removeprefix("Note:").strip() for line in out.splitlines())
    return sorted({line for line in lines if "GPU" in line and not line.startswith(("GPU Watch epoch", "seconds"))})


def scalars(run_dir: str | Path) -> EventAccumulator:
    return EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()


def test_a_healthy_card_is_in_epochs_report_files_and_on_the_console(
    nvml: NvmlStub, log_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml.load(*card())

    report = train(log_dir, epochs=2).report

    assert report.devices.status == "sampled"
    (device,) = report.devices.gpus
    assert (device.name, device.uuid, device.pci_bus_id) == ("NVIDIA H100 80GB HBM3", uuid_of(0), bus_id_of(0))
    assert (device.pcie_generation, device.power_limit_watts, device.other_processes) == (5, 700.0, 0)
    for epoch in report.epochs:
        (gpu,) = epoch.gpus
        # Every 0.1 s; a machine under load may miss some.
        assert 0.4 * epoch.wall_seconds / INTERVAL_SECONDS <= gpu.samples <= epoch.wall_seconds / INTERVAL_SECONDS + 2
        assert gpu.utilization_percent is not None
        assert gpu.utilization_percent.mean == gpu.utilization_percent.p5 == 87.0
        assert gpu.power_watts is not None
        assert gpu.power_watts.mean == pytest.approx(412.0)
        # The stub's counter grows with its power.
        assert gpu.energy_joules == pytest.approx(412.0 * epoch.wall_seconds, rel=0.1)
        assert gpu.energy_joules is not None
        assert epoch.examples == 4 * STEPS
        assert gpu.joules_per_example == pytest.approx(gpu.energy_joules / epoch.examples)
        assert gpu.sm_activity_percent is not None
        assert gpu.sm_activity_percent.p50 == 55.5
    assert read_report(f"{log_dir}/gpu_watch")["devices"]["gpus"][0]["uuid"] == uuid_of(0)
    out = capsys.readouterr().out
    assert "GPU 87 % busy" in out
    events = scalars(f"{log_dir}/gpu_watch")
    utilization = events.Scalars("gpu0/utilization_percent")
    assert {point.value for point in utilization} == {87.0}
    assert [point.step for point in utilization] == sorted(point.step for point in utilization)
    assert utilization[-1].step <= 2 * STEPS
    assert utilization[-1].step > STEPS
    assert events.Scalars("host/memory_percent")


NOT_SAMPLED = {
    "no driver": (["init.error = 12"], "no gpu", "no NVIDIA driver was found"),
    "driver not loaded": (["error.nvmlInitWithFlags = 9"], "no gpu", "driver is not loaded"),
    "library mismatch": (["error.nvmlInitWithFlags = 18"], "not sampled", "driver/library version mismatch: reboot"),
    "no card": ([], "no gpu", "lists no GPU"),
}


@pytest.mark.parametrize("scenario", NOT_SAMPLED)
def test_without_a_usable_driver_one_line_says_so_and_the_rest_works(
    nvml: NvmlStub, log_dir: str, capsys: pytest.CaptureFixture[str], scenario: str
) -> None:
    lines, status, words = NOT_SAMPLED[scenario]
    if scenario == "no driver":
        # As the stub is without a scenario.
        nvml.unload()
    else:
        nvml.load(*lines)

    report = train(log_dir).report

    assert report.devices.status == status
    assert words in (report.devices.reason or "")
    assert report.epochs[0].gpus == ()
    assert report.epochs[0].host is not None
    assert_closed(report.epochs[0])
    (said,) = said_of_gpus(capsys.readouterr().out)
    assert words in said
    tags = scalars(f"{log_dir}/gpu_watch").Tags()["scalars"]
    assert not [tag for tag in tags if tag.startswith("gpu")]
    assert "step/compute_ms" in tags


FAILING = {
    "unknown error after some samples": ([*cards(2), "@10 error.* = 999"], "lost", "Unknown Error"),
    "every card is lost": ([*card(), "@8 card.0.error.* = 15"], "lost", "kernel log"),
}


@pytest.mark.parametrize("scenario", FAILING)
def test_readings_that_stop_leave_a_gap_and_one_line_with_the_step(
    nvml: NvmlStub, log_dir: str, capsys: pytest.CaptureFixture[str], scenario: str
) -> None:
    lines, status, words = FAILING[scenario]
    nvml.load(*lines)

    report = train(log_dir, epochs=2).report

    assert report.devices.status == status
    assert words in (report.devices.reason or "")
    assert report.epochs[0].gpus[0].utilization_percent is not None
    # Nothing came in the second epoch: no row rather than zeros.
    assert report.epochs[1].gpus == ()
    lost = [note for note in report.notes if note.startswith("no more GPU data from step")]
    assert len(lost) == 1
    assert words in lost[0]
    said = [line for line in said_of_gpus(capsys.readouterr().out) if "no more" in line]
    assert said == lost
    values = [point.value for point in scalars(f"{log_dir}/gpu_watch").Scalars("gpu0/utilization_percent")]
    assert set(values) == {87.0}


def test_one_lost_card_of_four_does_not_take_the_others_with_it(
    nvml: NvmlStub, log_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nvml.load(*cards(4), "@8 card.2.error.* = 15")

    report = train(log_dir, epochs=2).report

    assert report.devices.status == "sampled"
    assert [device.status for device in report.devices.gpus] == ["sampled", "sampled", "lost", "sampled"]
    assert "kernel log" in (report.devices.gpus[2].reason or "")
    assert [gpu.gpu for gpu in report.epochs[1].gpus] == [0, 1, 3]
    assert len([line for line in said_of_gpus(capsys.readouterr().out) if "no more data" in line]) == 1


def test_a_card_that_answers_only_zeros_is_not_believed(nvml: NvmlStub, log_dir: str) -> None:
    nvml.load(*all_zero_card())

    report = train(log_dir).report

    for gpu in report.epochs[0].gpus:
        assert gpu.utilization_percent is None
        assert gpu.idle_share is None
        assert gpu.power_watts is None
        assert gpu.energy_joules is None
    assert "0 bytes" in dict(report.devices.gpus[0].unavailable)["utilization_percent"]
    assert not [tag for tag in scalars(f"{log_dir}/gpu_watch").Tags()["scalars"] if tag.startswith("gpu")]


REFUSED = {
    "nvmlDeviceGetUtilizationRates": "utilization_percent",
    "nvmlDeviceGetMemoryInfo": "memory_used_percent",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_joules",
    "nvmlDeviceGetClockInfo": "sm_clock_mhz",
    "nvmlGpmQueryDeviceSupport": "sm_activity_percent",
}


@pytest.mark.parametrize("function", REFUSED)
def test_a_field_that_is_not_supported_is_missing_with_a_reason_and_the_others_come(
    nvml: NvmlStub, log_dir: str, capsys: pytest.CaptureFixture[str], function: str
) -> None:
    nvml.load(*card(), f"error.{function} = 3")

    report = train(log_dir).report

    summary = dataclasses.asdict(report.epochs[0].gpus[0])
    # Power is another way to the energy.
    missing = {field for field in REFUSED.values() if summary[field] is None} - {"energy_joules"}
    assert missing == {REFUSED[function]} - {"energy_joules"}
    assert dict(report.devices.gpus[0].unavailable)[REFUSED[function]]
    assert report.devices.status == "sampled"
    assert not [line for line in said_of_gpus(capsys.readouterr().out) if "no more" in line or "no GPU" in line]


def test_the_slices_of_a_card_give_their_memory_and_no_utilization(nvml: NvmlStub, log_dir: str) -> None:
    nvml.load(*split_card())

    report = train(log_dir).report

    assert [device.is_mig_slice for device in report.devices.gpus] == [True, True]
    first, second = report.epochs[0].gpus
    assert first.utilization_percent is second.utilization_percent is None
    assert first.memory_used_percent is not None
    assert second.memory_used_percent is not None
    assert (first.memory_used_percent.p50, second.memory_used_percent.p50) == (25.0, 5.0)
    assert "slice" in dict(report.devices.gpus[0].unavailable)["utilization_percent"]


def test_slow_calls_and_eight_cards_do_not_hold_up_the_training(nvml: NvmlStub, log_dir: str) -> None:
    nvml.load(*cards(8), "slow_ms.* = 50")

    report = train(log_dir).report

    assert report.status == "finished"
    epoch = report.epochs[0]
    assert_closed(epoch)
    # Eight cards with some ten calls of 50 ms each take 4 s: a watcher that waited for them would take as long.
    assert epoch.wall_seconds < 3.0


def test_the_sawtooth_is_said_in_words(nvml: NvmlStub, log_dir: str, capsys: pytest.CaptureFixture[str]) -> None:
    nvml.load(*card(busy_samples=5, idle_samples=5, memory_used=79 * 2**30))

    report = train(log_dir, steps=220).report

    (gpu,) = report.epochs[0].gpus
    assert gpu.swings is True
    out = capsys.readouterr().out
    assert "idle" in out
    assert "memory" in out


def test_the_account_is_the_same_with_a_stopwatch_beside_it(nvml: NvmlStub, log_dir: str) -> None:
    import time

    nvml.load(*cards(2))
    gpu_watch = GPUWatch(log_dir, gpu_interval=INTERVAL_SECONDS, console=False)
    times: dict[str, float] = {}

    class Stopwatch(Sleeper):
        def on_train_begin(self, logs: Any = None) -> None:
            times["begin"] = time.perf_counter()

        def on_train_end(self, logs: Any = None) -> None:
            times["end"] = time.perf_counter()

    stopwatch = Stopwatch(on_train_batch_end=STEP_SECONDS)
    tiny_model().fit(dataset(STEPS), epochs=2, verbose=0, shuffle=False, callbacks=[stopwatch, gpu_watch])
    assert_account_closes(gpu_watch, times["end"] - times["begin"])


def test_many_short_fits_and_two_watches_at_once_leave_nothing_behind(nvml: NvmlStub, tmp_path: Path) -> None:
    nvml.load(*cards(2))
    watches = [GPUWatch(tmp_path / str(number), gpu_interval=0.1, console=False) for number in range(2)]
    model = tiny_model()

    for _ in range(30):
        model.fit(dataset(2), verbose=0, shuffle=False, callbacks=watches)

    assert nvml.references == 0
    assert nvml.gpm_samples == 0
    # One at a time of each watch.
    assert nvml.threads <= 2 * 30
    for gpu_watch in watches:
        assert gpu_watch.report.status == "finished"


def test_somebody_elses_shutdown_of_nvml_does_not_end_the_readings(nvml: NvmlStub, log_dir: str) -> None:
    import pynvml

    nvml.load(*card())

    class ShutsDown(Sleeper):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == STEPS // 2:
                pynvml.nvmlShutdown()

    gpu_watch = GPUWatch(log_dir, gpu_interval=INTERVAL_SECONDS, console=False)
    sleeper = ShutsDown(on_train_batch_end=STEP_SECONDS)
    tiny_model().fit(dataset(STEPS), epochs=2, verbose=0, shuffle=False, callbacks=[gpu_watch, sleeper])

    assert gpu_watch.report.devices.status == "sampled"
    assert gpu_watch.report.epochs[1].gpus[0].samples > 2
    assert not [note for note in gpu_watch.report.notes if "no more" in note]
    assert nvml.references == 0


def test_batches_and_weights_are_the_same_with_and_without_the_sampler(nvml: NvmlStub, log_dir: str) -> None:
    import keras

    nvml.load(*cards(8), "@30 error.* = 999")
    weights = []
    for callbacks in ([], [GPUWatch(log_dir, gpu_interval=INTERVAL_SECONDS, console=False)]):
        keras.utils.set_random_seed(1)
        model = tiny_model()
        model.fit(dataset(30).shuffle(8, seed=3), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
        weights.append(model.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        assert np.array_equal(ours, theirs)


def test_no_warning_is_shown_and_no_number_is_nan(nvml: NvmlStub, log_dir: str) -> None:
    nvml.load(*card(utilization=2**32 - 1, temperature=0))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = train(log_dir, console=False).report

    gpu = report.epochs[0].gpus[0]
    assert gpu.utilization_percent is None
    assert gpu.temperature_max_celsius is None
    assert gpu.power_watts is not None
    assert not math.isnan(gpu.power_watts.mean)
    assert "can't be true" in dict(report.devices.gpus[0].unavailable)["utilization_percent"]


WITHOUT_THE_BINDING = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pynvml":
            raise ImportError("No module named 'pynvml'")
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, sys.argv[1])
from trainings import dataset, tiny_model
from keras_gpu_watch import GPUWatch
gpu_watch = GPUWatch(sys.argv[2])
tiny_model().fit(dataset(), verbose=0, shuffle=False, callbacks=[gpu_watch])
report = gpu_watch.report
assert report.devices.status == "not sampled", report.devices
assert report.epochs[0].compute_seconds > 0
print(report.devices.reason)
"""


def test_without_the_binding_time_is_measured_all_the_same(log_dir: str) -> None:
    command = [sys.executable, "-W", "error::FutureWarning", "-c", WITHOUT_THE_BINDING]

    result = subprocess.run(
        [*command, str(Path(__file__).parent.parent), log_dir], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "pip install nvidia-ml-py" in result.stdout
    assert "Traceback" not in result.stderr
