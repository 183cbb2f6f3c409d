# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import STEPS, SimulatedStage, Simulation, is_close, train

from keras_gpu_watch.findings import Suggestion, Verdict
from keras_gpu_watch.knobs import END, Knobs, Tunable
from keras_gpu_watch.tuning import AutoTune, Tuner


def tuned(simulation: Simulation, **limits: Any) -> Tuner:
    tuner = Tuner(AutoTune(**limits))
    train(simulation, tuner)
    return tuner


def stage(work_seconds: float, **fields: Any) -> SimulatedStage:
    return SimulatedStage(work_seconds=work_seconds, **fields)


WAITING = stage(0.640, is_waiting=True, calls=2)
STANDARD = {
    "a map that waits": Simulation(stages=(WAITING,)),
    "a map that computes": Simulation(stages=(stage(0.030),)),
    "more work than cores": Simulation(stages=(stage(0.200),)),
    "a wait that nobody has told": Simulation(stages=(stage(0.100, is_waiting=True),), tells_waiting=False),
    "work that nobody has told": Simulation(stages=(stage(0.200),), tells_waiting=False),
    "two stages of which one is slow": Simulation(stages=(WAITING, stage(0.005, calls=2))),
    "two stages that are both slow": Simulation(stages=(stage(0.1, is_waiting=True), stage(0.03))),
    "bad numbers": Simulation(stages=(stage(0.035, calls=1),), pool=1, prefetch=1),
    "bursts": Simulation(stages=(stage(0.003),), burst_seconds=0.1, prefetch=1),
    "bursts and no prefetch written": Simulation(stages=(stage(0.002),), burst_seconds=0.15),
    "an interleave with few files": Simulation(stages=(stage(0.1, is_waiting=True, limit=4),)),
    "a step without work": Simulation(stages=(stage(0.05, is_waiting=True),), step_seconds=0.0005),
}


@pytest.mark.parametrize("name", STANDARD)
def test_the_usual_pipelines_come_near_their_best_within_three_trials(name: str) -> None:
    simulation = STANDARD[name]
    summary = tuned(simulation).summary
    assert summary.state == "settled", summary.headline
    assert is_close(simulation.rate(summary.best), simulation.best_rate()), (summary.best, summary.trials)
    assert len(summary.trials) <= 3


@pytest.mark.parametrize("seed", range(40))
def test_pipelines_of_all_kinds_come_near_their_best_and_never_below_what_was_written(seed: int) -> None:
    random = np.random.default_rng(seed)
    stages = tuple(
        stage(
            float(10 ** random.uniform(-3.5, -0.7)),
            is_waiting=bool(random.random() < 0.5),
            calls=[None, 1, 2, 8][random.integers(4)],
        )
        for _ in range(random.integers(1, 4))
    )
    simulation = Simulation(
        stages=stages,
        step_seconds=float(10 ** random.uniform(-2.7, -1.3)),
        cores=float(random.choice([2, 4, 16])),
        prefetch=[None, 1, 4][random.integers(3)],
        pool=[None, 2][random.integers(2)],
        noise=0.005,
        seed=seed,
    )
    summary = tuned(simulation).summary
    found = simulation.rate(summary.best)
    assert is_close(found, simulation.best_rate()), (simulation, summary)
    assert found >= 0.98 * simulation.rate(Knobs())


def test_a_training_that_does_not_wait_is_left_as_it_is() -> None:
    tuner = Tuner(AutoTune())
    lines = train(Simulation(stages=(stage(0.002),)), tuner)
    assert tuner.knobs.is_empty
    assert lines == ["tuner: the training does not wait for its input: there is nothing to tune"]
    assert tuner.summary.trials == ()
    assert tuner.summary.code is None


