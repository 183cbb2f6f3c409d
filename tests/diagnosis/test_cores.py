# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest
from known_epochs import (
    GIB,
    a_batch,
    a_context,
    a_host,
    a_machine,
    a_map,
    a_pipeline,
    a_source,
    an_epoch,
    constant,
    find_by,
    some_info,
)

from keras_gpu_watch.diagnosis import mark_waiting
from keras_gpu_watch.diagnosis.rules.input_bound import RULE
from keras_gpu_watch.diagnosis.waiting import cpu_share
from keras_gpu_watch.findings import Stage
from keras_gpu_watch.samples import Devices


def slow(stage, *, cores_in_use, cores=8.0, wait=0.030, lock=0.0, on_accelerator=True, **changes):
    """Steps of 10 ms besides the wait, on a GPU."""
    cpu = None if cores_in_use is None else 100 * cores_in_use / cores
    pipeline = a_pipeline(a_source(), stage, a_batch(), **changes)
    epoch = an_epoch(wait=wait, pipeline=pipeline, host=a_host(cpu=cpu, lock=lock))
    return a_context(epoch, devices=a_machine(cores), info=some_info(on_accelerator=on_accelerator))


def test_a_sequential_map_with_idle_cores_waits_for_something_else():
    verdict = find_by(RULE, slow(a_map(0.040), cores_in_use=0.3))

    assert (verdict.cause, verdict.stage) == ("latency", "map(decode)")
    # 40 ms of waiting for a batch, 10 ms a step, and a fifth more.
    assert verdict.suggestions[0].code == "ds = ds.map(decode, num_parallel_calls=5)  # train.py:42"
    assert verdict.suggestions[0].expected_speedup == pytest.approx(4.0)


def test_calls_beyond_the_cores_get_threads_of_their_own():
    verdict = find_by(RULE, slow(a_map(0.320, parallelism=8.0, num_parallel_calls=-1), cores_in_use=0.5))

    assert verdict.cause == "latency"
    code = verdict.suggestions[0].code
    assert "num_parallel_calls=39" in code
    assert "options.threading.private_threadpool_size = 39" in code
    assert verdict.suggestions[0].expected_speedup == pytest.approx(4.0)


def test_calls_that_are_written_but_have_no_threads_keep_their_number():
    stage = a_map(0.080, parallelism=2.0, num_parallel_calls=32)
    verdict = find_by(RULE, slow(stage, cores=2.0, cores_in_use=0.2))

    assert "num_parallel_calls=32" in verdict.suggestions[0].code
    assert "private_threadpool_size = 32" in verdict.suggestions[0].code


def test_a_larger_pool_of_the_users_stays():
    context = slow(a_map(0.320, parallelism=8.0), cores_in_use=0.5, private_threadpool_size=64)

    assert "private_threadpool_size = 64" in find_by(RULE, context).suggestions[0].code


@pytest.mark.parametrize(
    ("in_use", "everybody", "cause"),
    [
        (0.5, 84.0, "latency"),
        (0.5, None, "latency"),
        # On a core for a quarter to a half of its time, with no core idle: that may be all it got.
        (0.5, 85.0, "slow_stage"),
        (0.3, 85.0, "latency"),
        (0.8, 85.0, "low_parallelism"),
    ],
)
def test_where_others_leave_no_core_idle_work_that_is_held_up_is_not_taken_for_waiting(in_use, everybody, cause):
    context = slow(a_map(0.040), cores_in_use=in_use)
    host = dataclasses.replace(context.epoch.host, cpu_percent=constant(everybody))
    context = dataclasses.replace(context, epoch=dataclasses.replace(context.epoch, host=host))

    assert find_by(RULE, context).cause == cause


def test_work_that_was_not_counted_takes_as_long_as_a_batch():
    # A flat_map that sleeps in datasets which nobody saw: half a millisecond of 40.
    verdict = find_by(RULE, slow(a_map(0.0005, op="flat_map", function="read"), cores_in_use=0.1))

    assert verdict.cause == "latency"
    assert "cycle_length=5, num_parallel_calls=5" in verdict.suggestions[0].code


