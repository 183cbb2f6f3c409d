# SPDX-License-Identifier: Apache-2.0
"""One card, read field by field through the real binding: what is missing has a reason, and never is 0."""

from __future__ import annotations

import math

import pytest
from nvml_scenarios import ALL_BITS, ALL_BITS_64, GIB, all_zero_card, bus_id_of, card, split_card, uuid_of

from keras_gpu_watch.probes.gpu_card import FAILURES_BORNE, GPM_IS_YOUNGER, NO_MEMORY_SIZE, NOT_FOR_A_SLICE, Card
from keras_gpu_watch.probes.nvml import GPM_METRICS, NO_PROCESS_IDS, Handle, Nvml, load_binding
from keras_gpu_watch.probes.nvml_errors import NvmlError
from keras_gpu_watch.samples import GPU_FIELDS

GPM = tuple(GPM_METRICS)
MEMORY = ("memory_used_bytes", "memory_used_percent")
THROTTLE = ("thermal_throttle", "power_cap", "hardware_slowdown")
READINGS = [
    ("nvmlDeviceGetUtilizationRates", ("utilization_percent",)),
    ("nvmlDeviceGetMemoryInfo", MEMORY),
    ("nvmlDeviceGetPowerUsage", ("power_watts",)),
    ("nvmlDeviceGetTotalEnergyConsumption", ("energy_joules",)),
    ("nvmlDeviceGetTemperature", ("temperature_celsius",)),
    ("nvmlDeviceGetClockInfo", ("sm_clock_mhz",)),
    ("nvmlDeviceGetCurrentClocksThrottleReasons", THROTTLE),
    ("nvmlGpmQueryDeviceSupport", GPM),
    ("nvmlGpmSampleAlloc", GPM),
    ("nvmlGpmSampleGet", GPM),
    ("nvmlGpmMetricsGet", GPM),
]
DESCRIPTION = [
    ("nvmlDeviceGetUUID", "uuid"),
    ("nvmlDeviceGetPciInfo_v3", "pci_bus_id"),
    ("nvmlDeviceGetMemoryInfo", "memory_total_bytes"),
    ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
    ("nvmlDeviceGetCurrPcieLinkGeneration", "pcie_generation"),
    ("nvmlDeviceGetCurrPcieLinkWidth", "pcie_width"),
]
ABSENT = [3, 4, 13, 25]
"""Not supported, no permission, function not found, argument version mismatch."""


def open_cards(stub, *lines: str) -> list[Card]:
    stub.load(*lines)
    handles = Nvml(load_binding()).handles()
    return [Card(handle, clock=lambda: stub.seconds) for handle in handles if isinstance(handle, Handle)]


def read(stub, card_: Card, times: int = 1) -> list[dict[str, float]]:
    """Readings a second apart on the stub's clock."""
    readings = []
    for _ in range(times):
        stub.set_seconds(stub.seconds + 1)
        readings.append(card_.read())
    return readings


def test_a_healthy_card_gives_every_field(nvml):
    (card_,) = open_cards(nvml, *card())
    _, values = read(nvml, card_, 2)
    assert set(values) == set(GPU_FIELDS)
    assert values["memory_used_percent"] == 25
    assert (card_.device.status, card_.device.unavailable) == ("sampled", ())


def test_an_idle_card_gives_zeros(nvml):
    # The twin of every test below: a zero that was measured is a zero.
    (card_,) = open_cards(nvml, *card(utilization=0, memory_used=0, throttle=0), "card.0.metric.2 = 0")
    _, values = read(nvml, card_, 2)
    zeros = {"utilization_percent", *MEMORY, *THROTTLE, "sm_activity_percent"}
    assert {name for name, value in values.items() if value == 0} == zeros
    assert card_.device.unavailable == ()


