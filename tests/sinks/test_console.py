# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from keras_gpu_watch.findings import CallbackSeconds, PipelineSummary, Stage, StepTimes, Suggestion, Verdict
from keras_gpu_watch.knobs import FixedStage, TuningSummary
from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.samples import Distribution, GpuSummary
from keras_gpu_watch.sinks.console import ConsoleSink

MakeEpoch = Callable[..., EpochSummary]
Capture = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE", "JUPYTER_COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_an_epoch_is_one_line_with_wait_ceiling_and_what_dominates(make_epoch: MakeEpoch, capsys: Capture) -> None:
    ConsoleSink().epoch(make_epoch(2, compile_seconds=2.1, validation_seconds=4.0, wall_seconds=16.1), "{}")
    assert capsys.readouterr().out == (
        "GPU Watch epoch 3: input wait 42 % of the step, ceiling 1.72x | mostly compute: 5.00 s of 16.1 s (31 %) | "
        "input wait 4.00 s, first batch 0.31 s, compile 2.10 s, host 0.50 s, validation 4.00 s, epoch end 0.19 s\n"
    )


def test_an_epoch_whose_wait_is_unknown_says_so_and_gives_the_reason_once(
    make_epoch: MakeEpoch, capsys: Capture
) -> None:
    sink = ConsoleSink()
    unknown = {"input_wait_seconds": None, "compute_seconds": None, "input_wait_share": None, "ceiling_speedup": None}
    for epoch in (0, 1):
        sink.epoch(make_epoch(epoch, notes=("No wait: autotune is off.",), **unknown), "{}")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("GPU Watch epoch 1: input wait not measured | mostly train steps: 9.00 s of 10.0 s")
    assert lines[1] == "GPU Watch: No wait: autotune is off."
    assert lines[2].startswith("GPU Watch epoch 2: input wait not measured |")
    assert len(lines) == 3


def test_a_wait_of_zero_is_shown_as_zero(make_epoch: MakeEpoch, capsys: Capture) -> None:
    ConsoleSink().epoch(make_epoch(input_wait_seconds=0.0, input_wait_share=0.0, ceiling_speedup=1.0), "{}")
    assert "input wait 0 % of the step, ceiling 1.00x | mostly compute" in capsys.readouterr().out


def test_an_estimate_is_called_one(make_epoch: MakeEpoch, capsys: Capture) -> None:
    ConsoleSink().epoch(make_epoch(estimated=("input_wait_share",)), "{}")
    assert "input wait about 42 % of the step" in capsys.readouterr().out


def test_small_numbers_keep_their_meaning(make_epoch: MakeEpoch, capsys: Capture) -> None:
    summary = make_epoch(
        wall_seconds=0.1,
        first_batch_seconds=0.003,
        input_wait_seconds=0.00002,
        compute_seconds=0.09,
        host_seconds=0.004,
        epoch_end_seconds=0.003,
        input_wait_share=0.0002,
    )
    ConsoleSink().epoch(summary, "{}")
    out = capsys.readouterr().out
    assert "input wait <0.1 % of the step" in out
    assert "mostly compute: 90 ms of 0.10 s (90 %)" in out
    assert "host 4 ms" in out


def test_a_note_is_printed_at_once_and_only_once(capsys: Capture) -> None:
    sink = ConsoleSink()
    sink.note("first [bold]text[/bold] [/]")
    assert capsys.readouterr().out == "GPU Watch: first [bold]text[/bold] [/]\n"
    sink.note("first [bold]text[/bold] [/]")
    assert capsys.readouterr().out == ""


def test_the_table_has_a_row_per_epoch_totals_and_the_notes(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(0, wall_seconds=12.25, compile_seconds=2.25, input_wait_share=0.2), "{}")
    sink.epoch(make_epoch(1, validation_seconds=3.0, wall_seconds=13.0, input_wait_share=0.4), "{}")
    sink.note("something to know")
    capsys.readouterr()
    sink.close("{}")
    out = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "1 12.2 4.00 5.00 0.31 2.25 0.50 - 0.19 20 % 1.25x" in rows
    assert "2 13.0 4.00 5.00 0.31 0.00 0.50 3.00 0.19 40 % 1.67x" in rows
    assert "all 25.2 8.00 10.0 0.62 2.25 1.00 3.00 0.38 30 % 1.43x" in rows
    assert out.endswith("  Note: something to know\n")


def test_columns_without_anything_in_them_are_left_out(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(), "{}")
    capsys.readouterr()
    sink.close("{}")
    out = capsys.readouterr().out
    assert "host" in out
    assert "compile" not in out
    assert "ation" not in out


