# SPDX-License-Identifier: Apache-2.0
"""Sums of what the counters of an iterator's stages grew by, over the looks at one epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.matching import Match
from keras_gpu_watch.pipeline.model_tree import LiveModel
from keras_gpu_watch.pipeline.readings import Growth, Reading, growth, is_continued, read_place


@dataclasses.dataclass(slots=True)
class Sums:
    """Growths of one stage's counters, added up."""

    elements: float = 0.0
    made: float = 0.0
    drawn: float | None = None
    seconds: float = 0.0
    bytes: float = 0.0
    given_above: float = 0.0
    """What it gave while the stage above gave `above`."""
    above: float = 0.0

    def add(self, step: Growth) -> None:
        """Add a stage's growth."""
        self.elements += step.elements
        self.made += step.made
        if step.drawn is not None:
            self.drawn = (self.drawn or 0.0) + step.drawn
        self.seconds += step.seconds
        self.bytes += step.bytes

    def add_edge(self, given: float, above: float) -> None:
        """Add what it gave while the stage above gave so much."""
        self.given_above += given
        self.above += above


@dataclasses.dataclass(slots=True)
class StageTally:
    """One stage over the looks of an epoch."""

    newest: Reading
    until_first: Sums = dataclasses.field(default_factory=Sums)
    """From the iterator's begin to the epoch's first look: first fillings and warm-up are in it."""
    later: Sums = dataclasses.field(default_factory=Sums)
    looks: int = 0
    buffered_elements: float = 0.0
    buffered_bytes: float = 0.0
    opened_seconds: float = 0.0
    opened_elements: float = 0.0

    def see(self, reading: Reading) -> None:
        """Take in what is read anew at each look."""
        self.newest = reading
        self.looks += 1
        self.buffered_elements += reading.buffered_elements
        self.buffered_bytes += reading.buffered_bytes
        self.opened_seconds += reading.opened_seconds
        self.opened_elements += reading.opened_elements


class EpochTally:
    """All stages over the looks of one epoch.

    Args:
        stages: As known so far.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.tallies: dict[int, StageTally] = {}
        self.passed: frozenset[int] = frozenset()
        self.looks = 0
        self._before: dict[int, Reading] = {}

    def look(self, found: Match, model: LiveModel, *, is_same_iterator: bool) -> None:
        """Add one look.

        Args:
            found: The match of `stages` with the model.
            model: What tf.data tells of the live iterator now.
            is_same_iterator: Whether it is the iterator of the look before.
        """
        self._renumber(found)
        before = self._before if is_same_iterator else {}
        now = {index: read_place(model, place) for index, place in enumerate(found.places) if place is not None}
        for index, reading in now.items():
            tally = self.tallies.setdefault(index, StageTally(reading))
            tally.see(reading)
            self._sums(tally).add(growth(before.get(index), reading))
        for above, below in self._edges():
            if above in now:
                step = _edge(before.get(above), now[above], before.get(below), now.get(below))
                if step is not None:
                    self._sums(self.tallies[below]).add_edge(*step)
        self._before = now
        self.looks += 1

    def above(self) -> dict[int, int | None]:
        """For each stage the next one towards the training, those without a node that the model passes by left out."""
        above: dict[int, int | None] = {}
        for stage in reversed(self.stages):
            taker = above.setdefault(stage.index, None)
            above.update(dict.fromkeys(stage.inputs, taker if self.is_passed(stage.index) else stage.index))
        return above

    def is_passed(self, index: int) -> bool:
        """Whether tf.data runs the pipeline without this stage, or as a part of another."""
        return index not in self.tallies and (index in self.passed or bool(self.stages[index].fused_with))

    def _sums(self, tally: StageTally) -> Sums:
        return tally.later if self.looks else tally.until_first

    def _edges(self) -> Iterator[tuple[int, int]]:
        for below, above in self.above().items():
            if above in self.tallies and below in self.tallies:
                yield above, below

    def _renumber(self, found: Match) -> None:
        """Take over the stages that this look has found in addition."""
        index = {old: new for new, old in enumerate(found.origins) if old is not None}
        self.stages = found.stages
        self.passed = frozenset(index[old] for old in self.passed) | found.passed
        self.tallies = {index[old]: tally for old, tally in self.tallies.items()}
        self._before = {index[old]: reading for old, reading in self._before.items()}


def _edge(
    above_before: Reading | None, above: Reading, below_before: Reading | None, below: Reading | None
) -> tuple[float, float] | None:
    """What a stage gave, and what the stage above it gave, between two looks; `None` where it can't be told."""
    above_gave = growth(above_before, above).elements
    is_cache = above.kind == "cache"
    if below is not None:
        gave = growth(below_before, below).elements
        # While a cache is being filled it needs an element for each that it gives.
        return (above_gave if is_cache and gave else gave), above_gave
    # It ended in between, or before. Of what it gave last nothing is known, but to a cache: all of this pass.
    is_this_pass = is_cache and below_before is not None and is_continued(above_before, above)
    return (above_gave, above_gave) if is_this_pass else None
