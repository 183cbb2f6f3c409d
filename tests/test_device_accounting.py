# SPDX-License-Identifier: Apache-2.0
"""Statistics of samples made by hand, from patterns whose truth is known."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from keras_gpu_watch.device_accounting import SampleFrame, remarks, summarize_gpus, summarize_host
from keras_gpu_watch.records import Floats
from keras_gpu_watch.samples import (
    GPU_FIELDS,
    GPU_SAMPLE_DTYPE,
    HOST_FIELDS,
    HOST_SAMPLE_DTYPE,
    Distribution,
    GpuDevice,
    GpuSamples,
    GpuSummary,
    HostSamples,
)

NAN = math.nan
INTERVAL = 0.5


def make_gpu(seconds: ArrayLike, gpu: int = 0, **columns: Any) -> GpuSamples:
    """Samples of one GPU; what is not given is not measured."""
    times = np.asarray(seconds, np.float64)
    rows = np.zeros(len(times), GPU_SAMPLE_DTYPE)
    for name in GPU_FIELDS:
        rows[name] = columns.get(name, NAN)
    rows["seconds"], rows["gpu"] = times, gpu
    return rows


def make_host(seconds: ArrayLike, **columns: Any) -> HostSamples:
    times = np.asarray(seconds, np.float64)
    rows = np.zeros(len(times), HOST_SAMPLE_DTYPE)
    for name in HOST_FIELDS:
        rows[name] = columns.get(name, NAN)
    rows["seconds"] = times
    return rows


def frame(end: float, begin: float = 0.0, **fields: Any) -> SampleFrame:
    """An epoch that is steps from its begin to its end."""
    return SampleFrame(begin, end, **{"steps_begin_seconds": begin, "steps_end_seconds": end, **fields})


def summarize(rows: GpuSamples, epoch: SampleFrame) -> GpuSummary:
    (summary,) = summarize_gpus(rows, epoch)
    return summary


def known(distribution: Distribution | None) -> Distribution:
    assert distribution is not None
    return distribution


# Which samples count


def test_statistics_are_over_the_samples_from_the_first_call_to_the_last_done():
    rows = make_gpu(range(10), utilization_percent=[9, 9, 10, 20, 30, 40, 50, 9, 9, 9])
    summary = summarize(rows, SampleFrame(1.0, 9.0, steps_begin_seconds=2.0, steps_end_seconds=6.0))
    assert summary.utilization_percent == Distribution(mean=30.0, p5=12.0, p50=30.0, p95=48.0)
    # The epoch's own: neither the one before its begin nor the one at its end.
    assert summary.samples == 8


def test_an_epoch_without_steps_has_samples_and_energy_and_no_statistics():
    rows = make_gpu(range(10), utilization_percent=50.0, power_watts=100.0, temperature_celsius=60.0)
    summary = summarize(rows, SampleFrame(1.0, 9.0))
    assert summary == GpuSummary(gpu=0, samples=8, energy_joules=800.0)


def test_samples_within_compiling_steps_are_left_out():
    use = np.where((np.arange(20) >= 5) & (np.arange(20) < 8) | (np.arange(20) == 15), 0.0, 80.0)
    summary = summarize(
        make_gpu(range(20), utilization_percent=use), frame(20.0, compile_spans=np.array([[5.0, 8.0], [14.5, 15.5]]))
    )
    assert summary.utilization_percent == Distribution(80.0, 80.0, 80.0, 80.0)
    assert summary.idle_share == 0.0


def test_what_still_shows_the_time_before_is_left_out_if_enough_samples_remain():
    seconds = np.arange(0, 20, INTERVAL)
    # The driver's mean over one second: after the start and after a compilation it is low at first.
    bent = ((seconds >= 2) & (seconds < 3)) | ((seconds >= 10) & (seconds < 11))
    rows = make_gpu(seconds, utilization_percent=np.where(bent, 10.0, 90.0))
    epoch = frame(20.0, steps_begin_seconds=2.0, compile_spans=np.array([[8.0, 10.0]]))
    assert known(summarize(rows, epoch).utilization_percent).p5 == 90.0


def test_too_few_samples_are_taken_as_they_are():
    seconds = np.arange(0, 6, INTERVAL)
    rows = make_gpu(seconds, utilization_percent=np.where(seconds < 3, 10.0, 90.0))
    summary = summarize(rows, frame(6.0, steps_begin_seconds=2.0, compile_spans=np.array([[4.0, 4.6]])))
    # At 2.0, 2.5, 3.0, 3.5, 5.0 and 5.5.
    assert known(summary.utilization_percent).mean == pytest.approx((2 * 10 + 4 * 90) / 6)


def test_a_compilation_that_is_the_whole_epoch_leaves_nothing():
    rows = make_gpu(range(10), utilization_percent=50.0)
    summary = summarize(rows, frame(10.0, compile_spans=np.array([[0.0, 10.0]])))
    assert (summary.samples, summary.utilization_percent, summary.idle_share, summary.swings) == (10, None, None, None)


# What the numbers are


def test_missing_readings_are_left_out_and_nothing_but_missing_ones_is_none():
    use = [NAN, 20.0, math.inf, 40.0]
    summary = summarize(make_gpu(range(4), utilization_percent=use), frame(4.0))
    assert known(summary.utilization_percent).mean == 30.0
    assert summary.samples == 4
    values = dataclasses.asdict(summarize(make_gpu(range(4)), frame(4.0, examples=8.0)))
    assert {name for name, value in values.items() if value is not None} == {"gpu", "samples"}


def test_readings_of_zero_are_zero():
    columns: dict[str, Any] = dict.fromkeys(GPU_FIELDS, 0.0)
    rows = make_gpu(range(30), **columns)
    summary = summarize(rows, frame(30.0, examples=8.0))
    zero = Distribution(0.0, 0.0, 0.0, 0.0)
    values = dataclasses.asdict(summary)
    assert values.pop("swing_period_seconds") is None
    assert values.pop("idle_share") == 1.0
    assert values.pop("samples") == 30
    assert all(value in (0.0, dataclasses.asdict(zero)) for value in values.values())
    assert summary.swings is False


def test_every_reading_goes_to_its_own_place():
    columns = {name: float(number) for number, name in enumerate(GPU_FIELDS, start=1)}
    summary = summarize(make_gpu(range(4), gpu=3, **columns), frame(4.0))
    assert summary.gpu == 3
    for name in GPU_FIELDS:
        if hasattr(summary, name) and name != "energy_joules":
            assert known(getattr(summary, name)).p50 == columns[name]
    assert summary.temperature_max_celsius == columns["temperature_celsius"]


def test_shares_and_maxima_are_over_the_known_readings():
    rows = make_gpu(
        range(8),
        utilization_percent=[0, 0, 0, 50, 50, 50, NAN, NAN],
        thermal_throttle=[1, 0, 0, 0, NAN, NAN, NAN, NAN],
        power_cap=[1, 1, 1, 1, 1, 1, 0, 0],
        hardware_slowdown=0.0,
        temperature_celsius=[40, 80, 60, NAN, 50, 50, 50, 50],
    )
    summary = summarize(rows, frame(8.0))
    assert summary.idle_share == 0.5
    shares = (summary.thermal_throttle_share, summary.power_cap_share, summary.hardware_slowdown_share)
    assert shares == (0.25, 0.75, 0.0)
    assert summary.temperature_max_celsius == 80.0


def test_only_gpus_with_samples_in_the_epoch_are_told_in_the_order_of_their_positions():
    rows = np.concatenate([make_gpu([0.0, 5.0], 7), make_gpu([0.1, 5.1], 2), make_gpu([0.2], 4)])
    rows = rows[np.argsort(rows["seconds"])]
    assert [summary.gpu for summary in summarize_gpus(rows, frame(9.0, begin=1.0))] == [2, 7]
    assert summarize_gpus(make_gpu([]), frame(9.0)) == ()


def test_the_host_is_told_over_the_same_time():
    seconds = np.arange(0, 10, 1.0)
    columns = {name: seconds * 10 + number for number, name in enumerate(HOST_FIELDS)}
    rows = make_host(seconds, **columns)
    summary = summarize_host(rows, SampleFrame(1.0, 9.0, steps_begin_seconds=2.0, steps_end_seconds=6.0))
    assert summary is not None
    assert summary.samples == 8
    assert known(summary.cpu_percent).mean == 40.0
    assert known(summary.process_cpu_percent).mean == 41.0
    assert known(summary.iowait_percent).mean == 42.0
    assert summary.process_memory_max_bytes == 63.0
    assert summary.memory_max_percent == 64.0
    assert known(summary.disk_read_bytes_per_second).mean == 45.0
    assert known(summary.interpreter_busy_percent).mean == 46.0


def test_a_host_without_samples_in_the_epoch_is_none_and_without_readings_all_none():
    assert summarize_host(make_host([0.5]), frame(9.0, begin=1.0)) is None
    summary = summarize_host(make_host([1.5, 2.5]), frame(9.0, begin=1.0))
    assert summary is not None
    assert set(dataclasses.astuple(summary)) == {2, None}


readings = st.floats(0, 1000) | st.sampled_from([NAN, math.inf, 0.0, 100.0])


@st.composite
def any_samples(draw: st.DrawFn) -> list[GpuSamples]:
    gpus = draw(st.integers(1, 3))
    rows = []
    for gpu in range(gpus):
        count = draw(st.integers(1, 40))
        times = np.sort(np.array(draw(st.lists(st.integers(0, 400), min_size=count, max_size=count, unique=True)))) / 8
        made = make_gpu(times, gpu)
        for name in GPU_FIELDS:
            if draw(st.booleans()):
                made[name] = draw(st.lists(readings, min_size=count, max_size=count))
        for name in ("thermal_throttle", "power_cap", "hardware_slowdown"):
            made[name] = draw(st.sampled_from([NAN, 0.0, 1.0]))
        rows.append(made)
    return rows


@st.composite
def any_frames(draw: st.DrawFn) -> SampleFrame:
    marks = sorted(draw(st.lists(st.integers(0, 400), min_size=8, max_size=8, unique=True)))
    begin, first, *spans, last, end = (mark / 8 for mark in marks)
    if draw(st.booleans()):
        return SampleFrame(begin, end)
    return SampleFrame(
        begin, end, first, last, np.reshape(spans, (2, 2)), draw(st.none() | st.integers(0, 100).map(float))
    )


@settings(max_examples=100, deadline=None)
@given(any_samples(), any_frames())
def test_whatever_is_read_the_numbers_are_finite_and_in_order(rows: list[GpuSamples], epoch: SampleFrame):
    for summary in summarize_gpus(np.concatenate(rows), epoch):
        json.dumps(dataclasses.asdict(summary), allow_nan=False)
        for name in ("idle_share", "thermal_throttle_share", "power_cap_share", "hardware_slowdown_share"):
            assert getattr(summary, name) is None or 0 <= getattr(summary, name) <= 1
        for value in (getattr(summary, field.name) for field in dataclasses.fields(summary)):
            if isinstance(value, Distribution):
                assert value.p5 <= value.p50 <= value.p95
        assert summary.energy_joules is None or summary.energy_joules >= 0
        assert summary.samples > 0


@settings(max_examples=50, deadline=None)
@given(any_samples(), any_frames(), st.data())
def test_gpus_do_not_depend_on_each_other_nor_on_their_order(
    rows: list[GpuSamples], epoch: SampleFrame, data: st.DataObject
):
    together = summarize_gpus(np.concatenate(data.draw(st.permutations(rows))), epoch)
    alone = [summarize_gpus(each, epoch) for each in rows]
    assert together == tuple(itertools.chain(*alone))


# Energy


def test_the_counter_is_interpolated_at_both_ends_of_the_epoch():
    # 100 W up to 10 s, 300 W after.
    seconds = np.arange(0.0, 21.0)
    counter = 7e6 + np.where(seconds <= 10, 100 * seconds, 1000 + 300 * (seconds - 10))
    rows = make_gpu(seconds, energy_joules=counter, power_watts=5.0)
    summary = summarize(rows, frame(15.25, begin=2.5, examples=1000.0))
    assert summary.energy_joules == pytest.approx(750.0 + 5.25 * 300.0)
    assert summary.joules_per_example == pytest.approx(2.325)


def test_without_a_counter_the_power_is_integrated():
    seconds = np.arange(0.0, 21.0)
    rows = make_gpu(seconds, power_watts=10 * seconds)
    assert summarize(rows, frame(15.0, begin=5.0)).energy_joules == pytest.approx(5 * (15**2 - 5**2))
    # One reading of the counter is no counter.
    rows["energy_joules"][3] = 7e6
    assert summarize(rows, frame(15.0, begin=5.0)).energy_joules == pytest.approx(1000.0)


@pytest.mark.parametrize("by_counter", [True, False])
def test_up_to_a_few_intervals_at_the_ends_are_filled_with_the_power_read_there(by_counter: bool):
    seconds = np.arange(1.0, 10.0)
    rows = make_gpu(seconds, power_watts=np.where(seconds == 9, 500.0, np.where(seconds == 1, 300.0, 100.0)))
    counted = 100.0 * 8
    if by_counter:
        rows["energy_joules"] = 100.0 * seconds
    else:
        counted += 100.0 + 200.0
    summary = summarize(rows, frame(11.0))
    assert summary.energy_joules == pytest.approx(counted + 300.0 + 2 * 500.0)


def test_ends_are_filled_with_the_counters_own_pace_where_power_is_not_read():
    rows = make_gpu(np.arange(1.0, 10.0), energy_joules=100.0 * np.arange(9))
    assert summarize(rows, frame(11.0)).energy_joules == pytest.approx(1100.0)


@pytest.mark.parametrize(
    ("hole", "by_counter", "joules"),
    [
        # The counter went on counting.
        ((40, 60), True, 10_000.0),
        ((40, 60), False, None),
        # Too little to matter.
        ((40, 48), False, 10_000.0),
        # How much of it was in the epoch is not known.
        ((-10, 20), True, None),
        ((80, 110), True, None),
        ((-10, 6), True, 10_000.0),
        # The last reading is long gone.
        ((85, 999), True, None),
        ((85, 999), False, None),
        ((92, 999), True, 10_000.0),
    ],
)
def test_energy_is_known_unless_too_much_of_the_epoch_lies_in_holes(
    hole: tuple[int, int], by_counter: bool, joules: float | None
):
    seconds = np.arange(-20.0, 120.0)
    seconds = seconds[(seconds <= hole[0]) | (seconds >= hole[1])]
    rows = make_gpu(seconds, power_watts=100.0)
    if by_counter:
        rows["energy_joules"] = 100 * (seconds + 20)
    assert summarize(rows, frame(100.0)).energy_joules == (None if joules is None else pytest.approx(joules))


@pytest.mark.parametrize("since", [-5, 0, 50, 99, 100, 105])
def test_a_counter_that_began_anew_around_the_epoch_tells_nothing(since: int):
    seconds = np.arange(-20.0, 120.0) - 0.5
    rows = make_gpu(
        seconds, energy_joules=np.where(seconds < since, 1e6, 0.0) + 100 * (seconds + 20), power_watts=100.0
    )
    expected = None if 0 <= since <= 100 else 10_000.0
    assert summarize(rows, frame(100.0)).energy_joules == (None if expected is None else pytest.approx(expected))


def test_one_reading_is_no_energy():
    assert summarize(make_gpu([1.0], power_watts=100.0, energy_joules=5.0), frame(2.0)).energy_joules is None


@pytest.mark.parametrize("examples", [None, 0.0])
def test_there_is_no_energy_of_an_example_without_examples(examples: float | None):
    summary = summarize(make_gpu(range(9), power_watts=100.0), frame(8.0, examples=examples))
    assert summary.energy_joules == pytest.approx(800.0)
    assert summary.joules_per_example is None


@settings(max_examples=100, deadline=None)
@given(
    watts=st.lists(st.floats(0, 1000), min_size=20, max_size=20),
    cut=st.floats(2.5, 17.0),
    by_counter=st.booleans(),
)
def test_the_energies_of_two_epochs_in_a_row_add_up(watts: list[float], cut: float, by_counter: bool):
    rows = make_gpu(range(20), power_watts=watts)
    if by_counter:
        rows["energy_joules"] = np.cumsum(watts)
    whole, first, second = (
        summarize(rows, frame(end, begin=begin)).energy_joules
        for begin, end in ((1.25, 18.5), (1.25, cut), (cut, 18.5))
    )
    assert whole is not None
    assert first is not None
    assert second is not None
    assert first + second == pytest.approx(whole, rel=1e-9, abs=1e-6)


# Swings


def square_wave(seconds: NDArray[Any], period: float, duty: float, phase: float = 0.0, window: float = 1 / 6) -> Floats:
    """Percent: of a wave that is 100 for `duty` of each period, the means over a window before each sample."""

    def high_until(times: NDArray[Any]) -> Floats:
        turns = times / period + phase
        return (np.floor(turns) * duty + np.minimum(turns % 1, duty)) * period

    percent: Floats = 100 * (high_until(seconds) - high_until(seconds - window)) / window
    return percent


def noisy(values: Floats, sigma: float, seed: int = 0) -> Floats:
    noise = np.random.default_rng(seed).normal(0, sigma, len(values))
    return np.clip(values + noise, 0, None)


def swings_of(**columns: Any) -> tuple[Any, Any]:
    count = max(len(np.atleast_1d(column)) for column in columns.values())
    seconds = np.arange(count) * INTERVAL
    summary = summarize(make_gpu(seconds, **columns), frame(count * INTERVAL))
    return summary.swings, summary.swing_period_seconds


MINUTE = np.arange(0, 60, INTERVAL)
waves = {
    "period": st.floats(4, 10),
    "duty": st.floats(0.2, 0.8),
    "phase": st.floats(0, 1),
    "seed": st.integers(0, 99),
}


@settings(max_examples=150, deadline=None)
@given(**waves)
def test_a_square_wave_swings_with_its_period_at_every_phase_and_duty(
    period: float, duty: float, phase: float, seed: int
):
    wave = square_wave(MINUTE, period, duty, phase)
    swings, measured = swings_of(utilization_percent=np.minimum(noisy(wave, 3, seed), 100))
    assert swings is True
    assert measured == pytest.approx(period, rel=0.1)


@settings(max_examples=150, deadline=None)
@given(**waves)
def test_power_in_the_same_shape_swings_too(period: float, duty: float, phase: float, seed: int):
    # Power is the driver's mean over a second; an idle H100 with a context draws about 120 W.
    watts = noisy(120 + 4 * square_wave(MINUTE, period, duty, phase, window=1.0), 10, seed)
    swings, measured = swings_of(power_watts=watts)
    assert swings is True
    assert measured == pytest.approx(period, rel=0.1)


def dip(count: int, width: int, at: int | None = None) -> Floats:
    values = np.full(count, 100.0)
    start = count // 2 if at is None else at
    values[start : start + width] = 0.0
    return values


CALM = {
    "steady load": np.full(120, 97.0),
    "steady idle": np.zeros(120),
    "half load": np.full(120, 50.0),
    "ramp up": np.linspace(0, 100, 120),
    "long ramp": np.linspace(0, 100, 1200),
    "ramp down": np.linspace(100, 0, 120),
    "one dip": dip(120, 12),
    "one long dip": dip(120, 60),
    "one burst": 100 - dip(120, 12),
    "slow start, then a dip": np.minimum(dip(120, 12), dip(120, 20, at=0)),
    "rare dips": np.where(np.arange(120) % 40 == 39, 0.0, 100.0),
}


@pytest.mark.parametrize("sigma", [0, 6])
@pytest.mark.parametrize("name", CALM)
def test_what_does_not_go_up_and_down_again_and_again_does_not_swing(name: str, sigma: float):
    for seed in range(20 if sigma else 1):
        use = np.minimum(noisy(CALM[name], sigma, seed), 100)
        watts = noisy(100 + 4 * CALM[name], 2 * sigma, seed + 1)
        assert swings_of(utilization_percent=use, power_watts=watts) == (False, None)


@pytest.mark.parametrize(
    "watts",
    [
        # A card at idle.
        np.tile([8.0, 17.0], 60),
        # A small ripple at load.
        np.tile([380.0, 420.0], 60),
        np.tile([260.0, 500.0], 60),
        # Spikes and dips of one sample in twelve.
        np.where(np.arange(120) % 12 == 5, 500.0, 100.0),
        np.where(np.arange(120) % 12 == 5, 100.0, 500.0),
        np.zeros(120),
    ],
)
def test_ripple_and_spikes_of_power_are_no_swings(watts: Floats):
    assert swings_of(power_watts=watts) == (False, None)


def test_below_twenty_readings_nothing_is_said():
    wave = square_wave(np.arange(20) * INTERVAL, 4.0, 0.5)
    assert swings_of(utilization_percent=wave)[0] is True
    assert swings_of(utilization_percent=wave[:19], power_watts=100.0) == (None, None)
    wave[3] = NAN
    assert swings_of(utilization_percent=wave) == (None, None)


def test_one_of_two_readings_is_enough():
    wave = square_wave(MINUTE, 5.0, 0.5)
    assert swings_of(utilization_percent=NAN, power_watts=100 + 3 * wave) == (True, pytest.approx(5.0, rel=0.05))
    # Kernels that wait for another GPU are kernels.
    assert swings_of(utilization_percent=100.0, power_watts=100 + 3 * wave)[0] is True
    assert swings_of(utilization_percent=wave, power_watts=300.0)[0] is True


def test_where_both_swing_the_period_is_that_of_the_utilization():
    use, watts = square_wave(MINUTE, 5.0, 0.5), 100 + 3 * square_wave(MINUTE, 10.0, 0.5)
    assert swings_of(utilization_percent=use, power_watts=watts) == (True, pytest.approx(5.0, rel=0.05))


def test_a_period_is_told_only_where_the_sampling_allows_it():
    # Three samples a period.
    assert swings_of(utilization_percent=np.tile([0.0, 100.0, 100.0], 40)) == (True, None)
    assert swings_of(utilization_percent=np.tile([0.0, 0.0, 100.0, 100.0], 40)) == (True, pytest.approx(2.0))
    # Shorter than NVML's averaging, though there are eight samples a period: only power can tell.
    seconds = np.arange(0, 20, 0.1)
    wave = 100.0 * (np.arange(200) % 8 < 4)
    for watts, period in ((NAN, None), (100 + 3 * wave, pytest.approx(0.8))):
        summary = summarize(make_gpu(seconds, utilization_percent=wave, power_watts=watts), frame(20.0))
        assert (summary.swings, summary.swing_period_seconds) == (True, period)


def test_two_rises_are_swings_without_a_period():
    wave = np.repeat([0.0, 100.0, 0.0, 100.0, 0.0], 8)
    assert swings_of(utilization_percent=wave) == (True, None)


@pytest.mark.parametrize("seed", range(5))
def test_irregular_swings_have_no_period(seed: int):
    lengths = np.random.default_rng(seed).exponential(6.0, 200).astype(int) + 1
    wave = np.repeat(np.tile([0.0, 100.0], 100), lengths)
    assert swings_of(utilization_percent=wave) == (True, None)


def test_a_gap_in_the_samples_does_not_spoil_the_period():
    kept = (MINUTE < 20) | (MINUTE > 33)
    rows = make_gpu(MINUTE[kept], utilization_percent=square_wave(MINUTE, 4.0, 0.5)[kept])
    assert summarize(rows, frame(60.0)).swing_period_seconds == pytest.approx(4.0, rel=0.1)


# Sentences

CARD = GpuDevice(name="NVIDIA H100", power_limit_watts=700.0)


def flat(value: float) -> Distribution:
    return Distribution(value, value, value, value)


def said(card: GpuDevice = CARD, step: float | None = None, **fields: Any) -> list[str]:
    return [
        text.removeprefix("GPU 1 (NVIDIA H100): ") for text in remarks(GpuSummary(gpu=1, **fields), card, step).values()
    ]


def test_nothing_is_said_of_a_gpu_that_is_well_or_not_measured():
    assert said() == []
    quiet: dict[str, Any] = {
        "swings": False,
        "thermal_throttle_share": 0.05,
        "power_cap_share": 0.0,
        "hardware_slowdown_share": 0.0,
    }
    assert said(utilization_percent=flat(95.0), memory_used_percent=flat(97.0), **quiet) == []


def test_memory_that_is_full_while_the_gpu_idles_is_explained():
    fields: dict[str, Any] = {"memory_used_percent": flat(97.0), "utilization_percent": flat(23.0)}
    (text,) = remarks(GpuSummary(gpu=1, **fields), CARD, None).values()
    assert text.startswith("GPU 1 (NVIDIA H100): memory 97 % full, yet busy only 23 % of the time: TensorFlow reserves")
    assert said(**{**fields, "memory_used_percent": flat(90.0)}) == []
    assert said(**{**fields, "utilization_percent": flat(50.0)}) == []
    assert said(**{**fields, "utilization_percent": None}) == []
    assert said(**{**fields, "memory_used_percent": None}) == []
    assert len(said(**{**fields, "utilization_percent": flat(0.0)})) == 1


BUSY_AND_IDLE = Distribution(mean=50.0, p5=0.0, p50=50.0, p95=100.0)


@pytest.mark.parametrize(
    ("period", "step", "expected"),
    [
        (2.1, 2.1, "busy and idle in turn, every 2.1 s, which is 1.0 steps"),
        (5.0, 0.1, "busy and idle in turn, every 5.0 s, which is 50 steps"),
        (2.1, None, "busy and idle in turn, every 2.1 s"),
        (None, 2.1, "busy and idle in turn"),
        # Steps of half a second, sampled twice a second: the period may be a beat.
        (13.0, 0.52, "busy and idle in turn"),
        (0.6, 0.6, "busy and idle in turn, every 0.6 s, which is 1.0 steps"),
    ],
)
def test_swings_are_told_with_their_period_beside_the_step(period: float | None, step: float | None, expected: str):
    fields: dict[str, Any] = {"swings": True, "swing_period_seconds": period, "utilization_percent": BUSY_AND_IDLE}
    assert said(step=step, **fields) == [expected]


@pytest.mark.parametrize("use", [None, flat(100.0), flat(0.0)])
def test_swings_that_only_the_power_shows_are_told_in_watts(use: Distribution | None):
    power = Distribution(mean=300.0, p5=120.0, p50=300.0, p95=650.0)
    fields: dict[str, Any] = {"swings": True, "utilization_percent": use, "power_watts": power}
    assert said(**fields) == ["its power goes up and down between 120 and 650 W"]
    assert said(**{**fields, "swings": None}) == []


def test_what_held_the_clocks_down_is_told_with_its_share():
    assert said(thermal_throttle_share=0.12) == ["slowed down by heat 12 % of the time"]
    assert said(power_cap_share=0.4) == ["slowed down by its power limit of 700 W 40 % of the time"]
    assert said(GpuDevice(name="NVIDIA H100"), power_cap_share=0.4) == [
        "slowed down by its power limit 40 % of the time"
    ]
    (text,) = said(thermal_throttle_share=0.0, hardware_slowdown_share=0.3)
    assert text.startswith("slowed down by a signal of the hardware")


def test_heat_that_also_raises_the_hardwares_signal_is_told_once():
    assert said(thermal_throttle_share=0.3, hardware_slowdown_share=0.3) == ["slowed down by heat 30 % of the time"]
