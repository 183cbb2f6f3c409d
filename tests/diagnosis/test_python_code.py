# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_context, a_host, a_machine, a_map, a_pipeline, a_source, an_epoch, find_by, some_info

from keras_gpu_watch.diagnosis.rules.input_bound import RULE
from keras_gpu_watch.findings import Stage


def python_map(lock, *, python="numpy_function", **changes):
    stages = a_pipeline(a_source(), a_map(0.040, python=python, is_stateful=True))
    return an_epoch(**{"wait": 0.030, "pipeline": stages, "host": a_host(lock=lock), **changes})


def generator(lock, **changes):
    source = Stage(
        index=0,
        op="from_generator",
        function="rows",
        python="from_generator",
        busy_seconds_per_batch=0.040,
        wait_share=1.0,
    )
    return an_epoch(**{"wait": 0.030, "pipeline": a_pipeline(source), "host": a_host(lock=lock), **changes})


def keras_input(lock, kind="PyDataset", **changes):
    """Without a model of the live iterator."""
    source = Stage(index=0, op="from_generator", function="Images", python="py_dataset", added_by="keras")
    pipeline = a_pipeline(source, input_kind=kind)
    return an_epoch(**{"wait": 0.030, "pipeline": pipeline, "host": a_host(lock=lock), **changes})


def find(epoch, **changes):
    return find_by(RULE, a_context(epoch, **changes))


def test_a_python_map_that_holds_the_lock_is_not_sent_to_more_calls():
    verdict = find(python_map(lock=95.0))

    assert (verdict.cause, verdict.stage) == ("python_lock", "map(decode)")
    assert not any("num_parallel_calls" in (each.code or "") for each in verdict.suggestions)
    assert [each.expected_speedup for each in verdict.suggestions] == [None, None]


@pytest.mark.parametrize("lock", [59.9, 0.0, None])
def test_a_lock_that_is_mostly_free_or_not_measured_is_not_blamed(lock):
    assert find(python_map(lock)).cause != "python_lock"


def test_the_lock_is_not_blamed_on_a_stage_without_python():
    assert find(python_map(lock=95.0, python=None)).cause != "python_lock"


def test_the_locks_limit_is_exact():
    assert find(python_map(lock=60.0)).cause == "python_lock"


def test_callbacks_that_hold_the_lock_are_not_taken_for_the_pipeline():
    # Half of the step's time is host time: the lock is held then, and a fifth of the rest.
    epoch = python_map(lock=60.0, wait=0.005, compute=0.005, hooks=0.010)

    verdict = find(epoch)

    assert verdict.kind == "input_bound"
    assert verdict.cause != "python_lock"


def test_an_eager_step_that_holds_the_lock_is_not_taken_for_the_pipeline():
    epoch = python_map(lock=70.0, wait=0.003, compute=0.007)

    assert find(epoch, info=some_info(run_eagerly=True)).cause != "python_lock"
    assert find(epoch, info=some_info(run_eagerly=False)).cause == "python_lock"


def test_a_generator_that_waits_is_a_single_producer_whatever_the_prefetch():
    verdict = find(generator(lock=5.0))

    assert (verdict.cause, verdict.stage) == ("single_producer", "from_generator(rows)")
    assert "larger prefetch can't help" in verdict.headline
    # 40 ms for a batch, 10 ms a step, and a fifth more.
    assert "cycle_length=5, num_parallel_calls=5" in verdict.suggestions[0].code
    assert verdict.suggestions[0].expected_speedup == pytest.approx(4.0)


def test_a_generator_that_computes_is_a_matter_of_the_lock():
    assert find(generator(lock=95.0)).cause == "python_lock"


def test_a_generator_is_no_single_producer_where_the_lock_is_not_measured():
    assert find(generator(lock=None)).cause not in ("single_producer", "python_lock")


@pytest.mark.parametrize("kind", ["PyDataset", "generator"])
def test_keras_own_inputs_are_blamed_without_any_measured_stage(kind):
    assert find(keras_input(5.0, kind)).cause == "single_producer"
    assert find(keras_input(95.0, kind)).cause == "python_lock"


def test_threads_of_a_pydataset_that_computes_become_processes_within_the_cores():
    suggestion = find(keras_input(95.0)).suggestions[0]

    # 40 ms from batch to batch, 10 ms a step: five by the arithmetic.
    assert "workers=5, use_multiprocessing=True" in suggestion.code


def test_a_pydataset_that_waits_gets_threads():
    suggestion = find(keras_input(5.0)).suggestions[0]

    assert "workers=5)" in suggestion.code


def test_a_pydataset_that_nothing_is_known_of_is_blamed_all_the_same():
    epoch = an_epoch(wait=0.030, pipeline=a_pipeline(input_kind="PyDataset"), host=a_host(lock=5.0))

    assert find(epoch).cause == "single_producer"


def test_the_share_in_which_the_lock_is_held_is_evidence():
    assert find(python_map(lock=95.0)).evidence["interpreter_held_share"] == pytest.approx(0.95)
    assert find(generator(lock=5.0)).evidence["interpreter_held_share"] == pytest.approx(0.05)


@pytest.mark.parametrize(("cores", "workers"), [(8.0, 5), (3.0, 3), (1.0, 2)])
def test_processes_are_no_more_than_the_cores_but_at_least_two(cores, workers):
    suggestion = find(keras_input(95.0), devices=a_machine(cores)).suggestions[0]

    assert f"workers={workers}," in suggestion.code


def test_a_map_in_front_of_keras_own_input_is_blamed_for_itself():
    source = Stage(index=0, op="from_generator", python="py_dataset", added_by="keras", wait_share=0.1)
    stages = a_pipeline(source, a_map(0.040), input_kind="generator")

    assert find(an_epoch(wait=0.030, pipeline=stages, host=a_host(lock=95.0))).cause != "python_lock"


@pytest.mark.parametrize(("workers", "cause", "wanted"), [(None, "single_producer", 5), (4, "few_workers", 20)])
def test_several_workers_that_wait_are_no_single_producer(workers, cause, wanted):
    source = Stage(
        index=0,
        op="from_generator",
        function="Images",
        python="py_dataset",
        added_by="keras",
        num_parallel_calls=workers,
    )
    epoch = an_epoch(wait=0.030, pipeline=a_pipeline(source, input_kind="PyDataset"), host=a_host(lock=5.0))

    verdict = find(epoch)

    assert verdict.cause == cause
    # 40 ms for each 10 ms step, and a fifth more.
    assert f"workers={wanted}" in verdict.suggestions[0].code