def test_interleaved_reads_get_a_longer_cycle_and_no_pool():
    stage = a_map(0.320, op="interleave", function="read", cycle_length=4, parallelism=4.0)
    suggestion = find_by(RULE, slow(stage, cores_in_use=0.3)).suggestions[0]

    assert "interleave(read, cycle_length=39, num_parallel_calls=39)" in suggestion.code
    assert "private_threadpool_size" not in suggestion.code
    assert "order" in suggestion.why


@pytest.mark.parametrize(
    ("op", "code"),
    [("flat_map", "ds.interleave(decode, "), ("TFRecordDataset", "num_parallel_reads="), ("filter", None)],
)
def test_each_stage_is_told_what_it_can_do_about_waiting(op, code):
    suggestion = find_by(RULE, slow(a_map(0.040, op=op), cores_in_use=0.3)).suggestions[0]

    assert suggestion.code is None if code is None else code in suggestion.code


def test_a_sequential_map_that_computes_has_too_little_parallelism():
    # One core for the map, a little for the rest.
    verdict = find_by(RULE, slow(a_map(0.040), cores_in_use=1.2))

    assert verdict.cause == "low_parallelism"
    assert "num_parallel_calls=tf.data.AUTOTUNE" in verdict.suggestions[0].code
    assert verdict.suggestions[0].expected_speedup == pytest.approx(4.0)


def test_what_autotune_chose_too_small_is_written_as_a_number():
    stage = a_map(0.080, parallelism=2.0, num_parallel_calls=-1)
    verdict = find_by(RULE, slow(stage, cores_in_use=2.2))

    assert verdict.cause == "low_parallelism"
    assert "num_parallel_calls=8" in verdict.suggestions[0].code


def test_no_more_is_promised_than_the_next_slowest_stage_allows():
    stages = a_pipeline(a_source(), a_map(0.040), a_map(0.020, function="augment", wait_share=0.0))
    epoch = an_epoch(wait=0.030, pipeline=stages, host=a_host(cpu=100 * 1.7 / 8, lock=0.0))

    verdict = find_by(RULE, a_context(epoch))

    assert verdict.cause == "low_parallelism"
    assert verdict.suggestions[0].expected_speedup == pytest.approx(2.0)


def test_random_numbers_that_would_move_are_spoken_of():
    verdict = find_by(RULE, slow(a_map(0.040, is_random=True), cores_in_use=1.2))

    assert "stateless" in verdict.suggestions[0].why


def test_a_map_on_all_cores_needs_more_of_them():
    # 400 ms of CPU for a batch, and 10 ms a step.
    stage = a_map(0.400, parallelism=8.0, num_parallel_calls=-1)
    verdict = find_by(RULE, slow(stage, cores_in_use=7.9, wait=0.040))

    assert verdict.cause == "too_few_cores"
    assert verdict.evidence["cores_needed"] == pytest.approx(8 * 0.050 / 0.010)
    assert "# 5 workers" in verdict.suggestions[1].code
    assert not any("num_parallel_calls" in (each.code or "") for each in verdict.suggestions)


def test_more_threads_than_cores_that_compute_are_not_taken_for_waiting():
    # 64 calls queue for 8 cores: each one is under way for long and on a core for an eighth of it.
    stage = a_map(3.2, parallelism=64.0, num_parallel_calls=64)

    assert find_by(RULE, slow(stage, cores_in_use=8.0, wait=0.040)).cause == "too_few_cores"


@pytest.mark.parametrize("cause", ["latency", "low_parallelism", "too_few_cores"])
def test_nothing_is_claimed_of_a_cpu_that_was_not_sampled(cause):
    assert find_by(RULE, slow(a_map(0.040), cores_in_use=None)).cause == "slow_stage" != cause


