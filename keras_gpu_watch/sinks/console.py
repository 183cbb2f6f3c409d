# SPDX-License-Identifier: Apache-2.0
"""Prints one line for each epoch with what is new about it, and tables and the verdict at the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text

from keras_gpu_watch.findings import Suggestion, Verdict
from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks.epoch_table import epoch_table
from keras_gpu_watch.sinks.epoch_words import epoch_line
from keras_gpu_watch.sinks.stage_table import footnotes, stage_table
from keras_gpu_watch.sinks.verdict_words import brief_lines, callback_lines, full_lines, tuning_lines
from keras_gpu_watch.sinks.wording import plain

_LEAST_FILE_WIDTH = 100
# Longer lines are tiring to read.
_MOST_LINE_WIDTH = 100
_INDENT = "  "


class Draw(Protocol):
    """Draws one epoch's typical steps."""

    def __call__(self, epoch: EpochSummary, width: int, ascii_only: bool) -> str:
        """Give the picture's lines, of at most `width` columns."""


class ConsoleSink:
    """A sink that prints to standard output.

    Args:
        enabled: False to stay silent.
        draw: Draws the picture of an epoch's typical steps; `None` for no pictures.
    """

    def __init__(self, enabled: bool = True, draw: Draw | None = None) -> None:
        self._enabled = enabled
        self._draw = draw
        self._epochs: list[EpochSummary] = []
        self._drawn: EpochSummary | None = None
        self._verdict: Verdict | None = None
        # In the order of their appearance; a dict because it forgets duplicates.
        self._notes: dict[str, None] = {}
        self._closed = False

    def steps(self, chunk: StepArray) -> None:
        """Nothing: a line per epoch is enough."""

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Nothing: the epoch's line shows their means."""

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        """Print the epoch's line, its verdict and its notes if they are new, and the run's first picture."""
        if not self._enabled:
            return
        self._epochs.append(summary)
        _print([epoch_line(summary)])
        if summary.verdict is not None and not _says_the_same(summary.verdict, self._verdict):
            _print(brief_lines(summary.verdict, _line_width()))
        self._verdict = summary.verdict
        if self._draw is not None and self._drawn is None and summary.typical_steps:
            _print(["", *self._picture(self._draw, summary)])
        for text in summary.notes:
            self.note(text)

    def note(self, text: str) -> None:
        """Print one line at once; a text that was printed before is not printed again."""
        if not self._enabled or text in self._notes:
            return
        self._notes[text] = None
        _print([f"GPU Watch: {text}"])

    def tell(self, lines: Sequence[str]) -> None:
        """Print some lines at once, also if they were printed before."""
        if self._enabled:
            _print(f"GPU Watch {line}" for line in lines)

    def close(self, report_json: str) -> None:
        """Print the tables of epochs and stages, verdict and tuning in full, the newest picture, and all notes."""
        if not self._enabled or self._closed:
            return
        self._closed = True
        if not self._epochs:
            return
        _print_table(lambda wide: epoch_table(self._epochs, gap=2 if wide else 1))
        self._print_stages()
        verdict = _verdict_of(report_json) or self._epochs[-1].verdict
        lines = [] if verdict is None else full_lines(verdict, self._epochs[-1].other_verdicts, _line_width())
        lines += callback_lines(self._epochs, _line_width())
        lines += tuning_lines(json.loads(report_json or "{}").get("tuning"), _line_width())
        _print([*lines, ""] if lines else [])
        newest = next((epoch for epoch in reversed(self._epochs) if epoch.typical_steps), None)
        if self._draw is not None and newest is not None and newest is not self._drawn:
            _print(self._picture(self._draw, newest))
        _print(f"{_INDENT}Note: {text}" for text in self._notes)

    def _print_stages(self) -> None:
        pipelines = (epoch.pipeline for epoch in reversed(self._epochs))
        pipeline = next((pipeline for pipeline in pipelines if pipeline is not None and pipeline.stages), None)
        if pipeline is None:
            return
        stages = pipeline.stages
        _print_table(lambda wide: stage_table(stages, wide))
        _print([*(_INDENT + line for line in footnotes(stages, pipeline.reason)), ""])

    def _picture(self, draw: Draw, epoch: EpochSummary) -> list[str]:
        self._drawn = epoch
        picture = draw(epoch, width=_line_width() - 2 * len(_INDENT), ascii_only=not _knows("█▒░·─┴"))
        return [*(_INDENT + line for line in picture.split("\n")), ""]


def _says_the_same(verdict: Verdict, earlier: Verdict | None) -> bool:
    return earlier is not None and (verdict.kind, verdict.cause, verdict.stage) == (
        earlier.kind,
        earlier.cause,
        earlier.stage,
    )


def _verdict_of(report_json: str) -> Verdict | None:
    """The run's verdict, as the report has it; there is no text where making the report failed."""
    fields = json.loads(report_json or "{}").get("verdict")
    if fields is None:
        return None
    suggestions = tuple(Suggestion(**suggestion) for suggestion in fields.pop("suggestions"))
    return Verdict(**fields, suggestions=suggestions)


def _console() -> Console:
    # Made anew each time, so that it follows a redirected `sys.stdout`; and never as HTML, which a notebook would put
    # below whatever cell runs at that moment.
    return Console(force_jupyter=False, highlight=False)


def _line_width() -> int:
    return min(_console().width, _MOST_LINE_WIDTH)


def _print(lines: Iterable[str]) -> None:
    console = _console()
    for line in lines:
        # As Text, so that brackets in it are not taken for markup.
        console.print(Text(_encodable(plain(line))), soft_wrap=True)


def _print_table(make: Callable[[bool], Table]) -> None:
    console = _console()
    if not console.is_terminal:
        console.width = max(console.width, _LEAST_FILE_WIDTH)
    wide = make(True)
    table = wide if _natural_width(console, wide) <= console.width else make(False)
    # A terminal that is narrower still wraps the rows itself; rich would cut the numbers short.
    # (Its height, because the width alone is not heeded on a terminal that calls itself dumb.)
    console.size = ConsoleDimensions(max(console.width, _natural_width(console, table)), console.height)
    with console.capture() as capture:
        console.print(table)
    console.file.write(_encodable(capture.get()))


def _natural_width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(max_width=1_000)).maximum


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def _encodable(text: str) -> str:
    return text.encode(_encoding(), "replace").decode(_encoding())


def _knows(letters: str) -> bool:
    return _encodable(letters) == letters
