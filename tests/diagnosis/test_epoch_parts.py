# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_batch, a_context, a_map, a_pipeline, a_prefetch, a_source, an_epoch, find_by

from keras_gpu_watch.diagnosis.pooling import pool
from keras_gpu_watch.diagnosis.rules.epoch_parts import EPOCH_START, VALIDATION
from keras_gpu_watch.findings import CallbackSeconds, Stage


def shuffle(size):
    return Stage(index=0, op="shuffle", buffer_size=size, elements_per_batch=32.0, busy_seconds_per_batch=0.0)


def later(first_batch, *stages, **changes):
    epoch = an_epoch(epoch=1, first_batch_seconds=first_batch, pipeline=a_pipeline(*stages), **changes)
    return a_context(epoch, an_epoch(first_batch_seconds=first_batch))


def test_a_large_shuffle_buffer_is_filled_at_each_start():
    verdict = find_by(EPOCH_START, later(1.0, a_map(0.010), shuffle(3200), a_batch()))

    assert (verdict.kind, verdict.cause, verdict.stage) == ("epoch_start_bound", "shuffle_refill", "shuffle")
    assert verdict.lost_share == pytest.approx(0.5)
    assert verdict.suggestions[0].expected_speedup == pytest.approx(2.0)
    assert not any("num_parallel_calls" in str(each) for each in verdict.suggestions)


def test_a_buffer_of_less_than_a_batch_is_not_what_takes_the_time():
    assert find_by(EPOCH_START, later(1.0, a_source(), shuffle(8), a_batch())).cause == "iterator_start"


def test_a_buffer_that_is_filled_in_no_time_is_not_what_takes_it():
    # 100 batches of 0.1 ms.
    assert find_by(EPOCH_START, later(1.0, a_source(), shuffle(3200), a_batch())).cause == "iterator_start"


def test_a_buffer_whose_filling_is_not_known_may_be():
    unknown = a_source(busy_seconds_per_batch=None)

    assert find_by(EPOCH_START, later(1.0, unknown, shuffle(3200), a_batch())).cause == "shuffle_refill"


def test_a_shuffle_of_batches_counts_batches():
    after = a_batch(), Stage(index=0, op="shuffle", buffer_size=36)

    assert find_by(EPOCH_START, later(1.0, a_map(0.030), *after)).cause == "shuffle_refill"


def test_without_stages_the_start_is_the_iterators():
    assert find_by(EPOCH_START, later(1.0)).cause == "iterator_start"


def test_a_quick_start_is_no_finding():
    assert find_by(EPOCH_START, later(0.0, shuffle(3200))) is None


def test_a_pause_at_one_epochs_start_is_no_habit():
    epoch = an_epoch(epoch=2, first_batch_seconds=1.0)

    assert find_by(EPOCH_START, a_context(epoch, an_epoch(first_batch_seconds=0.02), an_epoch(epoch=1))) is None


def test_a_run_of_several_epochs_starts_as_often():
    # 1 s of steps and 1 s of start in each, but for a pause of 5 s in one of them.
    starts = (1.0, 1.0, 6.0)
    parts = [an_epoch(epoch=number, first_batch_seconds=seconds) for number, seconds in enumerate(starts)]
    context = a_context(pool(parts[1:]), parts[0], parts=tuple(parts[1:]))

    assert find_by(EPOCH_START, context).evidence["first_batch_seconds"] == pytest.approx(2.0)


@pytest.mark.parametrize(("busy", "cause"), [(0.006, "shuffle_refill"), (0.004, "iterator_start")])
def test_a_buffers_filling_is_compared_with_a_single_start(busy, cause):
    # 100 batches in the buffer; starts of 1 s.
    stages = a_pipeline(a_map(busy), shuffle(3200), a_batch())
    parts = [an_epoch(epoch=number, first_batch_seconds=1.0, pipeline=stages) for number in (1, 2, 3)]

    assert find_by(EPOCH_START, a_context(pool(parts), parts[0], parts=tuple(parts))).cause == cause


def test_a_fits_first_start_is_no_habit():
    assert find_by(EPOCH_START, a_context(an_epoch(first_batch_seconds=1.0))) is None


