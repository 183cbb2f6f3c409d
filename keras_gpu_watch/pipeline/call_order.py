# SPDX-License-Identifier: Apache-2.0
"""Whose calls must keep their order, and which stages would change it if they read ahead, or further ahead.

One stage that runs several calls at a time, or fetches ahead of what is asked for, changes nothing by itself. It does
where calls have state: a second call meets what the first one left, whether that is a count, a seed or a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.composites import StageObject
from keras_gpu_watch.pipeline.dataset_objects import function_traits
from keras_gpu_watch.pipeline.function_graphs import FunctionTraits
from keras_gpu_watch.pipeline.held_data import captures_dataset

RANDOM = "it draws random numbers, which would then go to other elements"
STATEFUL = "it keeps a state from one call to the next, so its calls must not run side by side"
PYTHON = (
    "it runs Python code, whose calls may depend on each other; if they don't, say `AutoTune(parallel_python=True)`"
)
ERRORS = "after an error that `ignore_errors` leaves out, it would go on at another element"
_SOURCE = "from_generator"
_OPAQUE = "from_variant"
_DRAWING = frozenset({"shuffle", "shuffle_and_repeat", "random", "sample_from_datasets", "rejection_resample"})
"""Each pass over them draws anew, so what the next one gives depends on how many passes were begun."""
_RESTARTING = frozenset({"repeat", "concatenate"})
"""What begins a pass in the midst of another."""
_IN_PYTHON = "state in Python"
_OUTSIDE = "files, the console, ..."
_UNKNOWN = "any state"


class CallOrder:
    """What the stages of one pipeline have to do with each other, besides handing on elements.

    Args:
        stages: As read from the objects.
        found: The same, as objects.
        parallel_python: Whether calls of Python functions may change places.
    """

    def __init__(self, stages: Sequence[Stage], found: Sequence[StageObject], *, parallel_python: bool) -> None:
        self._stages = stages
        self._found = found
        self._traits = [function_traits(each) for each in found]
        self._parallel_python = parallel_python
        self._below = _below(stages)
        self._states = self._all_states()

    @property
    def has_state(self) -> bool:
        """Whether any stage's calls have a state that others may see."""
        return any(self._states)

    def own_reason(self, index: int) -> str | None:
        """Why a stage's own calls may not begin to run side by side; `None`: they may."""
        if self._is_free(index):
            return None
        if self._states[index] or (self._found[index].wrappers and self._traits[index].is_stateful is not False):
            return PYTHON if _has_only_python(self._traits[index]) else STATEFUL
        return None

    def ahead_reason(self, index: int) -> str | None:
        """Why a stage may not begin to read ahead; `None`: it may."""
        members = list(self._members(index))
        beside = [each for each in range(len(self._stages)) if each != index and each not in members]
        for before in members:
            for other in beside:
                if _interact(self._states[before], self._states[other]):
                    return f"{self._label(before)} would run ahead of {self._label(other)}, and they may share a state"
        return None

    def error_reason(self, index: int) -> str | None:
        """Why a stage that gathers elements may not do so for several at a time; `None`: it may."""
        for stage in self._stages:
            if stage.op == "ignore_errors" and self._below[stage.index] >> index & 1:
                return ERRORS
        return None

    def _all_states(self) -> list[set[Hashable]]:
        """By stage, the states that its calls change or see changing."""
        used = Counter(id(each.dataset) for each in self._found)
        states = [
            set[Hashable]() if self._is_free(index) else self._own_states(index) for index in range(len(self._found))
        ]
        written = set[Hashable]().union(*states)
        for state, each in zip(states, self._found, strict=True):
            state |= written & _resources(each)
            if each.op in _DRAWING and used[id(each.dataset)] > 1:
                state.add(id(each.dataset))
        return states

    def _own_states(self, index: int) -> set[Hashable]:
        found, traits = self._found[index], self._traits[index]
        if found.op == _OPAQUE or captures_dataset(found.wrappers):
            return {_UNKNOWN}
        if found.op == _SOURCE:
            return {_IN_PYTHON}
        if not found.wrappers:
            return set()
        if traits.is_stateful is None:
            return {_UNKNOWN}
        states: set[Hashable] = {_IN_PYTHON} if traits.python else set()
        if traits.has_other_state:
            states |= _resources(found)
            if not traits.is_random:
                states.add(_OUTSIDE)
        return states

    def _is_free(self, index: int) -> bool:
        """Whether the user gave his word for it."""
        return self._parallel_python and _has_only_python(self._traits[index])

    def cut_reasons(self) -> list[str | None]:
        """By stage, why it may not read further ahead than it did, or less far; `None`: it may."""
        cutters: list[int | None] = [None] * len(self._stages)
        for stage in reversed(self._stages):
            is_cutter = _CUTS.get(stage.op, _never)(self._found[stage.index])
            cutter = stage.index if is_cutter else cutters[stage.index]
            for below in stage.inputs:
                cutters[below] = cutter
        return [self._cut_reason(index, cutter) for index, cutter in enumerate(cutters)]

    def _cut_reason(self, index: int, cutter: int | None) -> str | None:
        if cutter is None:
            return None
        touched = [each for each in self._members(index) if self._is_touched(each, index)]
        if not touched:
            return None
        return (
            f"`{self._stages[cutter].op}` stops before all is read, so how far this reads ahead decides how "
            f"{self._label(touched[-1])} goes on in the next epoch"
        )

    def _is_touched(self, index: int, reader: int) -> bool:
        """Whether reading more of a stage changes what it gives in the next epoch."""
        if self._states[index] or self._stages[index].op == "shuffle_and_repeat":
            return True
        restarts = (each for each in self._members(reader) if self._stages[each].op in _RESTARTING)
        return self._stages[index].op in _DRAWING and any(self._below[each] >> index & 1 for each in restarts)

    def _members(self, index: int) -> Iterator[int]:
        return (each for each in range(index) if self._below[index] >> each & 1)

    def _label(self, index: int) -> str:
        return f"`{self._stages[index].label}`"


