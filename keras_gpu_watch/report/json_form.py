# SPDX-License-Identifier: Apache-2.0
"""Records as JSON and back: what is written can be read again exactly, and what is read is checked."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from keras_gpu_watch.findings import StepTimes
from keras_gpu_watch.records import EpochSummary

GPUS_LEFT_OUT = "this file leaves the statistics of its GPUs out: it keeps those of the first and the newest epochs"
DETAILS_LEFT_OUT = (
    "this file leaves its pipeline, callbacks and suggestions out: it keeps those of the first and the newest epochs"
)
SAMPLE_DIGITS = 5
"""Significant digits of what comes from samples, and of findings: more would be noise, and twice as long."""
_FINDINGS = ("pipeline", "knobs", "callbacks", "typical_steps", "verdict", "other_verdicts")
_KEPT_TEXTS = 2000

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, eq=False)
class EpochForm:
    """One epoch (and no equal one), and how much of it is written.

    Comparing a thousand epochs of eight GPUs would take 0.1 s at each epoch's end: two are equal if they are the same.
    """

    epoch: EpochSummary
    has_gpus: bool
    has_details: bool

    def __hash__(self) -> int:
        return id(self.epoch)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, EpochForm)
            and self.epoch is other.epoch
            and (self.has_gpus, self.has_details) == (other.has_gpus, other.has_details)
        )


@functools.lru_cache(maxsize=_KEPT_TEXTS)
def epoch_json(form: EpochForm) -> str:
    """One epoch as a JSON object.

    Args:
        form: The epoch, and what to leave out of it.

    Returns:
        The object's text, in one line.

    Raises:
        ValueError: If a time is not a number that JSON knows.
    """
    epoch = _shortened(form)
    steps = tuple(step for step in epoch.typical_steps if _is_finite(step))
    data = dataclasses.asdict(dataclasses.replace(epoch, typical_steps=steps))
    data.update({name: _rounded(data[name]) for name in ("gpus", "host")})
    data.update({name: finding_json(data[name]) for name in _FINDINGS})
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def finding_json(value: Any) -> Any:
    """A finding's numbers rounded; one that JSON does not know becomes `None`, and leaves a verdict's evidence.

    Args:
        value: What `dataclasses.asdict` gave.

    Returns:
        The same, ready for JSON.
    """
    if isinstance(value, dict):
        known = {name: finding_json(item) for name, item in value.items()}
        if "evidence" in known:
            known["evidence"] = {name: item for name, item in known["evidence"].items() if item is not None}
        return known
    if isinstance(value, (list, tuple)):
        return [finding_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else _rounded(value)


def read_record(kind: type[_Record], value: Any) -> _Record:
    """Make a record out of what `json.loads` gave.

    Args:
        kind: The dataclass.
        value: Its fields; those that are missing get their defaults.

    Returns:
        The record, its tuples and the records in it made anew.

    Raises:
        TypeError: If something has another type than the field that it stands for, or a field without default is
            missing.
        ValueError: If a number is not finite, or a tuple of fixed length has another.
        KeyError: If there is no such field.
    """
    record: _Record = _read(kind, value)
    return record


def _shortened(form: EpochForm) -> EpochSummary:
    epoch = form.epoch
    if epoch.gpus and not form.has_gpus:
        epoch = dataclasses.replace(epoch, gpus=(), notes=(*epoch.notes, GPUS_LEFT_OUT))
    if form.has_details:
        return epoch
    verdict = None if epoch.verdict is None else dataclasses.replace(epoch.verdict, suggestions=())
    bare = dataclasses.replace(
        epoch, pipeline=None, knobs=None, callbacks=(), typical_steps=(), verdict=verdict, other_verdicts=()
    )
    return epoch if bare == epoch else dataclasses.replace(bare, notes=(*epoch.notes, DETAILS_LEFT_OUT))


def _is_finite(step: StepTimes) -> bool:
    return all(map(math.isfinite, dataclasses.astuple(step)))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.{SAMPLE_DIGITS}g}") if isinstance(value, float) else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(hint: Any, value: Any) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{name: _read(hints[name], item) for name, item in _checked(dict, value).items()})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return tuple(_read_items(arguments, _checked(list, value)))
    if origin in (dict, Mapping):
        # JSON has strings only for names.
        return {arguments[0](name): _read(arguments[1], item) for name, item in _checked(dict, value).items()}
    if origin in (types.UnionType, typing.Union):
        (known,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else _read(known, value)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is none of {arguments}")
        return value
    return _read_number(value) if hint is float else _checked(hint, value)


def _read_items(arguments: tuple[Any, ...], items: list[Any]) -> Iterable[Any]:
    hints = arguments[:1] * len(items) if arguments[-1] is Ellipsis else arguments
    return (_read(hint, item) for hint, item in zip(hints, items, strict=True))


def _checked(kind: type, value: Any) -> Any:
    # Exactly: to Python, True is an int.
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _read_number(value: Any) -> float:
    number = value if type(value) is int else _checked(float, value)
    if not math.isfinite(number):
        raise ValueError(f"{number} stands for nothing that was measured")
    return float(number)