def test_a_second_fits_first_start_is_none_either():
    assert find_by(EPOCH_START, a_context(an_epoch(epoch=0, first_batch_seconds=1.0), an_epoch(epoch=0))) is None


@pytest.mark.parametrize(("busy", "is_claimed"), [(0.010, True), (0.001, False), (None, False)])
def test_a_first_start_is_a_shuffles_where_the_work_before_it_explains_the_time(busy, is_claimed):
    # 100 batches in the buffer: 1 s of work at 10 ms each.
    stages = a_pipeline(a_map(busy), shuffle(3200), a_batch())

    found = find_by(EPOCH_START, a_context(an_epoch(first_batch_seconds=1.0, pipeline=stages)))

    assert (found is not None) == is_claimed


def test_what_callbacks_do_at_an_epochs_begin_is_not_the_inputs():
    slow = CallbackSeconds(name="Mailer", epoch_seconds=1.0)

    assert find_by(EPOCH_START, later(1.0, callbacks=(slow,), epoch_end_seconds=0.0)) is None
    # The hooks may all have run at its end.
    assert find_by(EPOCH_START, later(1.0, callbacks=(slow,), epoch_end_seconds=1.0)) is not None


def test_a_long_validation_is_told_how_often_it_should_run():
    verdict = find_by(VALIDATION, a_context(an_epoch(validation_seconds=1.0)))

    assert (verdict.kind, verdict.severity) == ("validation_bound", "critical")
    # 1 s of training; a ninth of that is a tenth of both together.
    assert "validation_freq=9" in verdict.suggestions[0].code
    assert verdict.suggestions[0].expected_speedup == pytest.approx(2 / (1 + 1 / 9))


def test_a_callback_that_makes_validation_long_is_named():
    slow = CallbackSeconds(name="Plotter", validation_seconds=0.8)

    assert (
        find_by(VALIDATION, a_context(an_epoch(validation_seconds=1.0, callbacks=(slow,)))).cause == "callback:Plotter"
    )


@pytest.mark.parametrize("seconds", [None, 0.0, 0.2])
def test_no_or_a_short_validation_is_no_finding(seconds):
    assert find_by(VALIDATION, a_context(an_epoch(validation_seconds=seconds))) is None


def test_the_shuffle_with_the_largest_buffer_is_named_and_no_other_buffer():
    stages = a_map(0.010), shuffle(3200), a_batch(), Stage(index=0, op="shuffle", buffer_size=7), a_prefetch(1000)

    verdict = find_by(EPOCH_START, later(1.0, *stages))

    assert verdict.stage_index == 1
    assert verdict.evidence["shuffle_buffer_elements"] == 3200.0
    assert find_by(EPOCH_START, later(1.0, a_map(0.010), a_prefetch(1000))).cause == "iterator_start"


@pytest.mark.parametrize(("first_batch", "is_claimed"), [(1.9, True), (2.1, False)])
def test_filling_explains_at_least_half_of_a_first_start(first_batch, is_claimed):
    # 100 batches of 10 ms.
    stages = a_pipeline(a_map(0.010), shuffle(3200), a_batch())

    found = find_by(EPOCH_START, a_context(an_epoch(first_batch_seconds=first_batch, pipeline=stages)))

    assert (found is not None) == is_claimed


@pytest.mark.parametrize(("seconds", "cause"), [(4.9, None), (5.0, "callback:Plotter")])
def test_the_callback_with_the_longest_test_hooks_must_explain_half_of_the_validation(seconds, cause):
    callbacks = (
        CallbackSeconds(name="Quick", validation_seconds=0.1),
        CallbackSeconds(name="Plotter", validation_seconds=seconds),
    )

    assert find_by(VALIDATION, a_context(an_epoch(validation_seconds=10.0, callbacks=callbacks))).cause == cause


def test_how_often_to_validate_follows_from_both_durations():
    # 4 s of training: 12 s of validation every 27 epochs are a tenth.
    assert "validation_freq=27" in str(find_by(VALIDATION, a_context(an_epoch(steps=400, validation_seconds=12.0))))
