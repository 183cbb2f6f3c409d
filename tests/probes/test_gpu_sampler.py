# SPDX-License-Identifier: Apache-2.0
"""What the sampler makes of machines: through the real binding, whatever NVML does."""

from __future__ import annotations

import numpy as np
import pytest
from nvml_scenarios import METRICS, all_zero_card, card, cards, split_card, uuid_of

from keras_gpu_watch.probes.gpu_sampler import LONGEST_RETRY_SECONDS, NO_DEVICE, GpuSampler, Retry
from keras_gpu_watch.probes.nvml import load_binding
from keras_gpu_watch.samples import GPU_FIELDS, GPU_SAMPLE_DTYPE, GpuSamples

ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class Bench:
    """A sampler on a scenario, with a clock that stands still between two samples.

    All cards are named by `CUDA_VISIBLE_DEVICES`, so that it is proved which ones are used.
    """

    def __init__(self, stub, *lines: str, environment: dict[str, str] | None = None) -> None:
        self.stub = stub
        self.now = 1000.0
        self.notes: list[str] = []
        self.buffers_gone = 0
        stub.load(*lines)
        if environment is None:
            numbers = {line.split(".")[1] for line in lines if line.startswith("card.")}
            environment = {"CUDA_VISIBLE_DEVICES": ",".join(numbers)}
        self.sampler = GpuSampler(
            load_binding(), None, self.notes.append, environment=environment, clock=lambda: self.now
        )

    def sample(self, times: int = 1, interval_seconds: float = 0.5) -> GpuSamples:
        """The last of some samples."""
        for _ in range(times):
            self.now += interval_seconds
            self.stub.set_seconds(self.now)
            rows = self.sampler.sample()
        return rows

    def shut_nvml_down(self) -> None:
        """What somebody else does. The buffers of GPM that it holds then are no longer ours to free."""
        self.buffers_gone = self.stub.gpm_samples
        load_binding().nvmlShutdown()
        assert self.stub.references == 0

    @property
    def devices(self):
        return self.sampler.devices

    @property
    def unavailable(self) -> dict[str, str]:
        (gpu,) = self.devices.gpus
        return dict(gpu.unavailable)


@pytest.fixture
def make_bench(nvml):
    """Benches whose samplers are closed at the end, and must then have given NVML back."""
    benches = []

    def make(*lines: str, environment: dict[str, str] | None = None) -> Bench:
        benches.append(Bench(nvml, *lines, environment=environment))
        return benches[-1]

    yield make
    nvml.set("error.* = 0")
    for bench in benches:
        bench.sampler.close()
    assert nvml.references == 0
    assert nvml.gpm_samples == sum(bench.buffers_gone for bench in benches)


def missing(row: np.void) -> set[str]:
    return {name for name in GPU_FIELDS if np.isnan(row[name])}


def test_nothing_is_asked_before_the_first_sample(nvml, make_bench):
    bench = make_bench(*card())
    assert bench.devices.status == "not started"
    assert nvml.calls("nvmlInitWithFlags") == 0


def test_one_healthy_card_gives_every_field(make_bench):
    bench = make_bench(*card())
    rows = bench.sample(2)
    assert rows.dtype == GPU_SAMPLE_DTYPE
    (row,) = rows
    assert missing(row) == set()
    assert (row["seconds"], row["gpu"], row["utilization_percent"], row["power_watts"]) == (bench.now, 0, 87, 412)
    assert (row["sm_activity_percent"], row["dram_activity_percent"]) == (METRICS[2], METRICS[10])
    devices = bench.devices
    assert (devices.status, devices.reason, devices.driver_version) == ("sampled", None, "580.65.06")
    assert devices.gpus[0].uuid == uuid_of(0)
    assert bench.notes == []


def test_eight_cards_give_a_row_each(make_bench):
    bench = make_bench(*cards(8), *(f"card.{number}.temperature = {40 + number}" for number in range(8)))
    rows = bench.sample(2)
    assert rows["gpu"].tolist() == list(range(8))
    assert rows["temperature_celsius"].tolist() == list(range(40, 48))
    assert [gpu.uuid for gpu in bench.devices.gpus] == [uuid_of(number) for number in range(8)]
    assert bench.notes == []