def _below(stages: Sequence[Stage]) -> list[int]:
    """By stage, all that it reads from, as a set of bits."""
    below: list[int] = []
    for stage in stages:
        members = 0
        for each in stage.inputs:
            members |= below[each] | 1 << each
        below.append(members)
    return below


def _interact(states: set[Hashable], others: set[Hashable]) -> bool:
    return not states.isdisjoint(others) or bool(states and others and _UNKNOWN in states | others)


def _has_only_python(traits: FunctionTraits) -> bool:
    return traits.python is not None and traits.has_other_state is False


def _resources(found: StageObject) -> set[Hashable]:
    """Variables and tables that its functions use."""
    captured = (tensor for wrapper in found.wrappers for tensor in wrapper.function.captured_inputs)
    return {id(tensor) for tensor in captured if tensor.dtype.name == "resource"}


def _never(found: StageObject) -> bool:
    return False


def _always(found: StageObject) -> bool:
    return True


def _take_cuts(found: StageObject) -> bool:
    count = int(found.dataset._count)
    return not (count < 0 or 0 <= _cardinality(found.inputs[0]) <= count)


def _zip_cuts(found: StageObject) -> bool:
    lengths = {_cardinality(each) for each in found.inputs}
    return len(lengths) > 1 or min(lengths) < 0


def _sample_cuts(found: StageObject) -> bool:
    return bool(getattr(found.dataset, "_stop_on_empty_dataset", True))


def _cardinality(dataset: Any) -> int:
    """Elements; negative: not known, or infinite."""
    return int(dataset.cardinality())


_CUTS: dict[str, Callable[[StageObject], bool]] = {
    "take": _take_cuts,
    "take_while": _always,
    "zip": _zip_cuts,
    "choose_from_datasets": _always,
    "sample_from_datasets": _sample_cuts,
    "rejection_resample": _always,
}
"""By op: whether it may stop before it has read all of its inputs."""
