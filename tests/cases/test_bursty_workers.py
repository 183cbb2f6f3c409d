# SPDX-License-Identifier: Apache-2.0
"""A PyDataset with many threads that compute in Python: batches come in bursts, and no faster than with one."""

from __future__ import annotations

import time

import pytest
from known_trainings import Training, Waiting, paced_model
from verdicts import assert_blames, assert_not_the_input, judge

pytestmark = pytest.mark.timed


def test_threads_that_share_the_interpreter_are_blamed(log_dir):
    report = judge("a pydataset whose threads compute", log_dir)

    assert_blames(report, "a pydataset whose threads compute")


def test_bursts_are_seen_in_the_percentiles_of_the_waits(log_dir):
    # Eight threads wait side by side: eight batches at once, then a pause.
    report = judge(Training(Waiting(0.200, time.sleep, workers=8, max_queue_size=8), paced_model(0.004)), log_dir)

    (epoch,) = report.epochs
    assert epoch.input_wait_p50_seconds < 0.2 * epoch.input_wait_p95_seconds
    assert epoch.verdict.kind == "input_bound"


def test_workers_that_keep_up_are_not_blamed(log_dir):
    assert_not_the_input(judge(Training(Waiting(0.010, time.sleep, workers=4), paced_model(0.030)), log_dir))
