# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_trees import chain

from keras_gpu_watch.findings import PipelineSummary, Stage
from keras_gpu_watch.pipeline.blame import blame, parts, runway_shares


def busy(*stages: tuple[str, float | None] | tuple[str, float | None, float]) -> tuple[Stage, ...]:
    """Stages in a row with their busy seconds a batch, and their parallelism where they have one."""
    row = chain(*(op for op, *_ in stages))
    return tuple(
        dataclasses.replace(stage, busy_seconds_per_batch=seconds, parallelism=rest[0] if rest else None)
        for stage, (_, seconds, *rest) in zip(row, stages, strict=True)
    )


def judged(stages: tuple[Stage, ...], step: float | None, wait: float | None) -> PipelineSummary:
    return blame(PipelineSummary(stages=stages), step, wait)


def shares(stages: tuple[Stage, ...], step: float | None, wait: float | None) -> list[float | None]:
    return [stage.wait_share for stage in judged(stages, step, wait).stages]


def test_all_work_without_a_stage_that_works_ahead_is_serial():
    stages = busy(("range", 1.0), ("map", 3.0), ("batch", 0.0))
    assert parts(stages) == ({0: 1.0, 1: 3.0, 2: 0.0}, ())
    summary = judged(stages, 2.0, 4.0)
    assert summary.serial_seconds_per_batch == 4.0
    assert summary.slowest_seconds_per_batch is None
    assert shares(stages, 2.0, 4.0) == [0.25, 0.75, 0.0]


def test_a_prefetch_takes_the_stages_below_it_off_the_training_thread():
    stages = busy(("range", 1.0), ("map", 3.0), ("prefetch", 0.5), ("skip", 0.25))
    assert parts(stages) == ({3: 0.25}, ({2: 0.5, 1: 3.0, 0: 1.0},))


def test_the_calls_of_a_parallel_stage_and_the_thread_that_feeds_them_are_two_parts():
    stages = busy(("range", 1.0), ("map", 12.0, 4.0), ("prefetch", 0.5))
    serial, ahead = parts(stages)
    assert serial == {}
    assert sorted(sum(part.values()) for part in ahead) == [0.5, 1.0, 3.0]
    assert judged(stages, 1.0, 1.0).slowest_seconds_per_batch == 3.0


def test_nothing_serial_is_a_measured_zero():
    assert judged(busy(("range", 1.0), ("prefetch", 0.5)), 1.0, 1.0).serial_seconds_per_batch == 0.0


def test_branches_of_a_zip_are_pulled_by_one_thread_unless_they_work_ahead():
    stages = (
        *busy(("range", 1.0), ("prefetch", 0.5)),
        Stage(index=2, op="map", busy_seconds_per_batch=2.0),
        Stage(index=3, op="map", busy_seconds_per_batch=4.0),
        Stage(index=4, op="zip", inputs=(1, 2, 3), busy_seconds_per_batch=0.25),
    )
    assert parts(stages) == ({4: 0.25, 3: 4.0, 2: 2.0}, ({1: 0.5, 0: 1.0},))


def test_capacity_is_parallelism_over_busy_time():
    summary = judged(busy(("range", 0.0), ("map", 8.0, 4.0), ("batch", 0.5), ("skip", None)), 1.0, 1.0)
    assert [stage.capacity_batches_per_second for stage in summary.stages] == [None, 0.5, 2.0, None]


def test_serial_work_takes_its_own_time_out_of_the_wait_and_the_slow_part_the_rest():
    # Step 4 and serial 1 hide 5 of the 9 seconds that the part needs: the wait is 1 + 4.
    stages = busy(("range", 3.0), ("map", 6.0), ("prefetch", 0.0), ("skip", 1.0))
    assert shares(stages, 4.0, 5.0) == pytest.approx([0.8 / 3, 1.6 / 3, 0.0, 0.2])


def test_parts_slower_than_the_step_share_what_they_have_in_common():
    # Excess 2 and 6: the first 2 are shared, the other 4 are the slower part's.
    stages = busy(("range", 10.0), ("map", 6.0, 1.0), ("prefetch", 0.0))
    assert shares(stages, 4.0, 6.0) == pytest.approx([5 / 6, 1 / 6, 0.0])


def test_serial_work_hides_what_works_ahead_as_the_step_does():
    # Step 4 and serial 1 leave an excess of 1 and 5, in a wait of 1 + 5.
    stages = busy(("range", 10.0), ("map", 6.0, 1.0), ("prefetch", 0.0), ("skip", 1.0))
    assert shares(stages, 4.0, 6.0) == pytest.approx([4.5 / 6, 0.5 / 6, 0.0, 1 / 6])


def test_parts_that_the_step_hides_have_no_share():
    stages = busy(("range", 10.0), ("map", 3.0, 1.0), ("prefetch", 0.0))
    assert shares(stages, 4.0, 6.0) == pytest.approx([1.0, 0.0, 0.0])


def test_waits_for_bursts_go_to_the_slowest_part():
    stages = busy(("range", 0.5), ("map", 3.0, 1.0), ("batch", 1.0), ("prefetch", 0.0))
    assert shares(stages, 10.0, 2.0) == pytest.approx([0.0, 1.0, 0.0, 0.0])


