# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typical_steps import (
    ALL,
    BURSTY,
    COMPUTE_BOUND,
    HOST_BOUND,
    INPUT_BOUND,
    LONG,
    ONE_STEP,
    UNKNOWN,
    epoch_of,
)

from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.report.stretch import Block, Stretch, axis_of, numbers_words, sentence, stretch_of

SECONDS = st.floats(0.0, 10.0).filter(lambda seconds: seconds == 0 or seconds > 1e-6)
STEPS = st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=8).filter(
    lambda steps: sum(map(sum, steps)) > 0
)


def known_stretch_of(epoch: EpochSummary) -> Stretch:
    stretch = stretch_of(epoch)
    assert stretch is not None
    return stretch


def of_kind(stretch: Stretch, kind: str) -> list[Block]:
    return [block for block in stretch.train if block.kind == kind]


@given(STEPS, st.floats(1e-6, 30.0))
def test_training_has_no_gaps_and_no_batch_is_prepared_while_another_is(steps, slowest_seconds):
    stretch = known_stretch_of(epoch_of(steps, slowest_seconds))
    assert stretch.train[0].begin_seconds == 0
    for earlier, later in itertools.pairwise(stretch.train):
        assert later.begin_seconds == earlier.end_seconds
    assert stretch.seconds == pytest.approx(sum(map(sum, steps)))
    assert stretch.share("host") + stretch.share("idle") + stretch.share("compute") == pytest.approx(1)
    for block in stretch.prepare:
        assert 0 <= block.begin_seconds < block.end_seconds <= stretch.seconds
    for earlier, later in itertools.pairwise(stretch.prepare):
        assert later.number > earlier.number
        assert later.begin_seconds >= earlier.end_seconds


def test_a_step_is_host_time_then_the_wait_then_compute():
    stretch = known_stretch_of(epoch_of([(1.0, 2.0, 3.0), (0.0, 0.5, 0.5)]))
    blocks = [(block.kind, block.number, block.begin_seconds, block.end_seconds) for block in stretch.train]
    assert blocks == [
        ("host", 1, 0.0, 1.0),
        ("idle", 1, 1.0, 3.0),
        ("compute", 1, 3.0, 6.0),
        ("idle", 2, 6.0, 6.5),
        ("compute", 2, 6.5, 7.0),
    ]


def test_batches_are_prepared_back_to_back_where_every_step_waits():
    stretch = known_stretch_of(INPUT_BOUND)
    assert [block.number for block in stretch.prepare] == list(range(1, 9))
    waits = of_kind(stretch, "idle")
    assert [block.end_seconds for block in stretch.prepare] == [wait.end_seconds for wait in waits]
    for earlier, later in itertools.pairwise(stretch.prepare):
        assert later.begin_seconds == pytest.approx(earlier.end_seconds)


def test_while_a_step_waits_its_batch_is_being_prepared():
    # Longer than a batch takes in the mean.
    stretch = known_stretch_of(BURSTY)
    (wait,) = of_kind(stretch, "idle")
    (prepared,) = (block for block in stretch.prepare if block.number == 3)
    assert (prepared.begin_seconds, prepared.end_seconds) == (wait.begin_seconds, wait.end_seconds)


def test_a_batch_that_nobody_waited_for_is_put_right_before_its_step():
    for stretch in (known_stretch_of(COMPUTE_BOUND), known_stretch_of(HOST_BOUND)):
        starts = {block.number: block.begin_seconds for block in of_kind(stretch, "compute")}
        assert len(stretch.prepare) >= 7
        for block in stretch.prepare:
            assert block.end_seconds == pytest.approx(starts[block.number])


def test_batches_that_take_longer_than_a_step_were_prepared_before():
    stretch = known_stretch_of(epoch_of([(0.0, 0.0, 1.0)] * 4, slowest_seconds=2.5))
    times = [(block.number, block.begin_seconds, block.end_seconds) for block in stretch.prepare]
    assert times == [(3, 0.0, 0.5), (4, 0.5, 3.0)]


def test_a_step_of_several_batches_takes_the_time_of_all_of_them():
    stretch = known_stretch_of(LONG)
    assert stretch.prepare[-1].seconds == pytest.approx(16 * 0.1875)
    assert numbers_words(stretch) == "1-8: steps of 16 batches"
    assert numbers_words(known_stretch_of(INPUT_BOUND)) == "1-8: batches"
    assert numbers_words(known_stretch_of(ONE_STEP)) == "1: batch"


@pytest.mark.parametrize("slowest_seconds", [None, 0.0, float("nan"), float("inf")])
def test_nothing_is_said_of_preparing_where_it_is_not_known_how_long_it_takes(slowest_seconds):
    assert known_stretch_of(epoch_of([(0.0, 1.0, 1.0)], slowest_seconds)).prepare == ()


@pytest.mark.parametrize("epoch", UNKNOWN)
def test_without_steps_whose_times_are_all_known_there_is_no_stretch(epoch):
    assert stretch_of(epoch) is None


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.4, ("0", "100", "200", "300", "400 ms")),
        (0.0004, ("0", "100", "200", "300", "400 us")),
        (24.0, ("0", "5", "10", "15", "20 s")),
        (0.3, ("0", "50", "100", "150", "200", "250", "300 ms")),
        (0.05, ("0", "10", "20", "30", "40", "50 ms")),
        (0.0061, ("0", "2", "4", "6 ms")),
        (9.9, ("0", "2000", "4000", "6000", "8000 ms")),
        (3700.0, ("0", "1000", "2000", "3000 s")),
    ],
)
def test_ticks_are_round_and_the_last_one_has_the_unit(seconds, labels):
    assert axis_of(seconds).labels == labels


@given(st.floats(1e-6, 1e6))
def test_there_are_a_few_ticks_and_none_beyond_the_end(seconds):
    ticks = axis_of(seconds).ticks_seconds
    assert 3 <= len(ticks) <= 7
    assert ticks[0] == 0
    assert ticks[-1] <= seconds * (1 + 1e-6)
    assert seconds < ticks[-1] + 1.01 * ticks[1]


@pytest.mark.parametrize(
    ("epoch", "words"),
    [
        (INPUT_BOUND, "In these 8 steps the GPU idles 60 % of the time, waiting for batches."),
        (ONE_STEP, "In this step training idles 60 % of the time, waiting for batches."),
        (BURSTY, "In these 8 steps the GPUs idle 53 % of the time, waiting for batches."),
        (
            epoch_of([(0.03, 0.005, 0.015)], gpus=1),
            "In this step the GPU idles 70 % of the time: 10 % waiting for batches, 60 % during callbacks and other "
            "work between steps.",
        ),
        (
            HOST_BOUND,
            "In these 8 steps training idles 0 % of the time, waiting for batches; 75 % goes to callbacks and other "
            "work between steps.",
        ),
        (epoch_of([(0.0, 0.0001, 1.0)]), "In this step training idles <0.1 % of the time, waiting for batches."),
        (epoch_of([(0.0, 0.012, 1.0)]), "In this step training idles 1.2 % of the time, waiting for batches."),
    ],
)
def test_one_sentence_says_what_idles_and_for_how_much_of_the_time(epoch, words):
    assert sentence(known_stretch_of(epoch)) == words


def test_every_case_can_be_said():
    assert all(sentence(known_stretch_of(epoch)).endswith(".") for epoch in ALL)
