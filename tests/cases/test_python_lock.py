# SPDX-License-Identifier: Apache-2.0
"""Python functions in a pipeline: those that hold the interpreter lock, and those that only wait."""

from __future__ import annotations

import pytest
from known_trainings import Training, decode, paced_model
from trainings import BATCH
from verdicts import assert_blames, judge, stage_named, verdict_of
from workloads import nap, numbers, trainable

pytestmark = pytest.mark.timed


def test_python_code_that_computes_is_held_up_by_the_lock(log_dir):
    report = judge("a python map", log_dir)

    assert_blames(report, "a python map")
    assert stage_named(report, "decode").python == "numpy_function"


def test_more_calls_of_a_computing_python_function_are_not_promised_to_help(log_dir):
    report = judge("a python map in parallel calls", log_dir)

    assert_blames(report, "a python map in parallel calls")
    more = [each for each in verdict_of(report).suggestions if "num_parallel_calls" in (each.code or "")]
    assert not more


def test_a_python_generator_that_computes_is_held_up_by_the_lock(log_dir):
    assert_blames(judge("a generator that computes", log_dir), "a generator that computes")


def test_python_code_that_only_waits_is_not_called_a_matter_of_the_lock(log_dir):
    dataset = numbers(60 * BATCH).map(decode(nap(0.010)), num_parallel_calls=2).batch(BATCH, drop_remainder=True)

    verdict = verdict_of(judge(Training(trainable(dataset).prefetch(2), paced_model(0.005)), log_dir))

    assert verdict.kind == "input_bound"
    assert verdict.cause == "latency"
    assert "decode" in verdict.stage