def test_the_slices_of_a_card_give_a_row_each(make_bench):
    bench = make_bench(*split_card(), environment={})
    rows = bench.sample(2)
    assert rows["memory_used_percent"].tolist() == [25, 5]
    assert np.isnan(rows["utilization_percent"]).all()
    assert rows["sm_activity_percent"].tolist() == [METRICS[2] / 2] * 2
    assert all(gpu.is_mig_slice for gpu in bench.devices.gpus)


def test_only_the_chosen_cards_are_read(nvml, make_bench):
    bench = make_bench(*cards(4), environment={"CUDA_VISIBLE_DEVICES": "2,0", **ORDER})
    assert bench.sample()["gpu"].tolist() == [0, 1]
    assert [gpu.uuid for gpu in bench.devices.gpus] == [uuid_of(2), uuid_of(0)]
    # What the others hold of GPM is freed at once.
    assert nvml.gpm_samples == 2 * 2
    assert nvml.calls("nvmlDeviceGetUtilizationRates") == 2


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (9, "no gpu", "the NVIDIA driver is not loaded: run nvidia-smi once"),
        (12, "no gpu", "in a container, start it with GPU support"),
        (18, "not sampled", "driver/library version mismatch: reboot"),
    ],
)
def test_an_init_that_will_never_succeed_is_said_once_and_not_tried_again(nvml, make_bench, code, status, words):
    bench = make_bench(*card(), f"error.nvmlInitWithFlags = {code}")
    assert len(bench.sample(20, interval_seconds=100)) == 0
    assert bench.devices.status == status
    assert words in bench.devices.reason
    assert bench.notes == [f"no GPU is sampled: {bench.devices.reason}"]
    assert nvml.calls("nvmlInitWithFlags") == 1


def test_a_driver_without_cards_is_no_gpu(make_bench):
    bench = make_bench("driver_version = 1", environment={})
    assert len(bench.sample(3)) == 0
    assert (bench.devices.status, bench.devices.reason) == ("no gpu", NO_DEVICE)
    assert bench.notes == [f"no GPU is sampled: {NO_DEVICE}"]


def test_hidden_cards_are_not_sampled(nvml, make_bench):
    bench = make_bench(*cards(2), environment={"CUDA_VISIBLE_DEVICES": "-1"})
    assert len(bench.sample(3)) == 0
    assert bench.devices.status == "no gpu"
    assert "hides every GPU" in bench.devices.reason
    assert len(bench.notes) == 1
    assert nvml.gpm_samples == 0


@pytest.mark.parametrize("code", [10, 15, 999])
@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"])
def test_a_bad_start_is_said_once_and_tried_again(nvml, make_bench, function, code):
    bench = make_bench(*card(), f"error.{function} = {code}")
    assert len(bench.sample(20)) == 0
    assert (bench.devices.status, bench.devices.gpus) == ("not sampled", ())
    assert bench.notes == [f"no GPU is sampled: {bench.devices.reason}"]
    assert nvml.references == 0
    nvml.set(f"error.{function} = 0")
    assert len(bench.sample(interval_seconds=LONGEST_RETRY_SECONDS)) == 1
    assert (bench.devices.status, bench.devices.reason) == ("sampled", None)
    assert len(bench.notes) == 1


def test_an_unknown_error_after_some_samples_leaves_a_gap(nvml, make_bench):
    bench = make_bench(*card(), "@6 error.* = 999")
    taken = [len(bench.sample()) for _ in range(10)]
    assert taken == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    devices = bench.devices
    assert devices.status == "lost"
    assert "restart it" in devices.reason
    assert devices.gpus[0].uuid == uuid_of(0)
    assert bench.notes == [f"no more GPU data: {devices.reason}"]


def test_a_note_tells_from_which_step_on_data_is_missing(nvml):
    nvml.load(*card())
    notes: list[str] = []
    sampler = GpuSampler(load_binding(), None, notes.append, lambda: 1234, environment={})
    sampler.sample()
    nvml.set("error.* = 999")
    sampler.sample()
    sampler.close()
    (note,) = notes
    assert note.startswith("no more GPU data from step 1234 on: ")