def test_totals_of_what_some_epochs_did_not_measure_are_unknown(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(0), "{}")
    sink.epoch(make_epoch(1, input_wait_seconds=None, compute_seconds=None, input_wait_share=None), "{}")
    capsys.readouterr()
    sink.close("{}")
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "all 20.0 18.0 - - 0.62 1.00 0.38 - -" in rows


def test_many_epochs_are_shown_by_the_first_and_the_last_ones(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink()
    for epoch in range(40):
        sink.epoch(make_epoch(epoch), "{}")
    capsys.readouterr()
    sink.close("{}")
    labels = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert labels[-13:] == ["1", "2", "3", "...", "33", "34", "35", "36", "37", "38", "39", "40", "all"]


def test_a_terminal_of_80_columns_shows_every_number_whole(
    make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    sink = ConsoleSink()
    sink.epoch(make_epoch(0, validation_seconds=1234.5, compile_seconds=99.0, wall_seconds=12345.6), "{}")
    line = terminal.getvalue()
    assert line.count("\n") == 1
    assert len(line) > 80
    sink.close("{}")
    table = terminal.getvalue()[len(line) :]
    assert max(len(row) for row in table.splitlines() if "\x1b" not in row) <= 80
    assert "12346" in table
    assert "1234 " in table
    assert "\N{HORIZONTAL ELLIPSIS}" not in table


def test_a_narrow_terminal_gets_whole_numbers_too(make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    sink = ConsoleSink()
    sink.epoch(make_epoch(0, validation_seconds=1234.5, compile_seconds=99.0, wall_seconds=12345.6), "{}")
    sink.close("{}")
    assert "12346" in terminal.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in terminal.getvalue()


def test_output_that_is_not_a_terminal_has_no_control_codes(
    make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    file = io.StringIO()
    sink = ConsoleSink()
    monkeypatch.setattr(sys, "stdout", file)
    sink.epoch(make_epoch(), "{}")
    sink.note("text")
    sink.close("{}")
    assert "GPU Watch: seconds per epoch" in file.getvalue()
    assert "\x1b" not in file.getvalue()


def test_an_output_that_only_knows_ascii_gets_ascii(make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    sink = ConsoleSink()
    sink.epoch(make_epoch(), "{}")
    sink.note("größer")
    sink.close("{}")
    assert b"GPU Watch: gr??er\n" in raw.getvalue()
    assert raw.getvalue().isascii()


def test_a_disabled_console_is_silent(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink(enabled=False)
    sink.epoch(make_epoch(notes=("note",)), "{}")
    sink.note("note")
    sink.close("{}")
    assert capsys.readouterr() == ("", "")


def test_closing_twice_prints_one_table_and_closing_without_epochs_prints_none(
    make_epoch: MakeEpoch, capsys: Capture
) -> None:
    empty = ConsoleSink()
    empty.close("{}")
    assert capsys.readouterr().out == ""
    sink = ConsoleSink()
    sink.epoch(make_epoch(), "{}")
    sink.close("{}")
    sink.close("{}")
    assert capsys.readouterr().out.count("seconds per epoch") == 1


def _gpu(gpu: int = 0, mean: float | None = 43.0, samples: int = 20, swings: bool | None = None) -> GpuSummary:
    utilization = None if mean is None else Distribution(mean=mean, p5=0.0, p50=mean, p95=100.0)
    return GpuSummary(gpu=gpu, samples=samples, utilization_percent=utilization, swings=swings)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        ((_gpu(swings=False),), "GPU 43 % busy"),
        ((_gpu(swings=None),), "GPU 43 % busy"),
        ((_gpu(swings=True),), "GPU 43 % busy in swings"),
        ((_gpu(mean=0.0),), "GPU 0 % busy"),
        ((_gpu(mean=0.02),), "GPU <0.1 % busy"),
        ((_gpu(0, 98.2), _gpu(1, 12.4, swings=True), _gpu(2, 40.0)), "GPUs 12-98 % busy"),
        ((_gpu(0, 98.2), _gpu(1, 98.4)), "GPUs 98 % busy"),
        ((_gpu(0, None), _gpu(1, 12.4)), "GPU 12 % busy"),
    ],
)
def test_an_epochs_line_ends_in_how_busy_the_gpus_were(
    make_epoch: MakeEpoch, capsys: Capture, gpus: tuple[GpuSummary, ...], words: str
) -> None:
    ConsoleSink().epoch(make_epoch(gpus=gpus), "{}")
    assert capsys.readouterr().out.endswith(f"epoch end 0.19 s | {words}\n")


@pytest.mark.parametrize("gpus", [(), (_gpu(mean=None),), (_gpu(samples=0),)])
def test_gpus_whose_use_was_not_measured_are_not_mentioned(
    make_epoch: MakeEpoch, capsys: Capture, gpus: tuple[GpuSummary, ...]
) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(gpus=gpus), "{}")
    sink.close("{}")
    out = capsys.readouterr().out
    assert "busy" not in out
    assert "epoch end 0.19 s\n" in out


def test_the_table_shows_gpu_use_with_each_epoch_weighted_by_its_samples(
    make_epoch: MakeEpoch, capsys: Capture
) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(0, gpus=(_gpu(mean=20.0, samples=30),)), "{}")
    sink.epoch(make_epoch(1), "{}")
    sink.epoch(make_epoch(2, gpus=(_gpu(mean=60.0, samples=10),)), "{}")
    capsys.readouterr()
    sink.close("{}")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[-2:] for row in rows if row[:1] in (["1"], ["3"], ["all"])] == [["20", "%"], ["60", "%"], ["30", "%"]]
    assert [row[-2:] for row in rows if row[:1] == ["2"]] == [["1.72x", "-"]]
    assert [row[-1] for row in rows if row[:1] == ["epoch"]] == ["busy"]


def test_the_table_of_several_gpus_goes_from_the_least_busy_to_the_busiest(
    make_epoch: MakeEpoch, capsys: Capture
) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(0, gpus=(_gpu(0, 20.0), _gpu(1, 90.0))), "{}")
    sink.epoch(make_epoch(1, gpus=(_gpu(0, 40.0), _gpu(1, 10.0))), "{}")
    capsys.readouterr()
    sink.close("{}")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    busy = {row[0]: row[-2] for row in rows if row[:1] in (["1"], ["2"], ["all"])}
    assert busy == {"1": "20-90", "2": "10-40", "all": "30-50"}


