# SPDX-License-Identifier: Apache-2.0
"""The table of a run's epochs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.sinks.epoch_words import OTHER_PARTS, STEP_PARTS, WHOLE_STEP, Seconds, busy, gpu_means
from keras_gpu_watch.sinks.wording import number, percent

_HEAD_ROWS = 3
_TAIL_ROWS = 8
_HEADERS = {
    "train steps": "train\nsteps",
    "input wait": "input\nwait",
    "first batch": "first\nbatch",
    "validation": "valid-\nation",
    "epoch end": "epoch\nend",
    "unattributed": "unattri-\nbuted",
}
_WALL: tuple[str, Seconds] = ("wall", lambda epoch: epoch.wall_seconds)


def epoch_table(epochs: Sequence[EpochSummary], gap: int) -> Table:
    """Make the table.

    Args:
        epochs: All of the run; at least one.
        gap: Blanks between two columns; at least 1.

    Returns:
        A row for each epoch, or for the first and last of many, and their totals.
    """
    columns = _columns(epochs)
    table = Table(title="GPU Watch: seconds per epoch", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    # The box puts one blank between columns by itself.
    table.padding = (0, 0, 0, gap - 1)
    table.add_column("epoch", justify="right", no_wrap=True)
    for name, _ in columns:
        table.add_column(_HEADERS.get(name, name), justify="right", no_wrap=True)
    table.add_column("wait\nshare", justify="right", no_wrap=True)
    table.add_column("ceiling", justify="right", no_wrap=True)
    has_gpus = bool(gpu_means(epochs))
    if has_gpus:
        table.add_column("GPU\nbusy", justify="right", no_wrap=True)
    for epoch in _shown(epochs):
        if epoch is None:
            table.add_row(*["..."] * len(table.columns))
        else:
            cells = [seconds(epoch) for _, seconds in columns]
            row = _row(str(epoch.epoch + 1), cells, epoch.input_wait_share)
            table.add_row(*row, *([busy(gpu_means([epoch]))] if has_gpus else []))
    table.add_section()
    totals = [_total([seconds(epoch) for epoch in epochs], name) for name, seconds in columns]
    all_busy = [busy(gpu_means(epochs))] if has_gpus else []
    table.add_row(*_row("all", totals, _overall_share(epochs)), *all_busy, style="bold")
    return table


def _columns(epochs: Sequence[EpochSummary]) -> list[tuple[str, Seconds]]:
    """The columns in which at least one epoch has something to show."""
    split = [column for column in STEP_PARTS if any(column[1](epoch) is not None for epoch in epochs)]
    whole = [] if all(epoch.compute_seconds is not None for epoch in epochs) else [WHOLE_STEP]
    others = [column for column in OTHER_PARTS if any(column[1](epoch) for epoch in epochs)]
    return [_WALL, *whole, *split, *others]


def _shown(epochs: Sequence[EpochSummary]) -> list[EpochSummary | None]:
    """The epochs that get a row; `None` stands for those left out."""
    if len(epochs) <= _HEAD_ROWS + _TAIL_ROWS + 1:
        return list(epochs)
    return [*epochs[:_HEAD_ROWS], None, *epochs[-_TAIL_ROWS:]]


def _row(label: str, seconds: Sequence[float | None], share: float | None) -> list[str]:
    cells = ["-" if value is None else number(value) for value in seconds]
    if share is None:
        return [label, *cells, "-", "-"]
    ceiling = f"{1 / (1 - share):.2f}x" if share < 1 else "-"
    return [label, *cells, percent(share), ceiling]


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
