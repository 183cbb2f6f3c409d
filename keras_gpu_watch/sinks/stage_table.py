# SPDX-License-Identifier: Apache-2.0
"""The table of the input pipeline's stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from keras_gpu_watch.findings import AUTOTUNE, Stage
from keras_gpu_watch.sinks.wording import count, number, percent, plain, size

MAX_ROWS = 40
"""Stages that get a row."""
CHOSEN = "*"
"""Marks what AUTOTUNE chose."""
# Of a stage's name and of its source line, in a wide table and in one for 80 columns.
_WIDE_LETTERS = 30
_NARROW_LETTERS = 23
_HANGING = "  "
_ADDERS = {"tensorflow": "TensorFlow", "keras": "Keras", "keras-gpu-watch": "keras-gpu-watch"}


def stage_table(stages: Sequence[Stage], wide: bool) -> Table:
    """Make the table.

    Args:
        stages: Of one pipeline, sources first; at least one.
        wide: True to give source lines a column of their own instead of a line below the stage's name.

    Returns:
        A row for each stage, without the columns for which no stage has anything.
    """
    title = "GPU Watch: input pipeline, from its source to the training"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.padding = (0, 0, 0, 1 if wide else 0)
    table.add_column("stage", no_wrap=True)
    letters = _WIDE_LETTERS if wide else _NARROW_LETTERS
    has_sources = wide and any(stage.source for stage in stages)
    if has_sources:
        table.add_column("written at", no_wrap=True)
    columns = [column for column in _COLUMNS if any(column[1](stage) != "-" for stage in stages)]
    for header, _ in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for stage in _shown(stages):
        # As Text, in which brackets are not taken for markup.
        source = [Text(plain(stage.source or "-", letters))] if has_sources else []
        name = Text(f"\n{_HANGING}".join(_name_lines(stage, letters, with_source=not has_sources)))
        table.add_row(name, *source, *(cell(stage) for _, cell in columns))
    return table


def footnotes(stages: Sequence[Stage], reason: str | None) -> list[str]:
    """What is to be said below the table.

    Args:
        stages: Of one pipeline.
        reason: Why the pipeline has no measurements, if so.

    Returns:
        Lines.
    """
    # A stage that runs as part of another is marked as such.
    reasons = dict.fromkeys(stage.reason for stage in stages if stage.reason and not stage.fused_with)
    lines = [f"Not measured: {text}" for text in ([reason] if reason else list(reasons)[:3])]
    if any(CHOSEN in cell(stage) for stage in stages for _, cell in _COLUMNS):
        lines.append(f"{CHOSEN} left to AUTOTUNE")
    hidden = len(stages) - len(_shown(stages))
    return [*([f"{hidden} stages that do less are not shown"] if hidden else []), *lines]


def _shown(stages: Sequence[Stage]) -> list[Stage]:
    """In their order, those that do most."""
    most = sorted(stages, key=lambda stage: -(stage.busy_seconds_per_batch or 0.0))[:MAX_ROWS]
    return sorted(most, key=lambda stage: stage.index)


def _name_lines(stage: Stage, letters: int, with_source: bool) -> list[str]:
    return [
        plain(f"{stage.index} {stage.label}", letters),
        *([plain(stage.source, letters - len(_HANGING))] if with_source and stage.source else []),
        *([f"added by {_ADDERS[stage.added_by]}"] if stage.added_by in _ADDERS else []),
        *([f"fused with {', '.join(map(str, stage.fused_with))}"] if stage.fused_with else []),
    ]


def _elements(stage: Stage) -> str:
    return "-" if stage.elements_per_batch is None else count(stage.elements_per_batch)


def _busy(stage: Stage) -> str:
    if stage.busy_seconds_per_batch is None:
        return "-"
    busy_ms = 1e3 * stage.busy_seconds_per_batch
    shown = "<0.01" if 0 < busy_ms < 0.005 else number(busy_ms)
    return f"~{shown}" if stage.is_estimated else shown


def _parallelism(stage: Stage) -> str:
    if stage.parallelism is None:
        return "-"
    most = "" if stage.parallelism_max is None else f"/{count(stage.parallelism_max)}"
    return f"{count(stage.parallelism)}{most}{CHOSEN if stage.num_parallel_calls == AUTOTUNE else ''}"


def _buffer(stage: Stage) -> str:
    if stage.buffered_elements is None and stage.buffer_limit is None:
        return "-"
    now = "-" if stage.buffered_elements is None else count(stage.buffered_elements)
    most = "" if stage.buffer_limit is None else f"/{count(stage.buffer_limit)}"
    return f"{now}{most}{CHOSEN if stage.buffer_size == AUTOTUNE else ''}"


def _bytes(stage: Stage) -> str:
    return "-" if stage.bytes_per_element is None else size(stage.bytes_per_element)


def _capacity(stage: Stage) -> str:
    return "-" if stage.capacity_batches_per_second is None else number(stage.capacity_batches_per_second)


def _wait(stage: Stage) -> str:
    return "-" if stage.wait_share is None else percent(stage.wait_share)


_COLUMNS: tuple[tuple[str, Callable[[Stage], str]], ...] = (
    ("elem.\n/batch", _elements),
    ("busy ms\n/batch", _busy),
    ("calls\nnow/max", _parallelism),
    ("buffer\nnow/max", _buffer),
    ("bytes/\nelement", _bytes),
    ("batch/s\nat most", _capacity),
    ("wait\nshare", _wait),
)