@pytest.mark.parametrize(("columns", "longest"), [("80", 80), ("100", 100)])
def test_the_table_with_gpus_fits_a_usual_terminal(
    make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch, columns: str, longest: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    sink = ConsoleSink()
    gpus = (_gpu(0, 12.0), _gpu(1, 98.0))
    sink.epoch(make_epoch(0, gpus=gpus, validation_seconds=12.5, compile_seconds=99.0, wall_seconds=1234.5), "{}")
    line = terminal.getvalue()
    sink.close("{}")
    table = terminal.getvalue()[len(line) :]
    assert max(len(row) for row in table.splitlines() if "\x1b" not in row) <= longest
    assert "12-98 %" in table
    assert "\N{HORIZONTAL ELLIPSIS}" not in table


STEPS = (StepTimes(0.0, 0.03, 0.02),) * 8
INPUT_BOUND = Verdict(
    kind="input_bound",
    cause="latency",
    stage="map(decode)",
    headline="map(decode) is too slow.",
    suggestions=(Suggestion(what="Run more calls", why="cores are idle", code="ds.map(decode, 8)"),),
)
COMPUTE_BOUND = Verdict(kind="compute_bound", headline="Nothing to gain here.")
PIPELINE = PipelineSummary(
    stages=(
        Stage(index=0, op="range", reason="not in the model"),
        Stage(index=1, op="map", function="decode", source="train.py:42", busy_seconds_per_batch=0.0641),
    )
)


def _draw(epoch: EpochSummary, width: int, ascii_only: bool) -> str:
    return f"picture of epoch {epoch.epoch} {'#' if ascii_only else '█'}\n{'=' * width}"


def test_a_verdict_is_printed_when_it_is_new_and_not_again(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink()
    shown = []
    slower = dataclasses.replace(INPUT_BOUND, headline="map(decode) is even slower.", severity="critical")
    verdicts = [None, INPUT_BOUND, INPUT_BOUND, slower, COMPUTE_BOUND, INPUT_BOUND, None, INPUT_BOUND]
    for number, verdict in enumerate(verdicts):
        sink.epoch(make_epoch(number, verdict=verdict), "{}")
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"GPU Watch epoch {number + 1}:")
        shown.append(lines[1:])
    new = ["  => map(decode) is too slow.", "     Try: Run more calls", "        ds.map(decode, 8)"]
    assert shown == [[], new, [], [], ["  => Nothing to gain here."], new, [], new]


@pytest.mark.parametrize("changes", [{"kind": "bursty_input"}, {"cause": "python_lock"}, {"stage": "map(augment)"}])
def test_a_verdict_of_another_kind_cause_or_stage_is_new(
    make_epoch: MakeEpoch, capsys: Capture, changes: dict[str, Any]
) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(0, verdict=INPUT_BOUND), "{}")
    sink.epoch(make_epoch(1, verdict=dataclasses.replace(INPUT_BOUND, **changes)), "{}")
    assert capsys.readouterr().out.count("=> map(decode) is too slow.") == 2