@pytest.mark.parametrize("code", ABSENT)
@pytest.mark.parametrize(("function", "fields"), READINGS)
def test_a_field_that_a_card_does_not_give_leaves_the_others_alone(nvml, function, fields, code):
    (card_,) = open_cards(nvml, *card(), f"error.{function} = {code}")
    readings = read(nvml, card_, 4)
    assert set(readings[-1]) == set(GPU_FIELDS) - set(fields)
    reasons = dict(card_.device.unavailable)
    assert set(fields) <= set(reasons)
    assert all(len(reason) > 10 for reason in reasons.values())
    assert card_.device.status == "sampled"


@pytest.mark.parametrize(("function", "fields"), READINGS[:7])
def test_a_field_that_a_card_does_not_give_is_asked_once(nvml, function, fields):
    # The memory is asked for its size, too.
    described = 1 if fields == MEMORY else 0
    (card_,) = open_cards(nvml, *card(), f"error.{function} = 3")
    read(nvml, card_, 5)
    assert nvml.calls(function) == 1 + described


@pytest.mark.parametrize("code", [2, 6, 10, 999])
@pytest.mark.parametrize(("function", "fields"), [READINGS[0], READINGS[1], READINGS[-1]])
def test_a_field_that_fails_again_and_again_is_given_up(nvml, function, fields, code):
    (card_,) = open_cards(nvml, *card())
    read(nvml, card_, 2)
    nvml.set(f"error.{function} = {code}")
    begin = nvml.calls(function)
    readings = read(nvml, card_, FAILURES_BORNE + 3)
    assert all(set(values) == set(GPU_FIELDS) - set(fields) for values in readings)
    assert nvml.calls(function) == begin + FAILURES_BORNE
    assert set(dict(card_.device.unavailable)) == set(fields)


def test_a_field_that_fails_once_comes_back(nvml):
    (card_,) = open_cards(nvml, *card())
    for _ in range(FAILURES_BORNE):
        nvml.set("error.nvmlDeviceGetPowerUsage = 999")
        assert "power_watts" not in card_.read()
        nvml.set("error.nvmlDeviceGetPowerUsage = 0")
        assert card_.read()["power_watts"] == 412
    assert card_.device.unavailable == ()


def test_each_field_has_its_own_reason(nvml):
    (card_,) = open_cards(nvml, *card())
    nvml.set("error.nvmlDeviceGetPowerUsage = 999", "error.nvmlDeviceGetClockInfo = 10")
    read(nvml, card_, FAILURES_BORNE)
    reasons = dict(card_.device.unavailable)
    assert "Unknown Error" in reasons["power_watts"]
    assert "Timeout" in reasons["sm_clock_mhz"]


@pytest.mark.parametrize("code", ABSENT)
@pytest.mark.parametrize(("function", "field"), DESCRIPTION)
def test_what_a_card_does_not_tell_of_itself_is_none_with_a_reason(nvml, function, field, code):
    (card_,) = open_cards(nvml, *card(), f"error.{function} = {code}")
    assert getattr(card_.device, field) is None
    assert len(dict(card_.device.unavailable)[field]) > 10


@pytest.mark.parametrize("field", ["name", "uuid", "bus_id"])
def test_what_is_no_text_is_none_with_a_reason(nvml, field):
    # The binding fails to decode it, with what is no error of NVML.
    nvml.load(*card())
    nvml.set(f"card.0.{field} = ".encode() + b"\xff\xfe")
    (handle,) = Nvml(load_binding()).handles()
    assert isinstance(handle, Handle)
    device = Card(handle).device
    assert {"name": device.name, "uuid": device.uuid, "bus_id": device.pci_bus_id}[field] in (None, "GPU")
    assert list(dict(device.unavailable)) == ["pci_bus_id" if field == "bus_id" else field]