def test_the_first_epoch_is_no_baseline() -> None:
    simulation, tuner = Simulation(stages=(WAITING,)), Tuner(AutoTune())
    tuner.begin(simulation.tunable, 10e9)
    assert tuner.judge(simulation.epoch(0, Knobs())) == []
    assert tuner.summary.baseline_batches_per_second is None
    (line,) = tuner.judge(simulation.epoch(1, Knobs()))
    assert line.startswith("tuner: trying map(stage_0) 2 -> 77 calls, a prefetch of 2, a pool of 81 threads: ")
    assert tuner.summary.baseline_batches_per_second == pytest.approx(1 / 0.32, rel=0.05)


def test_a_change_that_helps_is_kept_and_comes_out_as_code() -> None:
    tuner = Tuner(AutoTune())
    lines = train(Simulation(stages=(WAITING,), noise=0.0), tuner)
    assert lines[1] == "tuner: kept, 32.0x (100 batches/s after 3.12 batches/s)"
    assert lines[2] == "tuner: settled at 32.0x after 1 trial, 0.0 s spent on trying"
    assert tuner.summary.speedup == pytest.approx(32.0)
    assert tuner.summary.code == (
        "ds = ds.map(stage_0, num_parallel_calls=77)  # train.py:1\n"
        "ds = ds.prefetch(2)  # at the end\n"
        "options = tf.data.Options()\n"
        "options.threading.private_threadpool_size = 81\n"
        "ds = ds.with_options(options)"
    )


def test_a_change_that_does_not_help_is_taken_back_and_not_tried_again() -> None:
    # It says that it waits, and it does not.
    simulation = Simulation(stages=(stage(0.400, calls=4),), noise=0.0)
    tuner = Tuner(AutoTune())
    tuner.begin(simulation.tunable, 10e9)
    for number in range(8):
        observation = simulation.epoch(number, tuner.knobs)
        waiting = tuple(replace(each, is_waiting=True) for each in observation.pipeline.stages)
        pipeline = replace(observation.pipeline, stages=waiting)
        tuner.judge(replace(observation, summary=replace(observation.summary, pipeline=pipeline)))
    summary = tuner.summary
    assert [trial.outcome for trial in summary.trials] == ["rolled back"]
    assert summary.state == "settled"
    assert tuner.knobs.is_empty
    assert "no knob helps after 1 trial, your own settings stay" in summary.headline


def test_a_gain_within_the_noise_is_none() -> None:
    simulation, tuner = Simulation(stages=(stage(0.0108, calls=1),), noise=0.0), Tuner(AutoTune())
    tuner.begin(simulation.tunable, 10e9)
    for number in range(6):
        observation = simulation.epoch(number, tuner.knobs)
        tuner.judge(replace(observation, summary=replace(observation.summary, pace_noise=0.05)))
    (trial,) = tuner.summary.trials
    assert trial.speedup == pytest.approx(1.08)
    assert trial.noise == pytest.approx(2 * 0.05 * 2**0.5)
    assert trial.outcome == "rolled back"
    assert tuner.knobs.is_empty


@pytest.mark.parametrize("cause", ["python_lock", "single_producer"])
def test_python_code_gets_no_trial_and_the_remedy_is_named(cause: str) -> None:
    python = stage(0.050, python="py_function", is_tunable=False)
    simulation, tuner = Simulation(stages=(python,), cause=cause), Tuner(AutoTune())
    tuner.begin(replace(simulation.tunable, knobs=()), 10e9)
    for number in range(4):
        observation = simulation.epoch(number, tuner.knobs)
        verdict = Verdict(
            kind="input_bound", cause=cause, suggestions=(Suggestion(what="use TensorFlow's own ops", why="the lock"),)
        )
        tuner.judge(replace(observation, summary=replace(observation.summary, verdict=verdict)))
    assert tuner.summary.trials == ()
    assert tuner.summary.headline == "no knob helps, your own settings stay; instead, use TensorFlow's own ops"


def test_python_code_that_may_run_in_parallel_gets_one_trial() -> None:
    simulation = Simulation(stages=(stage(0.050, python="py_function"),), cause="python_lock")
    summary = tuned(simulation, parallel_python=True).summary
    assert [trial.outcome for trial in summary.trials] == ["rolled back"]
    assert summary.best.is_empty