def test_a_cpu_that_was_sampled_as_idle_is_another_thing():
    assert find_by(RULE, slow(a_map(0.040), cores_in_use=0.0)).cause == "latency"


def test_python_behind_a_lock_that_was_not_measured_is_not_called_waiting():
    stage = a_map(0.080, parallelism=8.0, python="numpy_function")

    assert find_by(RULE, slow(stage, cores_in_use=1.0, lock=None)).cause == "slow_stage"
    assert find_by(RULE, slow(stage, cores_in_use=0.5, lock=5.0)).cause == "latency"


def test_on_a_cpu_the_steps_own_cores_leave_the_share_open_between_two_bounds():
    # A core and a half of 8 in use: all of it the map's, or none.
    context = slow(a_map(0.040), cores_in_use=1.5, on_accelerator=False)
    on_gpu = slow(a_map(0.040), cores_in_use=1.5)

    assert cpu_share(context, context.blamed) == pytest.approx(0.5)
    assert cpu_share(on_gpu, on_gpu.blamed) == pytest.approx(1.0, abs=0.02)


def test_a_stage_that_keras_added_is_not_told_to_change():
    assert find_by(RULE, slow(a_map(0.040, added_by="keras"), cores_in_use=0.3)).cause is None


def cacheable(stage, *, used_percent=50.0, source=None, batches=100):
    pipeline = a_pipeline(source or a_source(), stage, a_map(0.001, function="augment", is_random=True, wait_share=0.0))
    host = a_host(cpu=1.0, lock=0.0, memory=used_percent)
    return a_context(an_epoch(wait=0.030, pipeline=pipeline, host=host, batches=batches))


def offers_a_cache(context):
    return any(".cache()" in (each.code or "") for each in find_by(RULE, context).suggestions)


def test_decoded_data_that_fits_into_memory_should_be_cached_before_augmentation():
    context = cacheable(a_map(0.040, bytes_per_element=2.0**20))
    # 3200 elements of 1 MiB, and 8 GiB are free: more than a third. A fifth of them is less.
    assert not offers_a_cache(context)

    suggestion = find_by(RULE, cacheable(a_map(0.040, bytes_per_element=2.0**20), batches=20)).suggestions[-1]
    assert "before random augmentation" in suggestion.what
    assert ".map(decode, num_parallel_calls=tf.data.AUTOTUNE).cache()" in suggestion.code
    assert suggestion.expected_speedup == pytest.approx(4.0)


@pytest.mark.parametrize(
    "context",
    [
        cacheable(a_map(0.040, bytes_per_element=1000.0, is_random=True)),
        cacheable(a_map(0.040, bytes_per_element=1000.0, python="numpy_function", is_random=None)),
        cacheable(a_map(0.040, bytes_per_element=None)),
        cacheable(a_map(0.040, bytes_per_element=1000.0), used_percent=None),
        cacheable(a_map(0.040, bytes_per_element=1000.0), used_percent=100.0),
        cacheable(a_map(0.040, bytes_per_element=1000.0), source=a_source("shuffle")),
        cacheable(a_map(0.040, bytes_per_element=1000.0), source=a_source("cache")),
    ],
    ids=[
        "random",
        "Python that may draw",
        "size not known",
        "memory not known",
        "memory full",
        "behind a shuffle",
        "cached already",
    ],
)
def test_a_cache_is_not_offered_where_it_would_change_the_data_or_not_fit(context):
    assert not offers_a_cache(context)


@pytest.mark.parametrize(("memory", "size", "fits"), [(0.0, 1.0, True), (0.0, 1.01, False), (50.0, 0.5, True)])
def test_a_third_of_the_free_memory_is_the_most_for_a_cache(memory, size, fits):
    whole_third = 16 * GIB / 3
    stage = a_map(0.040, bytes_per_element=size * whole_third / 3200)

    assert offers_a_cache(cacheable(stage, used_percent=memory)) == fits


