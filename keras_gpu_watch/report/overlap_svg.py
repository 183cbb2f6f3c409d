# SPDX-License-Identifier: Apache-2.0
"""The overlap diagram as an image that stands alone or in a page, on a light or a dark ground."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

from keras_gpu_watch.records import EpochSummary
from keras_gpu_watch.report.stretch import (
    NO_PICTURE,
    PREPARE_UNKNOWN,
    Block,
    BlockKind,
    Stretch,
    axis_of,
    numbers_words,
    sentence,
    stretch_of,
)

_WIDTH = 760
_LEFT, _RIGHT = 72, 16
_LANE_HEIGHT = 30
_PREPARE_TOP, _TRAIN_TOP, _AXIS_TOP, _LEGEND_TOP, _SENTENCE_TOP = 8, 48, 88, 128, 158
_SENTENCE_LETTERS, _SENTENCE_LINE = 100, 18
_NO_PICTURE_HEIGHT = 32
# A block that is narrower has no room for its number.
_LEAST_NUMBER_WIDTH = 12
_LEGEND_LETTER_WIDTH = 6.6
_COLORS: dict[BlockKind, str] = {"prepare": "#3f68c0", "compute": "#1f7a6d", "host": "#b4690e", "idle": "none"}
_WORDS: dict[BlockKind, str] = {
    "prepare": "prepared",
    "compute": "computed",
    "host": "host work",
    "idle": "waiting",
}
# The colours stand out from white and from black. In a page, text takes the page's colour; alone, that of the system.
_STYLE = (
    ".gw-text{font:12px system-ui,sans-serif;fill:currentColor}"
    ".gw-number{font:11px system-ui,sans-serif;fill:#fff;text-anchor:middle}"
    "svg:root{color:#222}@media(prefers-color-scheme:dark){svg:root{color:#ddd}}"
)


def overlap_svg(epoch: EpochSummary) -> str:
    """Draw one typical stretch of an epoch's steps as an image.

    Args:
        epoch: The epoch's account.

    Returns:
        An `<svg>` element without scripts or references to anything outside; a sentence as an image where the steps'
        waits are not known.
    """
    stretch = stretch_of(epoch)
    if stretch is None:
        return _image(NO_PICTURE, [_text(_RIGHT, 20, NO_PICTURE)], _NO_PICTURE_HEIGHT)
    lines = textwrap.wrap(sentence(stretch), _SENTENCE_LETTERS)
    words = [_text(_LEFT, _SENTENCE_TOP + number * _SENTENCE_LINE, line) for number, line in enumerate(lines)]
    parts = [*_lanes(stretch), *_axis(stretch), *_legend(stretch), *words]
    return _image(sentence(stretch), parts, _SENTENCE_TOP + len(lines) * _SENTENCE_LINE)


def _image(description: str, parts: Iterable[str], height: int) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'style="max-width:{_WIDTH}px;width:100%">'
    )
    title = f"<title>Some typical steps: preparing batches against training</title><desc>{escape(description)}</desc>"
    return "\n".join([head, title, f"<style>{_STYLE}</style>", *parts, "</svg>"])


def _lanes(stretch: Stretch) -> Iterator[str]:
    yield _text(_RIGHT, _PREPARE_TOP + 20, "prepare")
    if not stretch.prepare:
        yield _text(_LEFT, _PREPARE_TOP + 20, PREPARE_UNKNOWN)
    yield _text(_RIGHT, _TRAIN_TOP + 20, "train")
    for top, blocks in ((_PREPARE_TOP, stretch.prepare), (_TRAIN_TOP, stretch.train)):
        for block in blocks:
            yield from _block(block, top, stretch.seconds)


def _block(block: Block, top: int, span_seconds: float) -> Iterator[str]:
    left, right = _x(block.begin_seconds, span_seconds), _x(block.end_seconds, span_seconds)
    yield _box(left, top, right - left, _LANE_HEIGHT, block.kind)
    if block.kind in ("prepare", "compute") and right - left >= _LEAST_NUMBER_WIDTH:
        x = (left + right) / 2
        yield f'<text class="gw-number" x="{x:.1f}" y="{top + 19}">{block.number}</text>'


def _box(left: float, top: int, width: float, height: int, kind: BlockKind) -> str:
    edge = ' stroke="currentColor" stroke-dasharray="2 2" stroke-opacity="0.5"' if kind == "idle" else ""
    # A gap of half a pixel tells a block from the next one.
    box = f'x="{left + 0.25:.2f}" y="{top}" width="{max(width - 0.5, 0.5):.2f}" height="{height}"'
    return f'<rect {box} fill="{_COLORS[kind]}"{edge}/>'


def _axis(stretch: Stretch) -> Iterator[str]:
    axis = axis_of(stretch.seconds)
    line = f"M{_LEFT} {_AXIS_TOP}H{_WIDTH - _RIGHT}"
    ticks = [_x(tick, stretch.seconds) for tick in axis.ticks_seconds]
    yield f'<path d="{line}{"".join(f"M{x:.1f} {_AXIS_TOP}v5" for x in ticks)}" stroke="currentColor" fill="none"/>'
    for x, label in zip(ticks, axis.labels, strict=True):
        yield _text(x, _AXIS_TOP + 18, label, anchor="end" if x > _WIDTH - 2 * _RIGHT else "middle")


def _legend(stretch: Stretch) -> Iterator[str]:
    kinds = {block.kind for block in (*stretch.prepare, *stretch.train)}
    x = float(_LEFT)
    for kind, words in _WORDS.items():
        if kind in kinds:
            yield _box(x, _LEGEND_TOP - 9, 11, 11, kind)
            yield _text(x + 16, _LEGEND_TOP, words)
            x += 32 + _LEGEND_LETTER_WIDTH * len(words)
    yield _text(x, _LEGEND_TOP, numbers_words(stretch))


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="gw-text" x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _x(seconds: float, span_seconds: float) -> float:
    return _LEFT + seconds / span_seconds * (_WIDTH - _LEFT - _RIGHT)