def test_without_any_knob_nothing_is_tried() -> None:
    simulation, tuner = Simulation(stages=(WAITING,)), Tuner(AutoTune())
    tuner.begin(Tunable(shape="simulated", threadpool_is_tunable=False), 10e9)
    lines = [line for number in range(4) for line in tuner.judge(simulation.epoch(number, tuner.knobs))]
    assert lines == ["tuner: no knob helps, your own settings stay"]


def test_stages_without_measurements_are_guessed_step_by_step() -> None:
    simulation = Simulation(stages=(stage(0.080, is_waiting=True),), is_measured=False)
    tuner = Tuner(AutoTune())
    tuner.begin(simulation.tunable, 10e9)
    for number in range(10):
        observation = simulation.epoch(number, tuner.knobs)
        bare = Simulation(stages=simulation.stages).epoch(number, tuner.knobs).pipeline
        stages = tuple(replace(each, busy_seconds_per_batch=None, parallelism=None) for each in bare.stages)
        pipeline = replace(bare, stages=stages)
        tuner.judge(replace(observation, summary=replace(observation.summary, pipeline=pipeline)))
    assert is_close(simulation.rate(tuner.summary.best), simulation.best_rate()), tuner.summary


def test_more_calls_than_the_work_needs_are_cut_back_at_equal_speed() -> None:
    simulation = Simulation(stages=(stage(0.080, is_waiting=True, calls=None),), noise=0.0)
    tuner = Tuner(AutoTune())
    saved = Knobs(parallel_calls={0: 100}, private_threadpool_size=104)
    tuner.begin(simulation.tunable, 10e9, saved)
    for number in range(2):
        observation = simulation.epoch(number, tuner.knobs)
        slower = replace(observation.summary, input_wait_share=0.2)
        tuner.judge(replace(observation, summary=slower))
    for number in range(2, 8):
        tuner.judge(simulation.epoch(number, tuner.knobs))
    assert tuner.summary.state == "settled"
    assert tuner.summary.best.parallel_calls[0] <= 100


def test_an_epoch_that_cannot_be_judged_leaves_the_trial_up_but_not_for_ever() -> None:
    simulation, tuner = Simulation(stages=(WAITING,)), Tuner(AutoTune())
    train(simulation, tuner, epochs=2)
    asked = tuner.knobs
    assert not asked.is_empty
    short = simulation.epoch(2, asked)
    short = replace(short, summary=replace(short.summary, steady_steps=19))
    assert tuner.judge(short) == []
    assert tuner.judge(replace(simulation.epoch(3, asked), knobs=None)) == []
    assert tuner.knobs == asked
    lines = tuner.judge(short)
    assert lines[0] == "tuner: rolled back, because it could not be judged: it has fewer than 20 steady steps"
    assert tuner.knobs.is_empty
    assert tuner.summary.trials[0].outcome == "not judged"


def test_a_long_lived_iterator_is_said_once_and_tuned_at_the_next_fit() -> None:
    simulation, tuner = Simulation(stages=(WAITING,)), Tuner(AutoTune())
    train(simulation, tuner, epochs=2)
    lines = [line for number in range(2, 6) for line in tuner.judge(simulation.epoch(number, Knobs()))]
    assert lines == [
        "tuner: this training reads one iterator for the whole fit: the new settings take effect at the next fit"
    ]
    assert tuner.summary.state == "waiting"
    assert tuner.begin(simulation.tunable, 10e9) == []
    assert tuner.summary.state == "trying"
    assert tuner.judge(simulation.epoch(0, tuner.knobs)) == []
    assert tuner.judge(simulation.epoch(1, tuner.knobs, is_first=False))[0].startswith("tuner: kept")


def test_settings_that_take_effect_after_all_are_judged() -> None:
    simulation, tuner = Simulation(stages=(WAITING,)), Tuner(AutoTune())
    train(simulation, tuner, epochs=2)
    tuner.judge(simulation.epoch(2, Knobs()))
    assert tuner.summary.state == "waiting"
    assert tuner.judge(simulation.epoch(3, tuner.knobs))[0].startswith("tuner: kept")


