# SPDX-License-Identifier: Apache-2.0
"""Prints one line for each epoch and a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keras_gpu_watch.records import EpochSummary, StepArray
from keras_gpu_watch.samples import GpuSamples, HostSamples

_HEAD_ROWS = 3
_TAIL_ROWS = 8
_LEAST_FILE_WIDTH = 100
# A part is named in an epoch's line from this share of its wall time on.
_NAMED_SHARE = 0.01

_Seconds = Callable[[EpochSummary], "float | None"]
_STEP_PARTS: tuple[tuple[str, _Seconds], ...] = (
    ("input wait", lambda epoch: epoch.input_wait_seconds),
    ("compute", lambda epoch: epoch.compute_seconds),
)
_WHOLE_STEP: tuple[str, _Seconds] = ("train steps", lambda epoch: epoch.step_seconds)
_OTHER_PARTS: tuple[tuple[str, _Seconds], ...] = (
    ("first batch", lambda epoch: epoch.first_batch_seconds),
    ("compile", lambda epoch: epoch.compile_seconds),
    ("host", lambda epoch: epoch.host_seconds),
    ("validation", lambda epoch: epoch.validation_seconds),
    ("epoch end", lambda epoch: epoch.epoch_end_seconds),
    # Below what is promised it is noise.
    ("unattributed", lambda epoch: epoch.unattributed_seconds if _is_much(epoch.unattributed_seconds, epoch) else 0.0),
)
_HEADERS = {
    "train steps": "train\nsteps",
    "input wait": "input\nwait",
    "first batch": "first\nbatch",
    "validation": "valid-\nation",
    "epoch end": "epoch\nend",
    "unattributed": "unattri-\nbuted",
}
_WALL: tuple[str, _Seconds] = ("wall", lambda epoch: epoch.wall_seconds)


def _is_much(unattributed_seconds: float, epoch: EpochSummary) -> bool:
    return unattributed_seconds > max(0.005, 0.01 * epoch.wall_seconds)


class ConsoleSink:
    """A sink that prints to standard output.

    Args:
        enabled: False to stay silent.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled
        self._epochs: list[EpochSummary] = []
        # In the order of their appearance; a dict because it forgets duplicates.
        self._notes: dict[str, None] = {}
        self._closed = False

    def steps(self, chunk: StepArray) -> None:
        """Nothing: a line per epoch is enough."""

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Nothing: the epoch's line shows their means."""

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        """Print the epoch's line, and those of its notes that are new."""
        if not self._enabled:
            return
        self._epochs.append(summary)
        _print(_epoch_line(summary))
        for text in summary.notes:
            self.note(text)

    def note(self, text: str) -> None:
        """Print one line at once; a text that was printed before is not printed again."""
        if not self._enabled or text in self._notes:
            return
        self._notes[text] = None
        _print(f"GPU Watch: {text}")

    def close(self, report_json: str) -> None:
        """Print the table of the epochs, and the notes once more below it."""
        if not self._enabled or self._closed:
            return
        self._closed = True
        if self._epochs:
            _print_table(self._epochs)
        for text in list(self._notes) if self._epochs else ():
            _print(f"  Note: {text}")


def _console() -> Console:
    # Made anew each time, so that it follows a redirected `sys.stdout`; and never as HTML, which a notebook would put
    # below whatever cell runs at that moment.
    return Console(force_jupyter=False, highlight=False)


def _print(text: str) -> None:
    # As Text, so that brackets in it are not taken for markup.
    _console().print(Text(_encodable(text)), soft_wrap=True)


def _print_table(epochs: Sequence[EpochSummary]) -> None:
    console = _console()
    if not console.is_terminal:
        console.width = max(console.width, _LEAST_FILE_WIDTH)
    wide = _table(epochs, gap=2)
    table = wide if _natural_width(console, wide) <= console.width else _table(epochs, gap=1)
    # A terminal that is narrower still wraps the rows itself; rich would cut the numbers short.
    console.width = max(console.width, _natural_width(console, table))
    console.print(table)


def _natural_width(console: Console, table: Table) -> int:
    return console.measure(table, options=console.options.update(max_width=1_000)).maximum