def test_the_end_shows_stages_verdict_callbacks_and_the_newest_picture_in_this_order(
    make_epoch: MakeEpoch, capsys: Capture
) -> None:
    sink = ConsoleSink(draw=_draw)
    findings: dict[str, Any] = {"verdict": INPUT_BOUND, "pipeline": PIPELINE, "typical_steps": STEPS}
    sink.epoch(make_epoch(0, **findings), "{}")
    slow = (CallbackSeconds(name="ModelCheckpoint", epoch_seconds=2.0),)
    sink.epoch(make_epoch(1, **findings, callbacks=slow, other_verdicts=(COMPUTE_BOUND,)), "{}")
    sink.note("something to know")
    capsys.readouterr()
    sink.close("{}")
    out = capsys.readouterr().out
    landmarks = [
        "GPU Watch: seconds per epoch",
        "GPU Watch: input pipeline",
        " 1 map(decode) ",
        "  Not measured: not in the model",
        "GPU Watch: map(decode) is too slow.",
        "  1. Run more calls: cores are idle",
        "  Also: Nothing to gain here.",
        "  Callbacks: ModelCheckpoint 2.00 s (10 %)",
        "  picture of epoch 1 ",
        "  Note: something to know",
    ]
    places = [out.index(landmark) for landmark in landmarks]
    assert places == sorted(places)
    # No two blank lines below the tables.
    assert "\n\n\n" not in out[places[3] :]


def test_the_verdict_at_the_end_is_the_runs(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(verdict=COMPUTE_BOUND), "{}")
    capsys.readouterr()
    sink.close(json.dumps({"verdict": dataclasses.asdict(INPUT_BOUND), "epochs": []}))
    out = capsys.readouterr().out
    assert "GPU Watch: map(decode) is too slow.\n  1. Run more calls: cores are idle\n" in out
    assert "Nothing to gain" not in out


def test_the_tuners_lines_are_printed_each_time(capsys: Capture) -> None:
    sink = ConsoleSink()
    sink.tell(["tuner: kept, 2x", "tuner: [b]settled[/b]"])
    sink.tell(["tuner: kept, 2x"])
    ConsoleSink(enabled=False).tell(["tuner: silent"])
    assert capsys.readouterr().out == (
        "GPU Watch tuner: kept, 2x\nGPU Watch tuner: [b]settled[/b]\nGPU Watch tuner: kept, 2x\n"
    )


