# SPDX-License-Identifier: Apache-2.0
"""A map computes in too few calls at a time while cores are idle, or there are no cores left for more."""

from __future__ import annotations

import pytest
from ground_truth import BATCH
from verdicts import about, assert_blames, assert_not_the_input, judge, stage_named

pytestmark = pytest.mark.timed


def test_a_single_call_of_a_computing_map_is_blamed(log_dir):
    report = judge("a map that computes in one call", log_dir)

    assert_blames(report, "a map that computes in one call")
    stage = stage_named(report, "decode")
    assert stage.busy_seconds_per_batch == about(BATCH * 0.010)
    assert stage.parallelism == 1
    assert stage.source.startswith("known_trainings.py:")


def test_more_calls_are_not_offered_where_the_cores_are_busy_already(log_dir):
    report = judge("a map that needs more cores", log_dir)

    assert_blames(report, "a map that needs more cores")
    assert "private_threadpool_size" not in " ".join(str(each.code) for each in report.verdict.suggestions)


def test_a_pipeline_that_keeps_up_is_not_blamed_for_busy_cores(log_dir):
    assert_not_the_input(judge("a pipeline that keeps the cores busy but keeps up", log_dir))
