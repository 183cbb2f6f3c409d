# SPDX-License-Identifier: Apache-2.0
"""Reads that wait for something far away: the cores are idle, and more calls at a time are the cure."""

from __future__ import annotations

import pytest
from ground_truth import BATCH
from known_trainings import Training, paced_model
from verdicts import assert_blames, assert_not_the_input, assert_speedups_stay_below_the_ceiling, judge, verdict_of
from workloads import numbers, reads, trainable

pytestmark = pytest.mark.timed


def test_a_few_waiting_reads_at_a_time_are_blamed_and_more_than_the_cores_are_advised(log_dir):
    report = judge("reads that wait in two files at a time", log_dir)

    assert_blames(report, "reads that wait in two files at a time")
    assert_speedups_stay_below_the_ceiling(report)
    codes = " ".join(each.code or "" for each in verdict_of(report).suggestions)
    assert "num_parallel_calls" in codes


def test_a_waiting_map_is_given_the_threads_for_its_calls(log_dir):
    report = judge("a map that waits left to autotune", log_dir)

    assert_blames(report, "a map that waits left to autotune")
    codes = " ".join(each.code or "" for each in verdict_of(report).suggestions)
    assert "private_threadpool_size" in codes


def test_an_out_of_order_read_is_advice_only_because_it_changes_the_order(log_dir):
    report = judge("reads that wait in two files at a time", log_dir)

    for suggestion in verdict_of(report).suggestions:
        if "deterministic" in (suggestion.code or ""):
            assert "order" in f"{suggestion.what} {suggestion.why}"


def test_as_many_reads_as_are_needed_are_not_blamed(log_dir):
    files = numbers(60).interleave(reads(0.020, BATCH), cycle_length=16, num_parallel_calls=16)

    report = judge(Training(trainable(files.batch(BATCH)).prefetch(8), paced_model(0.030)), log_dir)

    assert_not_the_input(report)
