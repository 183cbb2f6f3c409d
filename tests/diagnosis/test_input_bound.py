# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_batch, a_context, a_map, a_pipeline, a_source, an_epoch, find_by, some_info

from keras_gpu_watch.diagnosis.rules.input_bound import RULE


def slow_map(busy=0.030, **changes):
    return a_pipeline(a_source(), a_map(busy, **changes), a_batch())


def test_the_headline_says_how_long_for_what_and_how_much_there_is_to_gain():
    epoch = an_epoch(wait=0.018, compute=0.010, pipeline=slow_map())

    verdict = find_by(RULE, a_context(epoch))

    assert verdict.headline == (
        "Input-bound: each step waits 18 ms of 28 ms for map(decode) (train.py:42), "
        "at most 2.8x faster if input were free"
    )
    assert (verdict.stage, verdict.stage_index, verdict.severity) == ("map(decode)", 1, "critical")


def test_batches_are_spoken_of_where_a_step_has_several():
    epoch = an_epoch(wait=0.018)

    verdict = find_by(RULE, a_context(epoch, info=some_info(steps_per_execution=8)))

    assert "each batch waits" in verdict.headline


def test_evidence_holds_the_numbers_that_the_verdict_rests_on():
    epoch = an_epoch(wait=0.020, compute=0.010, pipeline=slow_map(0.060, parallelism=2.0))

    evidence = find_by(RULE, a_context(epoch)).evidence

    assert evidence["input_wait_share"] == pytest.approx(2 / 3)
    assert evidence["ceiling_speedup"] == pytest.approx(3.0)
    assert evidence["input_wait_seconds_per_batch"] == pytest.approx(0.020)
    assert evidence["compute_and_host_seconds_per_batch"] == pytest.approx(0.010)
    assert evidence["stage_busy_seconds_per_batch"] == 0.060
    assert evidence["stage_calls_at_a_time"] == 2.0


def test_what_is_not_measured_is_no_evidence():
    epoch = an_epoch(wait=0.020, input_wait_max_seconds=None, batches_per_second=None)

    evidence = find_by(RULE, a_context(epoch)).evidence

    assert not evidence.keys() & {"input_wait_max_seconds", "input_wait_seconds_per_batch", "stage_wait_share"}


def test_the_loss_is_the_waits_share_in_the_wall_time():
    epoch = an_epoch(wait=0.010, compute=0.010, validation_seconds=2.0)

    assert find_by(RULE, a_context(epoch)).lost_share == pytest.approx(1.0 / 4.0)


def test_the_stage_with_the_largest_share_of_the_wait_is_blamed_not_the_busiest():
    stages = a_pipeline(a_map(0.9, function="busy", parallelism=64.0, wait_share=0.2), a_map(0.030, wait_share=0.8))

    assert find_by(RULE, a_context(an_epoch(wait=0.02, pipeline=stages))).stage == "map(decode)"


def test_a_wait_that_is_not_measured_is_no_verdict_and_a_wait_of_zero_is_none_either():
    assert find_by(RULE, a_context(an_epoch(wait=None))) is None
    assert find_by(RULE, a_context(an_epoch(wait=0.0))) is None


def test_without_stages_the_cause_stays_open():
    verdict = find_by(RULE, a_context(an_epoch(wait=0.02)))

    assert (verdict.cause, verdict.stage) == (None, None)
    assert "prefetch" in verdict.suggestions[0].code


def test_without_cpu_samples_a_slow_stage_is_blamed_without_a_cause():
    verdict = find_by(RULE, a_context(an_epoch(wait=0.02, pipeline=slow_map())))

    assert (verdict.cause, verdict.stage) == ("slow_stage", "map(decode)")
    assert "num_parallel_calls=tf.data.AUTOTUNE" in verdict.suggestions[0].code


def test_arrays_are_told_to_use_larger_batches():
    stages = a_pipeline(a_source(added_by="keras"), a_map(0.030, added_by="keras"), input_kind="arrays")

    verdict = find_by(RULE, a_context(an_epoch(wait=0.02, pipeline=stages)))

    assert "batch_size" in verdict.suggestions[0].what


def test_a_pydataset_without_any_measurement_is_told_of_workers():
    verdict = find_by(RULE, a_context(an_epoch(wait=0.02, pipeline=a_pipeline(input_kind="PyDataset"))))

    assert "workers=" in verdict.suggestions[0].code