def test_a_second_fit_of_the_same_pipeline_goes_on_and_one_of_another_begins_anew() -> None:
    simulation = Simulation(stages=(WAITING,))
    tuner = tuned(simulation)
    best = tuner.knobs
    assert tuner.begin(simulation.tunable, 10e9) == []
    assert tuner.knobs == best
    tuner.begin(replace(simulation.tunable, shape="another"), 10e9)
    assert tuner.knobs.is_empty
    assert tuner.summary.trials == ()


def test_it_wakes_up_when_the_training_waits_more_than_before() -> None:
    simulation, tuner = Simulation(stages=(stage(0.002, is_waiting=True),), noise=0.0), Tuner(AutoTune())
    train(simulation, tuner, epochs=4)
    slow = Simulation(stages=(stage(0.1, is_waiting=True),), noise=0.0)
    assert tuner.judge(slow.epoch(4, tuner.knobs)) == []
    lines = tuner.judge(slow.epoch(5, tuner.knobs))
    assert lines[0] == "tuner: input wait has risen to 90 % of the step, so it tries again"
    assert lines[1].startswith("tuner: trying map(stage_0) 1 -> 1")
    for number in range(6, 10):
        tuner.judge(slow.epoch(number, tuner.knobs))
    assert is_close(slow.rate(tuner.knobs), slow.best_rate())


def test_one_slow_epoch_does_not_wake_it_up() -> None:
    simulation, tuner = Simulation(stages=(stage(0.002, is_waiting=True),), noise=0.0), Tuner(AutoTune())
    train(simulation, tuner, epochs=4)
    slow = Simulation(stages=(stage(0.1, is_waiting=True),), noise=0.0)
    for number in range(4, 12, 2):
        assert tuner.judge(slow.epoch(number, tuner.knobs)) == []
        assert tuner.judge(simulation.epoch(number + 1, tuner.knobs)) == []
    assert tuner.knobs.is_empty


def test_a_failure_puts_the_users_own_settings_back_until_the_next_fit() -> None:
    simulation, tuner = Simulation(stages=(WAITING,)), Tuner(AutoTune())
    train(simulation, tuner, epochs=2)
    refused = tuner.knobs
    assert tuner.failed("a step raised ValueError") == [
        "tuner: your own pipeline was put back: a step raised ValueError"
    ]
    assert tuner.knobs.is_empty
    assert tuner.summary.state == "off"
    assert tuner.summary.trials[0].outcome == "failed"
    assert tuner.failed("again") == []
    assert tuner.judge(simulation.epoch(2, Knobs())) == []
    train(simulation, tuner)
    assert refused not in [trial.knobs for trial in tuner.summary.trials]


def test_saved_settings_are_the_first_ones_and_compared_with_what_follows() -> None:
    simulation, tuner = Simulation(stages=(WAITING,), noise=0.0), Tuner(AutoTune())
    saved = Knobs(parallel_calls={0: 64}, private_threadpool_size=68)
    lines = tuner.begin(simulation.tunable, 10e9, saved)
    assert lines == ["tuner: it begins with the settings of an earlier run"]
    assert tuner.knobs == saved
    for number in range(6):
        tuner.judge(simulation.epoch(number, tuner.knobs))
    assert tuner.summary.baseline_batches_per_second is None
    assert is_close(simulation.rate(tuner.knobs), simulation.best_rate())


@pytest.mark.parametrize(
    "saved",
    [
        Knobs(parallel_calls={5: 2}),
        Knobs(parallel_calls={END: 2}),
        Knobs(parallel_calls={0: 129}),
        Knobs(parallel_calls={0: 0}),
        Knobs(buffer_sizes={0: 2}),
        Knobs(buffer_sizes={END: 513}),
        Knobs(parallel_calls={0: 100}, buffer_sizes={END: 500}),
    ],
    ids=repr,
)
def test_saved_settings_that_do_not_suit_are_left_with_a_word(saved: Knobs) -> None:
    simulation, tuner = Simulation(stages=(WAITING,)), Tuner(AutoTune(max_memory=500_000))
    (line,) = tuner.begin(simulation.tunable, 10e9, saved)
    assert line.startswith("tuner: the settings of an earlier run are not used: ")
    assert tuner.knobs.is_empty


