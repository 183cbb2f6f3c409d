# SPDX-License-Identifier: Apache-2.0
"""The step itself is slow, whatever it does: computing, launching kernels, waiting for other workers."""

from __future__ import annotations

import pytest
from verdicts import assert_blames, assert_not_the_input, judge, verdict_of

pytestmark = pytest.mark.timed


@pytest.mark.parametrize("case", ["a slow step", "a slow step on arrays", "a python map that keeps up"])
def test_a_slow_step_is_not_the_inputs_fault(log_dir, case):
    report = judge(case, log_dir)

    assert_blames(report, case)
    assert_not_the_input(report)
    assert report.epochs[0].ceiling_speedup < 1.05


def test_a_step_that_waits_for_a_collective_is_never_sent_to_the_pipeline(log_dir):
    # The pause in the step stands for a slow exchange with other workers.
    report = judge("a slow step", log_dir)

    assert "input" not in (verdict_of(report).cause or "")
    assert_not_the_input(report)


def test_a_slow_input_before_the_same_step_is_found(log_dir):
    assert_blames(judge("a map that waits one call at a time", log_dir), "a map that waits one call at a time")