def test_an_outage_is_asked_about_after_1_2_4_seconds_and_so_on(nvml, make_bench):
    bench = make_bench(*card())
    bench.sample()
    nvml.set("error.* = 999")
    asked, begin = [], bench.now
    for _ in range(400):
        before = nvml.calls("nvmlDeviceGetMemoryInfo")
        bench.sample()
        if nvml.calls("nvmlDeviceGetMemoryInfo") > before:
            asked.append(bench.now - begin - 0.5)
    assert np.diff(asked).tolist() == [1, 2, 4, 8, 16, 32, 60, 60]


def test_an_outage_ends_when_nvml_answers_again(nvml, make_bench):
    bench = make_bench(*cards(2))
    bench.sample(3)
    for _ in range(2):
        nvml.set("error.* = 999")
        assert len(bench.sample(2)) == 0
        assert bench.devices.status == "lost"
        nvml.set("error.* = 0")
        rows = bench.sample(interval_seconds=1)
        assert rows["utilization_percent"].tolist() == [87, 87]
        assert (bench.devices.status, bench.devices.reason) == ("sampled", None)
        assert [gpu.status for gpu in bench.devices.gpus] == ["sampled", "sampled"]
    assert len(bench.notes) == 1


def test_one_of_four_cards_is_lost_and_the_others_go_on(nvml, make_bench):
    bench = make_bench(*cards(4), "@5 card.2.error.* = 15")
    assert bench.sample(3)["gpu"].tolist() == [0, 1, 2, 3]
    for _ in range(10):
        assert bench.sample()["gpu"].tolist() == [0, 1, 3]
    devices = bench.devices
    assert devices.status == "sampled"
    assert [gpu.status for gpu in devices.gpus] == ["sampled", "sampled", "lost", "sampled"]
    assert "Xid" in devices.gpus[2].reason
    (note,) = bench.notes
    assert devices.gpus[2].label in note
    assert "reset it or reboot" in note


def test_a_lost_card_that_comes_back_is_sampled_again(nvml, make_bench):
    bench = make_bench(*cards(4))
    bench.sample()
    nvml.set("card.2.error.* = 15")
    bench.sample(3)
    nvml.set("card.2.error.* = 0")
    assert bench.sample(interval_seconds=4)["gpu"].tolist() == [0, 1, 2, 3]
    assert [gpu.status for gpu in bench.devices.gpus] == ["sampled"] * 4


@pytest.mark.parametrize("code", [2, 15, 999])
def test_a_card_that_never_answered_leaves_the_others(nvml, make_bench, code):
    bench = make_bench(*cards(4), f"card.1.error.nvmlDeviceGetHandleByIndex_v2 = {code}", environment={})
    rows = bench.sample(3)
    assert rows["gpu"].tolist() == [0, 1, 2]
    assert [gpu.uuid for gpu in bench.devices.gpus] == [uuid_of(0), uuid_of(2), uuid_of(3)]
    assert len([note for note in bench.notes if note.startswith("a GPU is not sampled: ")]) == 1


def test_a_number_is_not_believed_beside_a_silent_card(make_bench):
    # Number 2 of the bus is at place 1 of the cards that answer.
    silent = "card.1.error.nvmlDeviceGetHandleByIndex_v2 = 15"
    bench = make_bench(*cards(4), silent, environment={"CUDA_VISIBLE_DEVICES": "2", **ORDER})
    bench.sample()
    assert [gpu.uuid for gpu in bench.devices.gpus] == [uuid_of(0), uuid_of(2), uuid_of(3)]
    assert "lacks a GPU" in bench.devices.identity


def test_a_card_that_is_lost_at_the_start_leaves_the_others(nvml, make_bench):
    bench = make_bench(*cards(4), "card.1.error.* = 15", "card.1.error.nvmlDeviceGetHandleByIndex_v2 = 0")
    assert bench.sample(3)["gpu"].tolist() == [0, 2, 3]
    device = bench.devices.gpus[1]
    assert (device.status, device.uuid, device.memory_total_bytes) == ("lost", None, None)
    assert {"uuid", "memory_total_bytes"} <= set(dict(device.unavailable))
    assert len(bench.notes) == 1


