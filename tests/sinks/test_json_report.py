# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.sinks.json_report import JsonReport


def test_the_report_is_replaced_at_each_epoch_and_at_the_end(
    tmp_path: Path, make_epoch: Callable[..., EpochSummary]
) -> None:
    sink = JsonReport(str(tmp_path))
    sink.epoch(make_epoch(0), '{"epochs": ["a long first report"]}')
    assert (tmp_path / "report.json").read_text() == '{"epochs": ["a long first report"]}'
    sink.epoch(make_epoch(1), '{"epochs": 2}')
    assert (tmp_path / "report.json").read_text() == '{"epochs": 2}'
    sink.close('{"done": true}')
    assert (tmp_path / "report.json").read_text() == '{"done": true}'
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_directory_that_has_gone_is_an_os_error_that_names_it(
    tmp_path: Path, make_epoch: Callable[..., EpochSummary]
) -> None:
    with pytest.raises(OSError, match="nowhere"):
        JsonReport(str(tmp_path / "nowhere")).epoch(make_epoch(), "{}")