OUT_OF_RANGE = [
    ({"utilization": ALL_BITS}, {"utilization_percent"}),
    ({"utilization": 101}, {"utilization_percent"}),
    ({"memory_used": 81 * GIB}, set(MEMORY)),
    ({"memory_used": ALL_BITS_64}, set(MEMORY)),
    ({"power_mw": 0}, {"power_watts"}),
    ({"power_mw": 4_294_967_295}, {"power_watts"}),
    ({"energy_mj": 0, "power_mw": 1, "idle_power_mw": 1}, {"energy_joules", "power_watts"}),
    ({"energy_mj": ALL_BITS_64, "power_mw": 0}, {"energy_joules", "power_watts"}),
    ({"temperature": 0}, {"temperature_celsius"}),
    ({"temperature": 255}, {"temperature_celsius"}),
    ({"temperature": ALL_BITS}, {"temperature_celsius"}),
    ({"sm_clock": 0}, {"sm_clock_mhz"}),
    ({"sm_clock": ALL_BITS}, {"sm_clock_mhz"}),
]


@pytest.mark.parametrize(("changes", "fields"), OUT_OF_RANGE)
def test_a_value_that_can_not_be_true_is_not_believed(nvml, changes, fields):
    (card_,) = open_cards(nvml, *card(**changes))
    nvml.set_seconds(0)
    values = card_.read()
    assert set(values) == set(GPU_FIELDS) - set(GPM) - fields
    reasons = dict(card_.device.unavailable)
    assert set(reasons) == fields
    assert all("can't be true" in reason for reason in reasons.values())


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1", "101", "1e300"])
def test_a_number_of_gpm_that_can_not_be_true_is_not_believed(nvml, value):
    (card_,) = open_cards(nvml, *card(), f"card.0.metric.2 = {value}")
    _, values = read(nvml, card_, 2)
    assert set(values) == set(GPU_FIELDS) - {"sm_activity_percent"}
    assert "can't be true" in dict(card_.device.unavailable)["sm_activity_percent"]


def test_two_readings_of_gpm_at_one_moment_give_no_number(nvml):
    (card_,) = open_cards(nvml, *card())
    nvml.set_seconds(1)
    card_.read()
    assert set(card_.read()) == set(GPU_FIELDS) - set(GPM)


def test_readings_of_gpm_too_close_together_are_left_out(nvml):
    (card_,) = open_cards(nvml, *card())
    given = []
    for seconds in (0.0, 0.1, 0.21, 0.3, 0.4):
        nvml.set_seconds(seconds)
        given.append("sm_activity_percent" in card_.read())
    assert given == [False, False, True, False, True]


def test_gpm_may_overshoot_by_rounding(nvml):
    (card_,) = open_cards(nvml, *card(), "card.0.metric.2 = 100.2")
    assert read(nvml, card_, 2)[-1]["sm_activity_percent"] == pytest.approx(100.2)


def test_a_value_is_believed_again_when_it_can_be_true(nvml):
    (card_,) = open_cards(nvml, *card(temperature=255))
    assert "temperature_celsius" not in card_.read()
    nvml.set("card.0.temperature = 50")
    assert card_.read()["temperature_celsius"] == 50
    assert card_.device.unavailable == ()


@pytest.mark.parametrize("value", [0, ALL_BITS])
@pytest.mark.parametrize(
    ("number", "field"),
    [("power_limit_mw", "power_limit_watts"), ("pcie_generation", "pcie_generation"), ("pcie_width", "pcie_width")],
)
def test_a_description_that_can_not_be_true_is_not_believed(nvml, number, field, value):
    (card_,) = open_cards(nvml, *card(**{number: value}))
    assert getattr(card_.device, field) is None
    assert "can't be true" in dict(card_.device.unavailable)[field]


def test_a_card_that_answers_only_zeros_is_not_believed_at_all(nvml):
    (card_,) = open_cards(nvml, *all_zero_card())
    assert read(nvml, card_, 3) == [{}, {}, {}]
    device = card_.device
    assert (device.name, device.uuid, device.pci_bus_id, device.memory_total_bytes) == ("GPU", None, None, None)
    assert (device.power_limit_watts, device.pcie_generation, device.pcie_width) == (None, None, None)
    reasons = dict(device.unavailable)
    assert {reasons[name] for name in GPU_FIELDS} == {NO_MEMORY_SIZE}