def test_the_end_shows_what_tuning_came_to_with_code_and_what_was_left_alone(
    make_epoch: MakeEpoch, capsys: Capture
) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(), "{}")
    capsys.readouterr()
    tuning = TuningSummary(
        state="settled",
        headline="settled at 12.3x after 2 trials",
        code="ds = ds.map(decode, num_parallel_calls=32)\nds = ds.prefetch(4)",
        fixed=(FixedStage(index=1, label="map(flip)", reason="it draws random numbers"),),
    )
    sink.close(json.dumps({"tuning": dataclasses.asdict(tuning), "epochs": []}))
    assert (
        "GPU Watch tuner: settled at 12.3x after 2 trials\n"
        "        ds = ds.map(decode, num_parallel_calls=32)\n"
        "        ds = ds.prefetch(4)\n"
        "  map(flip) was left as it is: it draws random numbers\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize("report_json", ["", "{}", '{"verdict": null}'])
def test_without_a_verdict_of_the_run_the_newest_epochs_stands_for_it(
    make_epoch: MakeEpoch, capsys: Capture, report_json: str
) -> None:
    sink = ConsoleSink()
    sink.epoch(make_epoch(0, verdict=COMPUTE_BOUND), "{}")
    sink.epoch(make_epoch(1, verdict=INPUT_BOUND), "{}")
    capsys.readouterr()
    sink.close(report_json)
    assert "GPU Watch: map(decode) is too slow.\n" in capsys.readouterr().out


def test_nothing_is_said_of_findings_that_there_are_not(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink(draw=_draw)
    sink.epoch(make_epoch(), "{}")
    assert capsys.readouterr().out.count("\n") == 1
    sink.close("{}")
    out = capsys.readouterr().out
    assert out.startswith("GPU Watch: seconds per epoch")
    assert all(word not in out for word in ("pipeline", "Callbacks", "Also", "picture", "None"))


def test_the_first_epoch_with_known_steps_is_drawn_at_once_and_the_newest_at_the_end(
    make_epoch: MakeEpoch, capsys: Capture
) -> None:
    sink = ConsoleSink(draw=_draw)
    drawn = []
    for number, steps in enumerate([(), STEPS, STEPS, ()]):
        sink.epoch(make_epoch(number, typical_steps=steps), "{}")
        drawn.append("picture of" in capsys.readouterr().out)
    assert drawn == [False, True, False, False]
    sink.close("{}")
    assert "  picture of epoch 2 █\n" in capsys.readouterr().out


def test_one_epoch_is_not_drawn_twice(make_epoch: MakeEpoch, capsys: Capture) -> None:
    sink = ConsoleSink(draw=_draw)
    sink.epoch(make_epoch(typical_steps=STEPS), "{}")
    sink.close("{}")
    assert capsys.readouterr().out.count("picture of epoch 0") == 1


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_the_picture_fits_the_terminal_and_is_no_wider_than_one_can_read(
    make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch, capsys: Capture, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ConsoleSink(draw=_draw).epoch(make_epoch(typical_steps=STEPS), "{}")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  =="))
    assert len(line) == min(columns, 100) - 2


def test_an_output_that_only_knows_ascii_gets_pictures_and_tables_in_ascii(
    make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    stage = Stage(index=0, op="map", function="größer", source="ä.py:1", busy_seconds_per_batch=0.001)
    sink = ConsoleSink(draw=_draw)
    verdict = dataclasses.replace(INPUT_BOUND, headline="map(größer) is slow")
    pipeline = PipelineSummary(stages=(stage,))
    sink.epoch(make_epoch(typical_steps=STEPS, pipeline=pipeline, verdict=verdict), "{}")
    sink.close("{}")
    text = raw.getvalue()
    assert text.isascii()
    assert b"picture of epoch 0 #" in text
    assert b"map(gr??er) is slow" in text
    assert b"map(gr??er)|" in text.replace(b" ", b"")


def test_strings_of_the_users_code_are_shown_as_text(make_epoch: MakeEpoch, capsys: Capture) -> None:
    hostile = "[red]f[/red][/]\x1b[31m\x07\n"
    stage = Stage(index=0, op="map", function=hostile, source=hostile, reason=hostile)
    verdict = Verdict(
        kind="input_bound",
        headline=f"map({hostile}) is slow",
        suggestions=(Suggestion(what=hostile, why=hostile, code=f"ds.map({hostile})"),),
    )
    callbacks = (CallbackSeconds(name=hostile, step_seconds=5.0),)
    sink = ConsoleSink()
    pipeline = PipelineSummary(stages=(stage,))
    sink.epoch(make_epoch(pipeline=pipeline, verdict=verdict, callbacks=callbacks, notes=(hostile,)), "{}")
    sink.close("{}")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert out.count(r"[red]f[/red][/]\x1b[31m\x07\n") >= 7


def test_a_terminal_that_calls_itself_dumb_gets_whole_numbers_too(
    make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    stage = Stage(index=0, op="shuffle", function="f" * 40, buffered_elements=1e40, buffer_limit=1e40)
    sink = ConsoleSink()
    sink.epoch(make_epoch(pipeline=PipelineSummary(stages=(stage,))), "{}")
    sink.close("{}")
    assert f"{1e40:.0f}/{1e40:.0f}" in terminal.getvalue()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_of_stages_fits_a_usual_terminal(
    make_epoch: MakeEpoch, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    stage = Stage(
        index=12,
        op="map",
        function="decode_and_resize_and_augment",
        source="train_imagenet.py:142",
        num_parallel_calls=-1,
        elements_per_batch=1024.0,
        busy_seconds_per_batch=0.0641,
        parallelism=16.0,
        parallelism_max=16.0,
        buffered_elements=1000.0,
        buffer_limit=1000.0,
        bytes_per_element=602112.0,
        capacity_batches_per_second=31.2,
        wait_share=0.982,
    )
    sink = ConsoleSink()
    sink.epoch(make_epoch(pipeline=PipelineSummary(stages=(stage,))), "{}")
    sink.close("{}")
    table = terminal.getvalue().partition("input pipeline")[2]
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", row)) for row in table.splitlines()) <= columns
    assert "\N{HORIZONTAL ELLIPSIS}" not in table
    assert "train_imagenet.py:142" in table