def _encodable(text: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _epoch_line(epoch: EpochSummary) -> str:
    # Keras counts epochs from 1 in what it prints, from 0 in its hooks.
    head = f"GPU Watch epoch {epoch.epoch + 1}: {_wait_words(epoch)}"
    parts = _known_parts(epoch)
    main, main_seconds = max(parts, key=lambda part: part[1])
    others = [
        f"{name} {_duration(seconds)}"
        for name, seconds in parts
        if name != main and seconds >= _NAMED_SHARE * epoch.wall_seconds and seconds > 0
    ]
    share = _percent(main_seconds / epoch.wall_seconds) if epoch.wall_seconds > 0 else "-"
    spent = f"mostly {main}: {_duration(main_seconds)} of {_duration(epoch.wall_seconds)} ({share})"
    return " | ".join([head, spent, *([", ".join(others)] if others else []), *_gpu_words(epoch)])


def _wait_words(epoch: EpochSummary) -> str:
    if epoch.input_wait_share is None:
        return "input wait not measured"
    share = _percent(epoch.input_wait_share)
    estimated = {"input_wait_share", "input_wait_seconds"} & set(epoch.estimated)
    words = f"input wait {'about ' if estimated and share[0] != '<' else ''}{share} of the step"
    return words if epoch.ceiling_speedup is None else f"{words}, ceiling {epoch.ceiling_speedup:.2f}x"


def _gpu_words(epoch: EpochSummary) -> list[str]:
    """How busy the GPUs were; nothing where that was not measured."""
    means = _gpu_means([epoch])
    if not means:
        return []
    swings = len(epoch.gpus) == 1 and epoch.gpus[0].swings is True
    return [f"{'GPU' if len(means) == 1 else 'GPUs'} {_busy(means)} busy{' in swings' if swings else ''}"]


def _gpu_means(epochs: Sequence[EpochSummary]) -> list[float]:
    """Mean utilization in percent of each GPU whose utilization was measured, each epoch weighted by its samples."""
    weighted: dict[int, list[tuple[float, int]]] = {}
    for epoch in epochs:
        for gpu in epoch.gpus:
            if gpu.utilization_percent is not None and gpu.samples:
                weighted.setdefault(gpu.gpu, []).append((gpu.utilization_percent.mean, gpu.samples))
    return [
        sum(mean * samples for mean, samples in gpu) / sum(samples for _, samples in gpu) for gpu in weighted.values()
    ]


def _busy(means: Sequence[float]) -> str:
    """From the least busy GPU to the busiest one."""
    if not means:
        return "-"
    low, high = min(means), max(means)
    if f"{low:.0f}" == f"{high:.0f}":
        return _percent((low + high) / 2e2)
    return f"{low:.0f}-{high:.0f} %"


def _known_parts(epoch: EpochSummary) -> list[tuple[str, float]]:
    """Parts of the epoch's wall time, without those that were not measured."""
    together = epoch.input_wait_seconds is None or epoch.compute_seconds is None
    columns = ((_WHOLE_STEP,) if together else _STEP_PARTS) + _OTHER_PARTS
    readings = ((name, seconds(epoch)) for name, seconds in columns)
    return [(name, seconds) for name, seconds in readings if seconds is not None]


def _percent(ratio: float) -> str:
    percent = 100 * ratio
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def _duration(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if 0 < seconds < 0.0995 else f"{_number(seconds)} s"


def _number(seconds: float) -> str:
    """Seconds with three digits or so."""
    if seconds >= 99.95:
        return f"{seconds:.0f}"
    return f"{seconds:.1f}" if seconds >= 9.995 else f"{seconds:.2f}"


def _table(epochs: Sequence[EpochSummary], gap: int) -> Table:
    columns = _columns(epochs)
    table = Table(title="GPU Watch: seconds per epoch", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    # The box puts one blank between columns by itself.
    table.padding = (0, 0, 0, gap - 1)
    table.add_column("epoch", justify="right", no_wrap=True)
    for name, _ in columns:
        table.add_column(_HEADERS.get(name, name), justify="right", no_wrap=True)
    table.add_column("wait\nshare", justify="right", no_wrap=True)
    table.add_column("ceiling", justify="right", no_wrap=True)
    has_gpus = bool(_gpu_means(epochs))
    if has_gpus:
        table.add_column("GPU\nbusy", justify="right", no_wrap=True)
    for epoch in _shown(epochs):
        if epoch is None:
            table.add_row(*["..."] * len(table.columns))
        else:
            cells = [seconds(epoch) for _, seconds in columns]
            row = _row(str(epoch.epoch + 1), cells, epoch.input_wait_share)
            table.add_row(*row, *([_busy(_gpu_means([epoch]))] if has_gpus else []))
    table.add_section()
    totals = [_total([seconds(epoch) for epoch in epochs], name) for name, seconds in columns]
    busy = [_busy(_gpu_means(epochs))] if has_gpus else []
    table.add_row(*_row("all", totals, _overall_share(epochs)), *busy, style="bold")
    return table


def _columns(epochs: Sequence[EpochSummary]) -> list[tuple[str, _Seconds]]:
    """The columns in which at least one epoch has something to show."""
    split = [column for column in _STEP_PARTS if any(column[1](epoch) is not None for epoch in epochs)]
    whole = [] if all(epoch.compute_seconds is not None for epoch in epochs) else [_WHOLE_STEP]
    others = [column for column in _OTHER_PARTS if any(column[1](epoch) for epoch in epochs)]
    return [_WALL, *whole, *split, *others]


def _shown(epochs: Sequence[EpochSummary]) -> list[EpochSummary | None]:
    """The epochs that get a row; `None` stands for those left out."""
    if len(epochs) <= _HEAD_ROWS + _TAIL_ROWS + 1:
        return list(epochs)
    return [*epochs[:_HEAD_ROWS], None, *epochs[-_TAIL_ROWS:]]


def _row(label: str, seconds: Sequence[float | None], share: float | None) -> list[str]:
    cells = ["-" if value is None else _number(value) for value in seconds]
    if share is None:
        return [label, *cells, "-", "-"]
    ceiling = f"{1 / (1 - share):.2f}x" if share < 1 else "-"
    return [label, *cells, _percent(share), ceiling]


def _total(seconds: Sequence[float | None], name: str) -> float | None:
    known = [value for value in seconds if value is not None]
    # An epoch without validation spent nothing on it; an epoch whose wait is unknown leaves the sum unknown.
    complete = len(known) == len(seconds) or (name == "validation" and known)
    return sum(known) if complete else None


def _overall_share(epochs: Sequence[EpochSummary]) -> float | None:
    """Mean wait share, each epoch weighted by the time of its steps; `None` unless it is known for all."""
    pairs = [(epoch.input_wait_share, epoch.step_seconds + epoch.host_seconds) for epoch in epochs]
    total = sum(weight for _, weight in pairs)
    if not total or any(share is None for share, _ in pairs):
        return None
    return sum(share * weight for share, weight in pairs if share is not None) / total