def test_small_serial_work_is_not_blamed_for_waits_that_it_cannot_explain():
    stages = busy(("map", 3.0), ("prefetch", 0.0), ("skip", 0.1))
    assert shares(stages, 10.0, 1.0) == pytest.approx([0.9, 0.0, 0.1])


@pytest.mark.parametrize(("step", "wait"), [(10.0, 0.0), (10.0, 0.099), (None, 1.0), (1.0, None), (0.0, 0.0)])
def test_there_are_no_shares_without_a_wait(step, wait):
    assert shares(busy(("range", 1.0), ("prefetch", 0.0)), step, wait) == [None, None]


def test_a_wait_of_one_percent_of_the_step_is_shared():
    assert shares(busy(("range", 1.0), ("prefetch", 0.0)), 10.0, 0.1) == [1.0, 0.0]


def test_a_stage_that_was_not_measured_has_no_share_and_takes_none():
    stages = busy(("range", 1.0), ("map", None), ("batch", 3.0))
    assert shares(stages, 1.0, 4.0) == [0.25, None, 0.75]


def test_a_stage_measured_as_idle_has_a_share_of_zero():
    assert shares(busy(("range", 0.0), ("batch", 3.0)), 1.0, 4.0) == [0.0, 1.0]


def test_without_any_measurement_nothing_is_claimed():
    summary = judged(busy(("range", None), ("map", None)), 1.0, 1.0)
    assert summary.serial_seconds_per_batch is None
    assert summary.slowest_seconds_per_batch is None
    assert judged((), 1.0, 1.0).stages == ()


def test_a_wait_that_no_stage_has_work_for_is_not_shared():
    assert shares(busy(("range", 0.0), ("map", 0.0, 2.0)), 1.0, 1.0) == [None, None]


seconds = st.one_of(st.none(), st.just(0.0), st.floats(1e-6, 1e3))
stage = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["map", "batch", "prefetch", "zip"]),
        "busy_seconds_per_batch": seconds,
        "parallelism": st.one_of(st.none(), st.floats(0.5, 64)),
    }
)


@settings(deadline=None)
@given(st.lists(stage, max_size=8), st.floats(1e-6, 1e3), st.floats(1e-6, 1e3))
def test_shares_add_up_to_one(fields: list[dict[str, Any]], step: float, wait: float):
    stages = tuple(
        Stage(index=index, inputs=(index - 1,) if index else (), **each) for index, each in enumerate(fields)
    )
    found = [share for share in shares(stages, step, wait) if share is not None]
    works = any(each["busy_seconds_per_batch"] for each in fields)
    if wait >= 0.01 * step and works:
        assert sum(found) == pytest.approx(1.0)
    assert all(0 <= share <= 1 + 1e-9 for share in found)


@given(st.lists(st.floats(0, 1e6), max_size=8))
def test_runway_shares_add_up_to_the_longest_and_are_fair(lengths: list[float]):
    found = runway_shares(lengths)
    assert sum(found) == pytest.approx(max(lengths, default=0.0))
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    assert all(found[a] <= found[b] + 1e-6 for a, b in itertools.pairwise(order))


def test_runway_shares_of_a_known_case():
    assert runway_shares([8.0, 11.0, 13.0, 18.0]) == pytest.approx([2.0, 3.0, 4.0, 9.0])


def test_a_wait_longer_than_all_counted_work_is_work_in_opened_datasets():
    stages = busy(("range", 0.1), ("interleave", 0.2), ("map", 2.0, 2.0), ("prefetch", 0.1))
    summary = judged(stages, 1.0, 8.0)
    opener = summary.stages[1]
    assert opener.is_estimated
    assert opener.busy_seconds_per_batch == 9.0
    assert summary.slowest_seconds_per_batch == pytest.approx(9.1)
    assert opener.wait_share == pytest.approx(9.0 / 9.1)


def test_hidden_work_of_parallel_calls_is_done_several_at_a_time():
    stages = busy(("range", 0.1), ("interleave", 0.2, 4.0), ("prefetch", 0.1))
    opener = judged(stages, 1.0, 8.0).stages[1]
    assert opener.busy_seconds_per_batch == 36.0
    assert opener.capacity_batches_per_second == pytest.approx(1 / 9)


def test_hidden_work_on_the_trainings_own_thread_is_the_wait():
    assert judged(busy(("range", 0.1), ("flat_map", 0.2)), 1.0, 8.0).stages[1].busy_seconds_per_batch == 8.0


def test_a_wait_that_counted_work_explains_hides_nothing():
    stages = busy(("range", 0.1), ("interleave", 6.0), ("prefetch", 0.1))
    assert not any(stage.is_estimated for stage in judged(stages, 1.0, 8.0).stages)


def test_without_a_stage_that_opens_datasets_nothing_is_estimated():
    stages = busy(("range", 0.1), ("map", 0.2), ("prefetch", 0.1))
    assert not any(stage.is_estimated for stage in judged(stages, 1.0, 8.0).stages)
