# SPDX-License-Identifier: Apache-2.0
"""The overlap diagram as text: preparing of batches against training, with the gaps in which training waits."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.report.stretch import (
    NO_PICTURE,
    PREPARE_UNKNOWN,
    Axis,
    Block,
    BlockKind,
    Stretch,
    axis_of,
    numbers_words,
    sentence,
    stretch_of,
)

LEAST_WIDTH = 32
# Before each lane, and below.
_PREPARE, _TRAIN, _NO_LANE = "prepare ", "train   ", "        "


@dataclass(frozen=True, slots=True)
class _Ink:
    """What the diagram is drawn with."""

    fills: dict[BlockKind, str]
    line: str
    tick: str


_UNICODE = _Ink({"prepare": "▒", "compute": "█", "host": "░", "idle": "·"}, "─", "┴")
_ASCII = _Ink({"prepare": "=", "compute": "#", "host": ":", "idle": "."}, "-", "+")


def draw_overlap(epoch: EpochSummary, width: int = 72, ascii_only: bool = False) -> str:
    """Draw one typical stretch of an epoch's steps.

    Args:
        epoch: The epoch's account.
        width: Columns that a line may have, at least 32.
        ascii_only: True for an output that knows no other characters.

    Returns:
        Some lines, the last one without a newline; one sentence where the steps' waits are not known.
    """
    stretch = stretch_of(epoch)
    if stretch is None:
        return NO_PICTURE
    ink = _ASCII if ascii_only else _UNICODE
    columns = max(width, LEAST_WIDTH) - len(_TRAIN)
    prepare = _lane(stretch.prepare, stretch.seconds, columns, ink) if stretch.prepare else PREPARE_UNKNOWN
    lanes = [_PREPARE + prepare, _TRAIN + _lane(stretch.train, stretch.seconds, columns, ink)]
    axis = [_NO_LANE + line for line in _axis(axis_of(stretch.seconds), stretch.seconds, columns, ink)]
    words = [_legend(stretch, ink), sentence(stretch)]
    lines = [*lanes, *axis, *(line for text in words for line in textwrap.wrap(text, max(width, LEAST_WIDTH)))]
    return "\n".join(line.rstrip() for line in lines)


def _lane(blocks: Sequence[Block], span_seconds: float, columns: int, ink: _Ink) -> str:
    """Each column shows what takes most of its time; a block of work begins with its number."""
    owners = [_owner(blocks, column, span_seconds / columns) for column in range(columns)]
    for block in blocks:
        # However short, a step's work stays visible, unless there are more steps than columns.
        column = min(int(block.begin_seconds / span_seconds * columns), columns - 1)
        owner = owners[column]
        if block.kind == "compute" and block not in owners and (owner is None or owner.kind != "compute"):
            owners[column] = block
    return "".join(_character(owners, column, ink) for column in range(columns))


def _owner(blocks: Sequence[Block], column: int, column_seconds: float) -> Block | None:
    begin, end = column * column_seconds, (column + 1) * column_seconds
    overlaps = [(min(block.end_seconds, end) - max(block.begin_seconds, begin), block) for block in blocks]
    most, owner = max(overlaps, key=lambda overlap: overlap[0])
    return owner if most >= column_seconds / 2 or (most > 0 and owner.kind != "prepare") else None


def _character(owners: Sequence[Block | None], column: int, ink: _Ink) -> str:
    owner = owners[column]
    if owner is None:
        return " "
    begins = column == 0 or owners[column - 1] is not owner
    if begins and owner.kind in ("prepare", "compute"):
        return str(owner.number % 10)
    return ink.fills[owner.kind]


def _axis(axis: Axis, span_seconds: float, columns: int, ink: _Ink) -> list[str]:
    line = [ink.line] * columns
    labels = " " * columns
    # The last one, which has the unit, comes first: it must not fall victim to the others.
    for tick, label in reversed(list(zip(axis.ticks_seconds, axis.labels, strict=True))):
        column = min(round(tick / span_seconds * columns), columns - 1)
        line[column] = ink.tick
        begin = min(column, columns - len(label))
        end = begin + len(label)
        if not labels[max(begin - 1, 0) : end + 1].strip():
            labels = labels[:begin] + label + labels[end:]
    return ["".join(line), labels]


def _legend(stretch: Stretch, ink: _Ink) -> str:
    words = {"prepare": "prepared", "compute": "computed", "host": "host work", "idle": "waiting"}
    kinds = {block.kind for block in (*stretch.prepare, *stretch.train)}
    fills = [f"{fill} {words[kind]}" for kind, fill in ink.fills.items() if kind in kinds]
    return "  ".join([*fills, numbers_words(stretch)])
