# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from keras_gpu_watch import __version__
from keras_gpu_watch.findings import CallbackSeconds, PipelineSummary, Stage, StepTimes, Suggestion, Verdict
from keras_gpu_watch.knobs import FixedStage, Knobs, Trial, TuningSummary
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.report.json_form import DETAILS_LEFT_OUT, GPUS_LEFT_OUT
from keras_gpu_watch.report.run_report import EPOCHS_IN_JSON, RunReport, report_from_json
from keras_gpu_watch.samples import Devices, Distribution, GpuDevice, GpuSummary, HostDevice, HostSummary
from keras_gpu_watch.tags import SCHEMA_VERSION


def make_epoch(number: int = 0, **changes: Any) -> EpochSummary:
    """An epoch whose numbers are all measured."""
    numbers = {field.name: _number(str(field.type)) for field in dataclasses.fields(EpochSummary)}
    fields = {name: value for name, value in numbers.items() if value is not None}
    return EpochSummary(**{**fields, "epoch": number, "estimated": ("goodput",), "notes": ("a note",), **changes})


def _number(annotation: str) -> float | None:
    return {"float": 0.5, "int": 10}.get(annotation.partition(" ")[0])


STAGES = (
    Stage(index=0, op="list_files", reason="not in the model"),
    Stage(
        index=1,
        op="map",
        inputs=(0,),
        function="decode",
        source="train.py:42",
        num_parallel_calls=-1,
        deterministic=True,
        fused_with=(2,),
        elements_per_batch=32.0,
        busy_seconds_per_batch=0.064,
        wait_share=0.0,
    ),
    Stage(index=2, op="batch", inputs=(1,), batch_size=32, added_by="keras"),
)
PIPELINE = PipelineSummary(stages=STAGES, cpu_budget=2.0, slowest_seconds_per_batch=0.064, polls=3)
VERDICT = Verdict(
    kind="input_bound",
    cause="low_parallelism",
    stage="map(decode)",
    stage_index=1,
    severity="critical",
    headline="map(decode) runs one call at a time",
    evidence={"input_wait_share": 0.42, "steps": 1234.0},
    suggestions=(
        Suggestion(what="Run more calls", why="8 cores are idle", code="ds.map(decode)", expected_speedup=1.72),
        Suggestion(what="Or less work", why="it is much"),
    ),
    lost_share=0.42,
)
KNOBS = Knobs(parallel_calls={1: 32}, buffer_sizes={-1: 4, 3: 8}, private_threadpool_size=34)
TUNING = TuningSummary(
    state="settled",
    headline="12x after 2 trials",
    best=KNOBS,
    speedup=12.0,
    trials=(Trial(epoch=2, knobs=KNOBS, hypothesis="map(decode): 2 -> 32 calls", speedup=12.0, outcome="kept"),),
    fixed=(FixedStage(index=2, label="map(flip)", reason="it draws random numbers"),),
)
FINDINGS: dict[str, Any] = {
    "knobs": KNOBS,
    "pipeline": PIPELINE,
    "callbacks": (CallbackSeconds(name="ModelCheckpoint", epoch_seconds=1.5), CallbackSeconds(name="Mine 2")),
    "typical_steps": (StepTimes(0.0, 0.25, 0.5), StepTimes(0.125, 0.0, 0.5)),
    "verdict": VERDICT,
    "other_verdicts": (Verdict(kind="validation_bound"), Verdict(kind="compile_bound", lost_share=0.125)),
}


def make_gpu(gpu: int = 0, value: float = 0.5, **changes: Any) -> GpuSummary:
    """A GPU that gives everything."""
    distribution = Distribution(value, 2 * value, 3 * value, 4 * value)
    kinds = {"Distribution": distribution, "float": value}
    fields: dict[str, Any] = {
        field.name: kinds.get(str(field.type).partition(" ")[0]) for field in dataclasses.fields(GpuSummary)
    }
    return GpuSummary(**{**fields, "gpu": gpu, "samples": 1234, "swings": True, **changes})


HOST = HostSummary(samples=9, cpu_percent=Distribution(40.0, 10.0, 45.0, 90.0), process_memory_max_bytes=1.5e9)
DEVICES = Devices(
    status="lost",
    reason="the GPU is lost",
    identity="by UUID",
    driver_version="550.1",
    gpus=(
        GpuDevice(name="A card", uuid="GPU-1", unavailable=(("energy_joules", "not supported"),)),
        GpuDevice(name="B"),
    ),
    host=HostDevice(usable_cores=1.5, unavailable=(("iowait_percent", "not on this system"), ("memory", "why"))),
)