def test_buffers_are_halved_when_the_process_grows_by_more_than_they_may_hold() -> None:
    simulation = Simulation(stages=(stage(0.002),), burst_seconds=0.15, prefetch=1)
    tuner = Tuner(AutoTune(max_memory=100_000))
    train(simulation, tuner, epochs=2)
    deep = tuner.knobs.buffer_sizes[1]
    lines = tuner.judge(simulation.epoch(2, tuner.knobs, process_memory_bytes=1e9 + 200_000))
    assert lines == ["tuner: buffers were halved, because the process had grown by 1 MiB"]
    assert tuner.knobs.buffer_sizes[1] == deep // 2
    assert tuner.judge(simulation.epoch(3, tuner.knobs, process_memory_bytes=1e9 + 200_000)) == []


def test_a_buffer_of_elements_of_unknown_size_stays_small() -> None:
    simulation, tuner = Simulation(stages=(stage(0.002),), burst_seconds=0.15, prefetch=1), Tuner(AutoTune())
    knobs = tuple(replace(knob, element_bytes=None) for knob in simulation.tunable.knobs)
    tuner.begin(replace(simulation.tunable, knobs=knobs), 10e9)
    for number in range(2):
        tuner.judge(simulation.epoch(number, tuner.knobs))
    assert tuner.knobs.buffer_sizes == {1: 8}


def test_what_exploring_cost_is_added_up() -> None:
    simulation, tuner = Simulation(stages=(stage(0.400, calls=4),), noise=0.0, tells_waiting=False), Tuner(AutoTune())
    train(simulation, tuner, epochs=2)
    slower = simulation.epoch(2, tuner.knobs)
    rate = slower.summary.batches_per_second or 0.0
    summary = replace(slower.summary, pace_batches_per_second=rate / 2, first_batch_seconds=0.35)
    slower = replace(slower, summary=summary)
    tuner.judge(slower)
    assert tuner.summary.exploration_seconds == pytest.approx(STEPS / rate + 0.3)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    max_calls=st.integers(1, 200),
    max_memory=st.integers(1, 10**7),
    element_bytes=st.floats(1.0, 1e6),
)
def test_whatever_is_measured_no_limit_is_exceeded(
    data: st.DataObject, max_calls: int, max_memory: int, element_bytes: float
) -> None:
    simulation = Simulation(stages=(stage(0.1, element_bytes=element_bytes), stage(0.1, limit=3)), prefetch=1)
    tuner = Tuner(AutoTune(max_parallel_calls=max_calls, max_memory=max_memory))
    tuner.begin(simulation.tunable, data.draw(st.one_of(st.none(), st.floats(0, 1e10))))
    for number in range(8):
        measured = Simulation(
            stages=tuple(
                stage(work_seconds, is_waiting=data.draw(st.booleans()), element_bytes=element_bytes)
                for work_seconds in data.draw(st.tuples(st.floats(1e-5, 10.0), st.floats(1e-5, 10.0)))
            ),
            burst_seconds=data.draw(st.sampled_from([0.0, 1.0])),
            prefetch=1,
        )
        ran_with = data.draw(st.sampled_from([tuner.knobs, Knobs(), None]))
        tuner.judge(replace(measured.epoch(number, tuner.knobs), knobs=ran_with))
        knobs = tuner.knobs
        assert all(1 <= calls <= max(max_calls, 1) for calls in knobs.parallel_calls.values())
        assert knobs.parallel_calls.get(1, 1) <= 3
        assert all(1 <= size <= 512 for size in knobs.buffer_sizes.values())
        held = knobs.parallel_calls.get(0, 1) - 1
        assert held * element_bytes <= max_memory