def test_a_card_that_answers_only_zeros_from_some_moment_on_is_lost(nvml):
    (card_,) = open_cards(nvml, *card())
    card_.read()
    nvml.set(*all_zero_card())
    with pytest.raises(NvmlError, match="memory of 0 bytes"):
        card_.read()
    assert card_.device.status == "lost"
    nvml.set(*card())
    assert set(card_.read()) >= {"utilization_percent"}
    assert (card_.device.status, card_.device.reason) == ("sampled", None)


@pytest.mark.parametrize(
    ("bits", "thermal", "power_cap", "slowdown"),
    [
        (0x0, 0, 0, 0),
        (0x1, 0, 0, 0),
        (0x2, 0, 0, 0),
        (0x4, 0, 1, 0),
        (0x8, 0, 0, 1),
        (0x20, 1, 0, 0),
        (0x48, 1, 0, 1),
        # The power brake comes from outside of the card.
        (0x80, 0, 0, 1),
        (0x8C, 0, 1, 1),
    ],
)
def test_throttle_reasons_are_told_apart(nvml, bits, thermal, power_cap, slowdown):
    # Idle (0x1) and clocks that the user set (0x2) hold nothing down.
    (card_,) = open_cards(nvml, *card(throttle=bits))
    values = card_.read()
    assert [values[name] for name in THROTTLE] == [thermal, power_cap, slowdown]


def test_the_first_sample_has_no_numbers_of_gpm(nvml):
    (card_,) = open_cards(nvml, *card())
    first, second = read(nvml, card_, 2)
    assert not set(first) & set(GPM)
    assert set(second) >= set(GPM)
    assert card_.device.unavailable == ()


def test_an_older_card_says_that_gpm_is_younger(nvml):
    (card_,) = open_cards(nvml, *card(gpm_supported=0))
    assert set(read(nvml, card_, 2)[-1]) == set(GPU_FIELDS) - set(GPM)
    assert dict(card_.device.unavailable) == dict.fromkeys(GPM, GPM_IS_YOUNGER)
    assert nvml.gpm_samples == 0


def test_a_metric_that_a_card_does_not_have_leaves_the_others_alone(nvml):
    nvlink = {"nvlink_receive_mib_per_second", "nvlink_transmit_mib_per_second"}
    (card_,) = open_cards(nvml, *card(), "card.0.metric_error.60 = 3", "card.0.metric_error.61 = 3")
    assert set(read(nvml, card_, 2)[-1]) == set(GPU_FIELDS) - nvlink
    assert set(dict(card_.device.unavailable)) == nvlink


def test_gpm_without_any_metric_has_reasons(nvml):
    lines = [f"card.0.metric_error.{metric} = 3" for metric in GPM_METRICS.values()]
    (card_,) = open_cards(nvml, *card(), *lines)
    read(nvml, card_, 2)
    assert set(dict(card_.device.unavailable)) == set(GPM)


def test_a_metric_that_comes_back_is_no_longer_unavailable(nvml):
    (card_,) = open_cards(nvml, *card(), "card.0.metric_error.10 = 999")
    read(nvml, card_, 2)
    assert "dram_activity_percent" in dict(card_.device.unavailable)
    nvml.set("card.0.metric_error.10 = 0")
    nvml.set_seconds(3)
    assert card_.read()["dram_activity_percent"] == 44
    assert card_.device.unavailable == ()


def test_a_slice_gives_its_own_memory_and_gpm_and_nothing_of_its_card(nvml):
    slices = open_cards(nvml, *split_card())
    for slice_, used_percent in zip(slices, (25, 5), strict=True):
        _, values = read(nvml, slice_, 2)
        assert set(values) == {*MEMORY, *GPM}
        assert values["memory_used_percent"] == used_percent
        reasons = dict(slice_.device.unavailable)
        assert reasons["utilization_percent"] == NOT_FOR_A_SLICE
        assert set(reasons) == {*GPU_FIELDS, "power_limit_watts"} - set(values)
    assert nvml.calls("nvmlDeviceGetUtilizationRates") == 0