INFO = RunInfo(run_dir="logs/gpu_watch", start_step=40, steps_per_execution=1, resumed=True)
FULL = RunReport(
    status="finished",
    info=INFO,
    epochs=(
        make_epoch(0, gpus=(make_gpu(0), make_gpu(1, power_watts=None, swings=None)), host=HOST),
        make_epoch(1, validation_seconds=None, input_wait_seconds=None, **FINDINGS),
    ),
    verdict=VERDICT,
    tuning=TUNING,
    startup_seconds=0.25,
    wall_seconds=9.5,
    records_dropped=3,
    devices=DEVICES,
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
    assert data["epochs"] == json.loads(json.dumps([dataclasses.asdict(epoch) for epoch in FULL.epochs]))
    assert data["devices"] == json.loads(json.dumps(dataclasses.asdict(DEVICES)))
    assert data["tuning"] == json.loads(json.dumps(dataclasses.asdict(TUNING)))
    assert data["verdict"] == json.loads(json.dumps(dataclasses.asdict(VERDICT)))
    assert {field.name for field in dataclasses.fields(RunReport)} <= set(data)


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
    for changes in (
        {"goodput": number},
        {"gpus": (make_gpu(value=number),)},
        {"host": HostSummary(memory_max_percent=number)},
    ):
        with pytest.raises(ValueError, match="JSON compliant"):
            RunReport(epochs=(make_epoch(**changes),)).to_json()


def test_what_comes_from_samples_is_rounded_and_times_are_not():
    epoch = make_epoch(
        goodput=1 / 3, gpus=(make_gpu(value=200 / 3),), host=HostSummary(process_memory_max_bytes=123456789.0)
    )
    (data,) = json.loads(RunReport(epochs=(epoch,)).to_json())["epochs"]
    assert data["goodput"] == 1 / 3
    assert data["gpus"][0]["energy_joules"] == 66.667
    assert data["gpus"][0]["power_watts"] == {"mean": 66.667, "p5": 133.33, "p50": 200.0, "p95": 266.67}
    assert data["gpus"][0]["samples"] == 1234
    assert data["host"]["process_memory_max_bytes"] == 123460000.0


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_in_a_finding_that_json_does_not_know_counts_as_not_known(number: float):
    verdict = dataclasses.replace(
        VERDICT,
        evidence={"lost": number, "steps": 5.0},
        suggestions=(Suggestion(what="Try", why="", expected_speedup=number),),
    )
    pipeline = PipelineSummary(stages=(dataclasses.replace(STAGES[1], busy_seconds_per_batch=number),))
    steps = (StepTimes(0.0, 0.25, 0.5), StepTimes(0.0, number, 0.5))
    epoch = make_epoch(pipeline=pipeline, typical_steps=steps, verdict=verdict)
    text = RunReport(epochs=(epoch,), verdict=verdict, info=INFO).to_json()
    json.loads(text, parse_constant=pytest.fail)
    read = report_from_json(text, step=10**9)
    known = dataclasses.replace(verdict, evidence={"steps": 5.0}, suggestions=(Suggestion(what="Try", why=""),))
    assert (read.verdict, read.epochs[0].verdict) == (known, known)
    assert read.epochs[0].typical_steps == steps[:1]
    assert read.stages == (dataclasses.replace(STAGES[1], busy_seconds_per_batch=None),)


def test_findings_are_rounded_too():
    verdict = dataclasses.replace(VERDICT, evidence={"steps": 1234567.0, "input_wait_share": 1 / 3})
    pipeline = dataclasses.replace(PIPELINE, slowest_seconds_per_batch=1 / 7, polls=1234567)
    epoch = make_epoch(pipeline=pipeline, verdict=verdict, typical_steps=(StepTimes(1 / 3, 0.0, 2 / 3),))
    (data,) = json.loads(RunReport(epochs=(epoch,)).to_json())["epochs"]
    assert data["verdict"]["evidence"] == {"steps": 1234600.0, "input_wait_share": 0.33333}
    assert (data["pipeline"]["slowest_seconds_per_batch"], data["pipeline"]["polls"]) == (0.14286, 1234567)
    assert list(data["typical_steps"][0].values()) == [0.33333, 0.0, 0.66667]


def test_epochs_and_times_survive_the_way_through_json():
    read = report_from_json(FULL.to_json(), step=10**9)
    assert read.epochs == FULL.epochs
    assert read.info == FULL.info
    assert read.verdict == FULL.verdict
    assert read.stages == STAGES
    assert read.startup_seconds == 0.25
    assert read.devices == FULL.devices


def test_a_report_from_before_devices_were_sampled_is_read():
    data = json.loads(FULL.to_json())
    del data["devices"]
    for epoch in data["epochs"]:
        for name in ("gpus", "host", "examples"):
            del epoch[name]
    read = report_from_json(json.dumps(data), step=10**9)
    assert read.devices == Devices()
    plain = [dataclasses.replace(epoch, gpus=(), host=None, examples=None) for epoch in FULL.epochs]
    assert list(read.epochs) == plain


def test_a_report_from_before_findings_were_made_is_read():
    data = json.loads(FULL.to_json())
    del data["verdict"]
    for epoch in data["epochs"]:
        for name in (*FINDINGS, "steady_steps", "compile_steps"):
            del epoch[name]
    for name in ("on_accelerator", "jit_compile", "run_eagerly", "replicas"):
        del data["info"][name]
    read = report_from_json(json.dumps(data), step=10**9)
    assert read.info == INFO
    assert (read.verdict, read.stages) == (None, ())
    assert [(epoch.epoch, epoch.verdict, epoch.callbacks) for epoch in read.epochs] == [(0, None, ()), (1, None, ())]


def test_the_stages_are_those_of_the_newest_epoch_that_has_some():
    older = make_epoch(0, pipeline=PIPELINE)
    newer = make_epoch(1, pipeline=dataclasses.replace(PIPELINE, stages=STAGES[:1]))
    without = (make_epoch(2, pipeline=PipelineSummary()), make_epoch(3))
    assert RunReport(epochs=(older, newer, *without)).stages == STAGES[:1]
    assert RunReport(epochs=without).stages == ()
    assert RunReport().stages == ()


def test_a_verdict_on_epochs_that_are_done_again_is_not_kept():
    epochs = tuple(make_epoch(number, last_step=10 * (number + 1)) for number in range(3))
    text = RunReport(info=INFO, epochs=epochs, verdict=VERDICT).to_json()
    assert report_from_json(text, step=30).verdict == VERDICT
    assert report_from_json(text, step=29).verdict is None


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


def test_a_long_run_on_eight_gpus_keeps_the_statistics_of_its_first_and_its_newest_epochs_in_under_5_mb():
    gpus = tuple(make_gpu(number, value=100 / 3) for number in range(8))
    host = dataclasses.replace(HOST, cpu_percent=Distribution(100 / 3, 100 / 7, 100 / 9, 100 / 11))
    report = RunReport(epochs=tuple(make_epoch(number, gpus=gpus, host=host) for number in range(EPOCHS_IN_JSON)))
    text = report.to_json()
    assert len(text) < 5e6
    epochs = json.loads(text)["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == list(range(EPOCHS_IN_JSON))
    detailed = [epoch["epoch"] for epoch in epochs if epoch["gpus"]]
    assert detailed == [*range(20), *range(EPOCHS_IN_JSON - 180, EPOCHS_IN_JSON)]
    assert all((GPUS_LEFT_OUT in epoch["notes"]) != bool(epoch["gpus"]) for epoch in epochs)
    assert all(epoch["host"] for epoch in epochs)
    # An epoch whose GPUs were kept loses them when it is no longer among the newest.
    longer = dataclasses.replace(report, epochs=(*report.epochs[:900], make_epoch(901, gpus=gpus)))
    kept = {epoch["epoch"] for epoch in json.loads(longer.to_json())["epochs"] if epoch["gpus"]}
    assert kept == {*range(20), *range(721, 900), 901}


def detailed_epochs(report: RunReport) -> list[int]:
    """Epochs with their findings; the others must have nothing but their verdict, and say so."""
    found = []
    for epoch in json.loads(report.to_json())["epochs"]:
        details = [epoch[name] for name in ("pipeline", "callbacks", "typical_steps", "other_verdicts")]
        details.append(epoch["verdict"]["suggestions"])
        assert all(details) or not any(details)
        assert bool(any(details)) != (DETAILS_LEFT_OUT in epoch["notes"])
        assert epoch["verdict"]["headline"] == VERDICT.headline
        found += [epoch["epoch"]] if any(details) else []
    return found


def test_a_long_run_keeps_the_findings_of_its_first_and_its_newest_epochs_in_under_3_mb():
    stages = tuple(
        Stage(**{**dataclasses.asdict(STAGES[1]), "index": number, "busy_seconds_per_batch": 1 / 3})
        for number in range(12)
    )
    findings = {**FINDINGS, "pipeline": PipelineSummary(stages=stages)}
    report = RunReport(epochs=tuple(make_epoch(number, **findings) for number in range(EPOCHS_IN_JSON)))
    assert detailed_epochs(report) == [*range(10), *range(EPOCHS_IN_JSON - 40, EPOCHS_IN_JSON)]
    assert len(report.to_json()) < 3e6
    # An epoch whose findings were kept loses them when it is no longer among the newest.
    longer = dataclasses.replace(report, epochs=(*report.epochs[:900], make_epoch(901, **findings)))
    assert detailed_epochs(longer) == [*range(10), *range(861, 900), 901]


def test_fifty_epochs_keep_all_their_findings():
    assert detailed_epochs(RunReport(epochs=tuple(make_epoch(number, **FINDINGS) for number in range(50)))) == [
        *range(50)
    ]


def test_a_huge_pipeline_is_kept_for_fewer_epochs():
    pipeline = PipelineSummary(stages=tuple(Stage(index=number, op="map") for number in range(300)))
    epochs = tuple(make_epoch(number, **{**FINDINGS, "pipeline": pipeline}) for number in range(50))
    assert detailed_epochs(RunReport(epochs=epochs)) == [0, 1, *range(42, 50)]


def test_an_epoch_without_findings_does_not_say_that_they_are_left_out():
    bare = dataclasses.replace(VERDICT, suggestions=())
    epochs = [make_epoch(number, verdict=bare if number % 2 else None) for number in range(200)]
    assert all(
        epoch["notes"] == ["a note"] for epoch in json.loads(RunReport(epochs=tuple(epochs)).to_json())["epochs"]
    )


def test_an_epoch_without_gpus_does_not_say_that_they_are_left_out():
    epochs = [make_epoch(number, gpus=(make_gpu(),) * 8 if number % 2 else ()) for number in range(600)]
    for epoch in json.loads(RunReport(epochs=tuple(epochs)).to_json())["epochs"]:
        assert epoch["epoch"] % 2 or epoch["notes"] == ["a note"]


def test_two_epochs_of_one_number_are_told_apart():
    # `fit` twice with one callback: both count from 0.
    first, second = make_epoch(0, gpus=(make_gpu(value=1.0),)), make_epoch(0, gpus=(make_gpu(value=2.0),))
    data = json.loads(RunReport(epochs=(first, second)).to_json())
    assert [epoch["gpus"][0]["energy_joules"] for epoch in data["epochs"]] == [1.0, 2.0]


def _other_schema() -> str:
    return json.dumps({**json.loads(FULL.to_json()), "schema_version": SCHEMA_VERSION + 1})


def _with(change: Any, *path: Any) -> str:
    """The full report with something else at one place."""
    data = json.loads(FULL.to_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = change
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"schema_version": 1}',
        _other_schema(),
        _with(1, "epochs", 0, "surprise"),
        _with(1, "epochs", 0, "gpus", 0, "surprise"),
        _with(1, "epochs", 0, "gpus", 0, "power_watts", "surprise"),
        _with(1, "epochs", 0, "host", "surprise"),
        _with(1, "devices", "surprise"),
        _with(1, "devices", "gpus", 0, "surprise"),
        _with(1, "devices", "host", "surprise"),
        _with([], "epochs", 0),
        _with([[]], "epochs", 0, "gpus"),
        _with(5, "epochs", 0, "gpus"),
        _with([], "devices"),
        _with(1, "verdict"),
        _with("worst_bound", "verdict", "kind"),
        _with(1, "verdict", "headline"),
        _with(1, "verdict", "surprise"),
        _with(1, "epochs", 1, "pipeline"),
        _with(1, "epochs", 1, "pipeline", "stages"),
        _with("me", "epochs", 1, "pipeline", "stages", 1, "added_by"),
        _with([1.5], "epochs", 1, "pipeline", "stages", 1, "fused_with"),
        _with("<b>", "epochs", 1, "pipeline", "stages", 1, "busy_seconds_per_batch"),
        _with(None, "epochs", 1, "pipeline", "stages", 1, "op"),
        _with([[0.0, 0.5]], "epochs", 1, "typical_steps"),
        _with({"steps": "many"}, "epochs", 1, "verdict", "evidence"),
        _with([1], "epochs", 1, "other_verdicts"),
        _with(True, "epochs", 0, "steps"),
        _with(float("nan"), "epochs", 0, "goodput"),
        "[" * 100_000,
        _with([["energy_joules"]], "devices", "gpus", 0, "unavailable"),
    ],
)
def test_what_is_not_a_report_of_this_schema_counts_as_empty(text: str):
    assert report_from_json(text, step=10**9) == RunReport()
