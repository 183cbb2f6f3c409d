# SPDX-License-Identifier: Apache-2.0
"""A pipeline that is fast enough in the mean and stops now and then."""

from __future__ import annotations

import pytest
from verdicts import assert_blames, assert_not_the_input, assert_speedups_stay_below_the_ceiling, judge, verdict_of

pytestmark = pytest.mark.timed


@pytest.mark.parametrize("case", ["bursts behind a prefetch of one", "bursts behind a prefetch of two"])
def test_a_deeper_buffer_is_the_cure_for_bursts(log_dir, case):
    report = judge(case, log_dir)

    assert_blames(report, case)
    assert_speedups_stay_below_the_ceiling(report)
    assert any("prefetch(" in (each.code or "") for each in verdict_of(report).suggestions)


def test_bursts_behind_a_deep_buffer_are_no_finding(log_dir):
    assert_not_the_input(judge("bursts behind a deep prefetch", log_dir))