def test_a_slice_without_gpm_still_gives_its_memory(nvml):
    (slice_, _) = open_cards(nvml, *split_card(), "card.0.gpm_supported = 0")
    assert set(read(nvml, slice_, 2)[-1]) == set(MEMORY)
    assert set(dict(slice_.device.unavailable)) >= {"utilization_percent", *GPM}


@pytest.mark.parametrize("code", [10, 15, 999])
def test_a_card_that_answers_nothing_is_lost_until_it_answers(nvml, code):
    (card_,) = open_cards(nvml, *card())
    card_.read()
    nvml.set(f"error.* = {code}")
    with pytest.raises(NvmlError):
        card_.read()
    lost = card_.device
    assert lost.status == "lost"
    assert lost.reason
    assert (lost.uuid, lost.pci_bus_id) == (uuid_of(0), bus_id_of(0))
    nvml.set("error.* = 0")
    assert card_.read()["utilization_percent"] == 87
    found = card_.device
    assert (found.status, found.reason, found.unavailable) == ("sampled", None, ())


def test_a_lost_card_is_not_asked_for_the_rest(nvml):
    (card_,) = open_cards(nvml, *card())
    nvml.set("error.* = 15")
    with pytest.raises(NvmlError):
        card_.read()
    assert nvml.calls("nvmlDeviceGetPowerUsage") == 0


def test_no_field_is_given_up_while_the_card_is_lost(nvml):
    (card_,) = open_cards(nvml, *card())
    nvml.set("error.* = 999")
    for _ in range(2 * FAILURES_BORNE):
        with pytest.raises(NvmlError):
            card_.read()
    nvml.set("error.* = 0")
    card_.read()
    assert card_.device.unavailable == ()


def test_other_processes_are_counted_once(nvml):
    (card_,) = open_cards(nvml, *card(pids="self 11"))
    assert card_.device.other_processes is None
    card_.count_processes()
    read(nvml, card_, 3)
    assert card_.device.other_processes == 1
    # The binding asks for the length first.
    assert nvml.calls("nvmlDeviceGetComputeRunningProcesses_v3") == 2


def test_uncountable_processes_are_none_with_a_reason(nvml):
    (card_,) = open_cards(nvml, *card(pids="11 12"))
    card_.count_processes()
    assert card_.device.other_processes is None
    assert dict(card_.device.unavailable) == {"other_processes": NO_PROCESS_IDS}


@pytest.mark.parametrize("code", [3, 4, 13, 999])
def test_processes_that_are_not_listed_are_none_with_a_reason(nvml, code):
    (card_,) = open_cards(nvml, *card(), f"error.nvmlDeviceGetComputeRunningProcesses_v3 = {code}")
    card_.count_processes()
    assert card_.device.other_processes is None
    assert set(dict(card_.device.unavailable)) == {"other_processes"}


def test_a_closed_card_holds_nothing_and_may_still_be_read(nvml):
    (card_,) = open_cards(nvml, *card())
    read(nvml, card_, 2)
    card_.close()
    card_.close()
    assert nvml.gpm_samples == 0
    assert set(card_.read()) == set(GPU_FIELDS) - set(GPM)


def test_energy_grows_with_power(nvml):
    (card_,) = open_cards(nvml, *card(busy_seconds=1, idle_seconds=1))
    readings = read(nvml, card_, 5)
    grown = readings[4]["energy_joules"] - readings[0]["energy_joules"]
    assert grown == pytest.approx(2 * 412 + 2 * 70)
    assert [values["power_watts"] for values in readings] == [70, 412, 70, 412, 70]
    assert not any(math.isnan(value) for values in readings for value in values.values())
