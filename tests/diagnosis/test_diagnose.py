# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from known_epochs import a_gpu, a_host, a_machine, a_map, a_pipeline, a_source, an_epoch, some_info

from keras_gpu_watch.diagnosis import diagnose, diagnose_run
from keras_gpu_watch.findings import CallbackSeconds
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.samples import GpuDevice


def judge(*epochs):
    return diagnose(epochs, a_machine(), some_info())


def judge_run(*epochs):
    return diagnose_run(epochs, a_machine(), some_info())


def test_what_loses_most_is_the_verdict_and_the_rest_follows():
    epoch = an_epoch(epoch=1, wait=0.010, compute=0.010, validation_seconds=3.0, epoch_end_seconds=0.9)

    verdict, others = judge(an_epoch(), epoch)

    assert [verdict.kind, *(each.kind for each in others)] == ["validation_bound", "input_bound", "host_bound"]
    assert [each.lost_share for each in (verdict, *others)] == sorted(
        (each.lost_share for each in (verdict, *others)), reverse=True
    )


def test_a_slow_callback_beats_a_wait_that_is_shorter():
    callbacks = (CallbackSeconds(name="Plotter", step_seconds=2.0),)

    verdict, others = judge(an_epoch(wait=0.004, compute=0.010, hooks=0.020, callbacks=callbacks))

    assert (verdict.kind, verdict.cause) == ("host_bound", "callback:Plotter")
    assert others[0].kind == "moderately_input_bound"


def test_a_finding_that_costs_little_still_comes_before_a_note():
    epoch = an_epoch(wait=0.001, compute=0.010, compile_seconds=5.0, compile_steps=1)

    verdict, others = judge(epoch)

    assert (verdict.kind, others[0].kind) == ("moderately_input_bound", "compile_bound")


@pytest.mark.parametrize(("compile_seconds", "kind"), [(5.0, "compile_bound"), (0.5, "compute_bound")])
def test_a_first_epoch_that_mostly_compiles_is_called_so(compile_seconds, kind):
    assert judge(an_epoch(compile_seconds=compile_seconds, compile_steps=1))[0].kind == kind


def test_heat_comes_before_a_plain_compute_bound_and_neighbours_after_it():
    epoch = an_epoch(gpus=(a_gpu(99.0, thermal_throttle_share=0.5),))
    machine = a_machine(gpus=(GpuDevice(name="A100", other_processes=1),))

    verdict, others = diagnose([epoch], machine, some_info())

    assert [verdict.cause, *(each.cause for each in others)] == ["throttled", None, "gpu_shared"]


def test_a_long_validation_is_certain_with_few_steps():
    verdict, others = judge(an_epoch(steps=3, validation_seconds=5.0))

    assert (verdict.kind, others[0].kind) == ("validation_bound", "insufficient_data")


def test_an_epoch_without_steps_has_too_little_data():
    assert judge(an_epoch(steps=0, wall_seconds=0.1))[0].kind == "insufficient_data"


def test_the_second_epoch_tells_of_the_first_ones_cold_cache_and_the_third_does_not_again():
    epochs = [an_epoch(wait=0.1), an_epoch(epoch=1), an_epoch(epoch=2)]

    verdict, others = judge(*epochs[:2])

    assert verdict.kind == "compute_bound"
    assert [each.cause for each in others] == ["cold_cache"]
    assert judge(*epochs)[1] == ()


def test_a_run_without_epochs_has_no_verdict():
    assert judge_run() is None


def test_a_run_of_one_epoch_is_judged_as_that_epoch():
    epoch = an_epoch(wait=0.02)

    assert judge_run(epoch) == judge(epoch)[0]


def test_a_run_is_judged_without_its_first_epoch():
    first = an_epoch(wait=0.0, compile_seconds=100.0, compile_steps=1)

    verdict = judge_run(first, *(an_epoch(epoch=number, wait=0.02) for number in (1, 2, 3)))

    assert verdict.kind == "input_bound"
    assert verdict.evidence["steady_steps"] == 300


def test_short_epochs_give_enough_steps_together():
    short = [an_epoch(epoch=number, steps=6, wait=0.02) for number in range(5)]

    assert all(judge(*short[: count + 1])[0].kind == "insufficient_data" for count in range(5))
    assert judge_run(*short).kind == "input_bound"


@pytest.mark.parametrize(("steps", "kind"), [(19, "input_bound"), (20, "compute_bound")])
def test_twenty_steps_after_the_first_epoch_suffice(steps, kind):
    assert judge_run(an_epoch(wait=0.006), an_epoch(epoch=1, steps=steps)).kind == kind


def test_the_first_epoch_counts_where_the_others_do_not_suffice():
    assert judge_run(an_epoch(steps=15, wait=0.02), an_epoch(epoch=1, steps=15, wait=0.02)).kind == "input_bound"


def test_a_run_whose_time_went_to_a_cold_first_epoch_says_so():
    verdict = judge_run(an_epoch(wait=0.2), an_epoch(epoch=1))

    assert (verdict.kind, verdict.cause) == ("input_bound", "cold_cache")


def test_a_longer_run_is_judged_by_its_later_epochs_whatever_a_cold_first_one_took():
    later = [an_epoch(epoch=number) for number in range(1, 30)]

    assert judge_run(an_epoch(wait=0.2), *later).kind == "compute_bound"


def test_a_runs_stage_is_the_newest_that_is_known():
    stages = a_pipeline(a_source(), a_map(0.030))
    run = [an_epoch(epoch=number, wait=0.02, pipeline=stages if number == 1 else None) for number in range(3)]

    assert judge_run(*run).stage == "map(decode)"


def test_statistics_of_a_run_are_weighted_with_their_samples():
    stages = a_pipeline(a_source(), a_map(0.030, python="numpy_function"))
    # 20 samples each.
    held = [
        an_epoch(epoch=number, wait=0.02, pipeline=stages, host=a_host(lock=lock))
        for number, lock in ((1, 100.0), (2, 40.0))
    ]

    verdict = judge_run(an_epoch(), *held)

    assert verdict.cause == "python_lock"
    assert verdict.evidence["interpreter_held_share"] == pytest.approx(0.7)


def test_an_epoch_broken_off_before_its_first_step_does_not_hide_the_others():
    waiting = an_epoch(wait=0.030)
    broken_off = EpochSummary(epoch=2, wall_seconds=0.01, first_batch_seconds=0.01)

    verdict = judge_run(waiting, waiting, broken_off)

    assert verdict.kind == "input_bound"
    assert verdict.lost_share == pytest.approx(waiting.input_wait_seconds / waiting.wall_seconds)


def test_an_epoch_whose_waits_are_unknown_does_not_make_the_loss_of_the_others_nothing():
    waiting, unknown = an_epoch(wait=0.030), an_epoch(wait=None, steps=20)

    verdict = judge_run(waiting, waiting, unknown)

    assert verdict.kind == "input_bound"
    assert verdict.lost_share > 0.5
