# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_batch, a_context, a_host, a_map, a_pipeline, a_prefetch, a_source, an_epoch, find_by

from keras_gpu_watch.diagnosis.rules.input_bound import RULE


def find(epoch, *earlier, **changes):
    return find_by(RULE, a_context(epoch, *earlier, **changes))


def bursts(mean_seconds=0.008, **changes):
    """Steps of 12 ms; one wait in 20 is of 96 ms."""
    stages = a_pipeline(a_source(), a_map(mean_seconds), a_batch(), a_prefetch(2))
    known = {"input_wait_p50_seconds": 0.0, "input_wait_p95_seconds": 0.096, "input_wait_max_seconds": 0.096}
    return an_epoch(wait=0.0048, compute=0.012, **{**known, "pipeline": stages, **changes})


def test_bursts_of_a_pipeline_that_is_fast_enough_need_a_deeper_prefetch():
    verdict = find(bursts())

    assert (verdict.kind, verdict.cause) == ("bursty_input", "shallow_prefetch")
    # Two batches now, and 96 ms are 8 steps of 12 ms.
    assert verdict.suggestions[0].code == "ds = ds.prefetch(10)"
    assert verdict.suggestions[0].expected_speedup == pytest.approx(16.8 / 12)


def test_bursts_of_a_pipeline_that_is_too_slow_in_the_mean_are_its_stages_fault():
    verdict = find(bursts(mean_seconds=0.0168))

    assert (verdict.kind, verdict.cause) == ("input_bound", "slow_stage")


def test_even_waits_are_no_bursts_whatever_the_stages_say():
    verdict = find(bursts(input_wait_p50_seconds=0.004))

    assert verdict.kind == "input_bound"


def test_percentiles_that_are_not_known_make_no_bursts():
    assert find(bursts(input_wait_p50_seconds=None)).kind == "input_bound"


def test_without_stages_bursts_are_those_that_cost_less_than_half_of_the_time():
    assert find(bursts(pipeline=None)).kind == "bursty_input"
    assert find(an_epoch(wait=0.013, compute=0.012, input_wait_p50_seconds=0.0)).kind == "input_bound"


@pytest.mark.parametrize("op", ["interleave", "flat_map"])
def test_reads_whose_work_goes_uncounted_are_not_taken_for_bursts(op):
    stages = a_pipeline(a_source(), a_map(0.001, op=op), a_prefetch(2))

    assert find(bursts(pipeline=stages)).kind == "input_bound"


def test_waits_of_more_than_half_of_the_time_are_never_bursts():
    stages = a_pipeline(a_source(), a_map(0.001), a_prefetch(2))

    assert find(an_epoch(wait=0.013, compute=0.012, input_wait_p50_seconds=0.0, pipeline=stages)).kind == "input_bound"


@pytest.mark.parametrize("kind", ["PyDataset", "generator"])
def test_workers_that_deliver_several_batches_at_once_are_not_taken_for_bursts(kind):
    assert find(bursts(pipeline=a_pipeline(input_kind=kind))).kind == "input_bound"


def test_a_buffer_is_bounded_by_the_free_memory():
    # 16 GiB, 99 % of them in use: a third of 164 MiB holds one batch of 50 MiB.
    large = a_pipeline(a_map(0.008, bytes_per_element=50 * 2.0**20), a_prefetch(2))
    verdict = find(bursts(pipeline=large, host=a_host(memory=99.0)))

    assert verdict.suggestions[0].code == "ds = ds.prefetch(2)"


def serial(seconds):
    return a_pipeline(a_source(), a_map(seconds), serial_seconds_per_batch=seconds, slowest_seconds_per_batch=None)


def test_work_on_the_trainings_own_thread_needs_a_prefetch():
    verdict = find(an_epoch(wait=0.008, compute=0.010, pipeline=serial(0.008)))

    assert verdict.cause == "no_prefetch"
    assert verdict.suggestions[0].code == "ds = ds.prefetch(tf.data.AUTOTUNE)"
    assert verdict.suggestions[0].expected_speedup == pytest.approx(1.8)


def test_work_that_does_not_fit_beside_the_step_needs_more_than_a_prefetch():
    assert find(an_epoch(wait=0.100, compute=0.010, pipeline=serial(0.100))).cause != "no_prefetch"


def test_serial_work_that_is_not_known_is_no_missing_prefetch():
    unknown = a_pipeline(a_source(), a_map(0.008), serial_seconds_per_batch=None, slowest_seconds_per_batch=None)

    assert find(an_epoch(wait=0.008, pipeline=unknown)).cause != "no_prefetch"


def with_cache(elements_below):
    below = a_source(elements=elements_below), a_map(0.030, elements=elements_below)
    return an_epoch(epoch=1, wait=0.020, pipeline=a_pipeline(*below, a_map(0.0, op="cache", function=None), a_batch()))


def test_a_cache_that_is_read_past_after_the_first_epoch_is_named():
    verdict = find(with_cache(3200.0), an_epoch())

    assert (verdict.cause, verdict.stage) == ("cache_not_filled", "map(decode)")
    assert verdict.evidence["elements_below_cache"] == 3200.0
    assert "take" in verdict.suggestions[1].code


@pytest.mark.parametrize("elements", [0.0, None])
def test_a_cache_without_elements_below_is_filled_or_not_known(elements):
    assert find(with_cache(elements), an_epoch()).cause != "cache_not_filled"


def test_a_cache_is_filled_in_the_first_epoch_and_not_blamed_for_it():
    assert find(with_cache(3200.0)).cause != "cache_not_filled"


def test_a_slow_stage_behind_the_cache_is_not_the_caches_fault():
    below, behind = a_source(), a_map(0.030)
    stages = a_pipeline(below, a_map(0.0, op="cache", function=None, wait_share=0.0), behind)

    assert find(an_epoch(epoch=1, wait=0.02, pipeline=stages), an_epoch()).cause != "cache_not_filled"


def copying(bytes_per_element, busy, **changes):
    batch = a_batch(busy_seconds_per_batch=busy, wait_share=1.0, bytes_per_element=bytes_per_element, **changes)
    return an_epoch(wait=0.020, pipeline=a_pipeline(a_source(), batch))


def test_a_batch_that_copies_as_fast_as_memory_allows_has_large_elements():
    verdict = find(copying(30e6, 0.030 * 0.999))

    assert (verdict.cause, verdict.stage) == ("large_elements", "batch")
    assert verdict.evidence["copied_bytes_per_second"] == pytest.approx(1e9, rel=0.01)
    assert verdict.suggestions[1].code == "ds = ds.batch(32, num_parallel_calls=tf.data.AUTOTUNE)"


def test_a_batch_of_small_elements_has_none():
    assert find(copying(10e6, 0.030)).cause != "large_elements"
    assert find(copying(None, 0.030)).cause != "large_elements"


def test_a_map_of_large_elements_computes_and_is_not_called_a_copy():
    stages = a_pipeline(a_source(), a_map(0.030, bytes_per_element=100e6))

    assert find(an_epoch(wait=0.020, pipeline=stages)).cause != "large_elements"


def test_a_cache_under_a_repeat_may_still_be_in_its_first_pass():
    stages = a_pipeline(
        a_source(elements=3200.0),
        a_map(0.030, elements=3200.0),
        a_map(0.0, op="cache", function=None, wait_share=0.0),
        a_map(0.0, op="repeat", function=None, wait_share=0.0),
    )
    assert find(an_epoch(epoch=1, wait=0.020, pipeline=stages), an_epoch()).cause != "cache_not_filled"
