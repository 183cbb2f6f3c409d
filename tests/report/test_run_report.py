# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from keras_gpu_watch import __version__
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.report.run_report import EPOCHS_IN_JSON, RunReport, report_from_json
from keras_gpu_watch.tags import SCHEMA_VERSION


def make_epoch(number: int = 0, **changes: Any) -> EpochSummary:
    fields: dict[str, Any] = {field.name: 0.5 for field in dataclasses.fields(EpochSummary)}
    fields.update(epoch=number, steps=10, batches=10, estimated=("goodput",), notes=("a note",), **changes)
    return EpochSummary(**fields)


INFO = RunInfo(run_dir="logs/gpu_watch", start_step=40, steps_per_execution=1, resumed=True)
FULL = RunReport(
    status="finished",
    info=INFO,
    epochs=(make_epoch(0), make_epoch(1, validation_seconds=None, input_wait_seconds=None)),
    startup_seconds=0.25,
    wall_seconds=9.5,
    records_dropped=3,
    notes=("one", "two"),
)


def test_the_json_form_says_everything():
    data = json.loads(FULL.to_json())
    assert data["schema_version"] == SCHEMA_VERSION
    assert data["keras_gpu_watch"] == __version__
    assert data["status"] == "finished"
    assert data["start_step"] == 40
    assert data["info"] == dataclasses.asdict(INFO)
    assert (data["startup_seconds"], data["wall_seconds"], data["records_dropped"]) == (0.25, 9.5, 3)
    assert data["notes"] == ["one", "two"]
    assert data["epochs_total"] == 2
    assert data["epochs"][0] == {**dataclasses.asdict(FULL.epochs[0]), "estimated": ["goodput"], "notes": ["a note"]}


def test_what_is_not_measured_is_null_and_a_measured_zero_is_zero():
    report = RunReport(epochs=(make_epoch(validation_seconds=None, input_wait_seconds=0.0),))
    (epoch,) = json.loads(report.to_json())["epochs"]
    assert epoch["validation_seconds"] is None
    assert epoch["input_wait_seconds"] == 0.0


def test_an_empty_report_is_json_too():
    data = json.loads(RunReport().to_json())
    assert data["status"] == "not started"
    assert data["start_step"] is None
    assert data["wall_seconds"] is None
    assert data["epochs"] == []


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_know_is_refused(number: float):
    with pytest.raises(ValueError, match="JSON compliant"):
        RunReport(epochs=(make_epoch(goodput=number),)).to_json()


def test_epochs_and_times_survive_the_way_through_json():
    read = report_from_json(FULL.to_json(), step=10**9)
    assert read.epochs == FULL.epochs
    assert read.info == FULL.info
    assert read.startup_seconds == 0.25


def test_a_continued_report_ends_at_the_checkpoint_and_its_times_add_up():
    epochs = tuple(make_epoch(number, last_step=10 * (number + 1), wall_seconds=2.0) for number in range(5))
    killed = RunReport(status="running", info=FULL.info, epochs=epochs, startup_seconds=0.5)
    read = report_from_json(killed.to_json(), step=30)
    assert [epoch.epoch for epoch in read.epochs] == [0, 1, 2]
    assert read.wall_seconds == 6.5


def test_a_long_run_keeps_its_first_and_its_newest_epochs():
    count = EPOCHS_IN_JSON + 500
    data = json.loads(RunReport(epochs=tuple(make_epoch(number) for number in range(count))).to_json())
    numbers = [epoch["epoch"] for epoch in data["epochs"]]
    assert len(numbers) == EPOCHS_IN_JSON
    assert numbers[0] == 0
    assert numbers[-1] == count - 1
    assert numbers == sorted(set(numbers))
    assert data["epochs_total"] == count


def test_a_run_of_exactly_the_limit_is_kept_whole():
    report = RunReport(epochs=tuple(make_epoch(number) for number in range(EPOCHS_IN_JSON)))
    assert [epoch["epoch"] for epoch in json.loads(report.to_json())["epochs"]] == list(range(EPOCHS_IN_JSON))


def _other_schema() -> str:
    return json.dumps({**json.loads(FULL.to_json()), "schema_version": SCHEMA_VERSION + 1})


def _unknown_field() -> str:
    data = json.loads(FULL.to_json())
    data["epochs"][0]["surprise"] = 1
    return json.dumps(data)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "null", '{"schema_version": 1}', _other_schema(), _unknown_field()]
)
def test_what_is_not_a_report_of_this_schema_counts_as_empty(text: str):
    assert report_from_json(text, step=10**9) == RunReport()