@pytest.mark.parametrize("codes", [(15,), (2, 999)])
def test_all_cards_lost_is_one_note(nvml, make_bench, codes):
    bench = make_bench(*cards(4))
    bench.sample()
    nvml.set(*(f"card.{number}.error.* = {codes[number % len(codes)]}" for number in range(4)))
    assert len(bench.sample(5)) == 0
    assert bench.devices.status == "lost"
    assert len(bench.notes) == 1


def test_a_card_that_answers_only_zeros_gives_only_gaps(make_bench):
    bench = make_bench(*all_zero_card())
    (row,) = bench.sample(3)
    assert missing(row) == set(GPU_FIELDS)
    assert set(bench.unavailable) >= set(GPU_FIELDS)


@pytest.mark.parametrize("times", [1, 3])
def test_somebody_elses_shutdown_is_survived(nvml, make_bench, times):
    bench = make_bench(*cards(2, pids="self 11"))
    bench.sample(2)
    for _ in range(times):
        bench.shut_nvml_down()
        rows = bench.sample()
        assert rows["utilization_percent"].tolist() == [87, 87]
        assert nvml.references == 1
    assert bench.sample()["sm_activity_percent"].tolist() == [METRICS[2]] * 2
    assert bench.devices.status == "sampled"
    assert [gpu.other_processes for gpu in bench.devices.gpus] == [1, 1]
    assert bench.notes == []


def test_somebody_elses_init_and_shutdown_do_no_harm(nvml, make_bench):
    bench = make_bench(*card())
    bench.sample()
    load_binding().nvmlInit()
    bench.sample()
    load_binding().nvmlShutdown()
    assert len(bench.sample()) == 1
    assert nvml.calls("nvmlInitWithFlags") == 2


def test_cards_without_uuid_are_told_apart_after_a_shutdown(nvml, make_bench):
    lines = [f"card.{number}.temperature = {50 + number}" for number in range(3)]
    bench = make_bench(*cards(3), *lines, "error.nvmlDeviceGetUUID = 13")
    bench.sample()
    bench.shut_nvml_down()
    assert bench.sample()["temperature_celsius"].tolist() == [50, 51, 52]


def test_handles_that_are_no_longer_valid_are_looked_up_again(nvml, make_bench):
    bench = make_bench(*card())
    bench.sample()
    nvml.set("card.0.stale = 1")
    assert bench.sample()["utilization_percent"].tolist() == [87]
    assert nvml.references == 1
    assert bench.notes == []


def test_a_card_that_takes_no_handle_does_not_pile_up_references(nvml, make_bench):
    bench = make_bench(*cards(2))
    bench.sample()
    nvml.set("card.1.error.* = 2", "card.1.error.nvmlDeviceGetHandleByIndex_v2 = 0")
    for _ in range(20):
        assert bench.sample(interval_seconds=LONGEST_RETRY_SECONDS)["gpu"].tolist() == [0]
    assert nvml.references == 1
    assert nvml.gpm_samples <= 2 * 2 + 2
    assert len(bench.notes) == 1


def test_a_driver_version_that_is_no_text_is_none(nvml, make_bench):
    bench = make_bench(*card())
    nvml.set(b"driver_version = \xff\xfe")
    assert len(bench.sample()) == 1
    assert bench.devices.driver_version is None


def test_closing_twice_and_before_the_first_sample_does_no_harm(nvml, make_bench):
    bench = make_bench(*card())
    bench.sampler.close()
    bench.sample()
    bench.sampler.close()
    bench.sampler.close()
    assert nvml.references == 0


def test_closing_after_nvml_was_shut_down_does_no_harm(nvml, make_bench):
    bench = make_bench(*card(gpm_supported=0))
    bench.sample()
    bench.shut_nvml_down()
    bench.sampler.close()
    assert nvml.references == 0


def test_the_pause_between_retries_doubles_up_to_a_minute():
    retry = Retry()
    now, pauses = 0.0, []
    for _ in range(9):
        retry.failed(now)
        pause = next(pause for pause in range(1, 100) if retry.is_due(now + pause))
        pauses.append(pause)
        now += pause
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    retry.succeeded()
    retry.failed(now)
    assert retry.is_due(now + 1)