def test_a_small_epoch_is_offered_a_cache():
    assert offers_a_cache(cacheable(a_map(0.040, bytes_per_element=1000.0)))


def test_a_generator_with_free_lock_is_no_matter_of_cores():
    source = Stage(index=0, op="from_generator", python="from_generator", busy_seconds_per_batch=0.040, wait_share=1.0)
    epoch = an_epoch(wait=0.030, pipeline=a_pipeline(source), host=a_host(cpu=1.0, lock=2.0))

    assert find_by(RULE, a_context(epoch)).cause == "single_producer"


def test_other_stages_work_may_be_what_uses_the_cpu():
    # Two cores in use: 80 ms a batch, of which another map, in parallel, may have used 70.
    busy = a_map(0.070, function="augment", parallelism=8.0, wait_share=0.0)
    epoch = an_epoch(wait=0.030, pipeline=a_pipeline(a_map(0.040), busy), host=a_host(cpu=100 * 2 / 8, lock=0.0))
    context = a_context(epoch)

    assert cpu_share(context, context.blamed) == pytest.approx(0.5)


def test_a_machine_that_is_full_has_no_spare_cores_for_a_sequential_map():
    verdict = find_by(RULE, slow(a_map(0.040), cores=2.0, cores_in_use=1.7))

    assert verdict.cause == "too_few_cores"


def test_a_map_in_as_many_calls_as_there_are_cores_is_told_to_do_less():
    # The CPU is not sampled.
    stage = a_map(0.080, parallelism=8.0, num_parallel_calls=8)
    (suggestion,) = find_by(RULE, slow(stage, cores_in_use=None)).suggestions

    assert suggestion.code is None
    assert "less to do" in suggestion.what


def test_a_map_that_lacks_calls_and_cores_hears_of_both():
    # Four cores' worth of work a step, on two.
    verdict = find_by(RULE, slow(a_map(0.040), cores=2.0, cores_in_use=1.2))

    assert verdict.cause == "low_parallelism"
    assert any("workers" in (each.code or "") for each in verdict.suggestions)
    few = find_by(RULE, slow(a_map(0.040), cores_in_use=1.2))
    assert not any("workers" in (each.code or "") for each in few.suggestions)


def test_without_known_cores_more_calls_are_offered_without_a_promise():
    epoch = an_epoch(wait=0.030, pipeline=a_pipeline(a_source(), a_map(0.040)))
    (suggestion,) = find_by(RULE, a_context(epoch, devices=Devices())).suggestions

    assert "num_parallel_calls=tf.data.AUTOTUNE" in suggestion.code
    assert suggestion.expected_speedup is None


@pytest.mark.parametrize(("changes", "words"), [({"is_stateful": True}, "keeps a state"), ({}, "")])
def test_a_stage_with_a_state_is_not_sent_to_parallel_calls_without_a_word(changes, words):
    suggestion = find_by(RULE, slow(a_map(0.040, **changes), cores_in_use=1.2)).suggestions[0]

    assert words in suggestion.why
    assert ("keeps a state" in suggestion.why) == bool(words)


def test_stages_are_marked_as_waiting_or_computing_as_the_verdict_says():
    waiting = slow(a_map(0.040), cores_in_use=0.3)
    computing = slow(a_map(0.040), cores_in_use=1.2)
    for context, expected in ((waiting, True), (computing, False)):
        marked = mark_waiting(context.epoch, (), context.devices, context.info).pipeline
        assert marked is not None
        assert [stage.is_waiting for stage in marked.stages if stage.op == "map"] == [expected]
    unknown = slow(a_map(0.040), cores_in_use=None)
    marked = mark_waiting(unknown.epoch, (), unknown.devices, unknown.info).pipeline
    assert marked is not None
    assert [stage.is_waiting for stage in marked.stages] == [None] * len(marked.stages)


def test_an_epoch_without_a_pipeline_stays_without_one():
    epoch = an_epoch(wait=0.010)
    assert mark_waiting(epoch, (), a_machine(2.0), None) == epoch
