# SPDX-License-Identifier: Apache-2.0
"""`RunReport`: everything that is known of a run, as plain data and as JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from keras_gpu_watch._version import __version__
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.samples import Devices, Distribution, GpuDevice, GpuSummary, HostDevice, HostSummary
from keras_gpu_watch.tags import SCHEMA_VERSION

EPOCHS_IN_JSON = 1000
"""The JSON form keeps the first and the newest epochs of a longer run, so that rewriting it stays cheap."""
GPUS_IN_JSON = 1600
"""Likewise the statistics of single GPUs, of which eight GPUs have that many in 200 epochs."""
GPUS_LEFT_OUT = "this file leaves the statistics of its GPUs out: it keeps those of the first and the newest epochs"
SAMPLE_DIGITS = 5
"""Significant digits of what comes from samples, in the JSON form: more would be noise, and twice as long."""

Status = Literal["not started", "running", "finished", "interrupted", "not measured"]


@dataclass(frozen=True, slots=True)
class RunReport:
    """What one `fit` with a `GPUWatch` gave (times in seconds)."""

    status: Status = "not started"
    info: RunInfo | None = None
    """What was known at the start; `None` before the first epoch."""
    epochs: tuple[EpochSummary, ...] = ()
    startup_seconds: float | None = None
    """From `on_train_begin` to the first `on_epoch_begin`."""
    wall_seconds: float | None = None
    """From `on_train_begin` to `on_train_end`; `None` while the run goes on."""
    records_dropped: int = 0
    """Chunks of steps, or epochs, that were not written because the disk didn't keep up."""
    devices: Devices = field(default_factory=Devices)
    """Of the newest `fit`, whose epochs' `gpus` have the positions in it. A continued run may have had others."""
    notes: tuple[str, ...] = ()
    """What is not measured, and why; what failed."""

    def to_json(self) -> str:
        """The report as JSON.

        Returns:
            An object with `schema_version`, the fields of this class and `start_step`; an array `epochs` of at most
            1,000 objects, the first and the newest ones. What is not measured is `null`. Where single GPUs would
            be in it more than 1,600 times, epochs in between have an empty array `gpus` and a note that says so.
            Numbers in `gpus` and `host` are rounded to 5 digits.
        """
        kept = _ends(self.epochs, EPOCHS_IN_JSON)
        most_gpus = max((len(epoch.gpus) for epoch in kept), default=0)
        detailed = {id(epoch) for epoch in _ends(kept, GPUS_IN_JSON // max(most_gpus, 1))}
        head = {
            "schema_version": SCHEMA_VERSION,
            "keras_gpu_watch": __version__,
            "status": self.status,
            "start_step": None if self.info is None else self.info.start_step,
            "info": None if self.info is None else dataclasses.asdict(self.info),
            "startup_seconds": self.startup_seconds,
            "wall_seconds": self.wall_seconds,
            "records_dropped": self.records_dropped,
            "devices": dataclasses.asdict(self.devices),
            "notes": list(self.notes),
            "epochs_total": len(self.epochs),
        }
        epochs = ",\n".join(_epoch_json(_Key(epoch, id(epoch) in detailed)) for epoch in kept)
        return json.dumps(head, allow_nan=False)[:-1] + f', "epochs": [\n{epochs}]}}\n'


def report_from_json(text: str, step: int) -> RunReport:
    """What an earlier report says of the run up to some step.

    Args:
        text: What `to_json` gave, perhaps of another version.
        step: Optimizer iteration at which the run is continued: what came after it is done again.

    Returns:
        A report with those epochs and times; an empty one if the text is not a report of this schema.
    """
    try:
        data = json.loads(text)
        if data["schema_version"] != SCHEMA_VERSION:
            return RunReport()
        epochs = tuple(_epoch(**fields) for fields in data["epochs"])
        kept = tuple(epoch for epoch in epochs if epoch.last_step is not None and epoch.last_step <= step)
        startup = data["startup_seconds"] or 0.0
        return RunReport(
            info=RunInfo(**data["info"]),
            epochs=kept,
            startup_seconds=startup,
            # A run that was killed could not write its own, and what is done again counts once.
            wall_seconds=startup + sum(epoch.wall_seconds for epoch in kept),
            devices=_devices(**data["devices"]) if "devices" in data else Devices(),
        )
    except (ValueError, TypeError, KeyError):
        return RunReport()


def _ends(epochs: tuple[EpochSummary, ...], limit: int) -> tuple[EpochSummary, ...]:
    """The first tenth of `limit` epochs, and the newest."""
    return epochs if len(epochs) <= limit else epochs[: limit // 10] + epochs[limit // 10 - limit :]


@dataclass(frozen=True, slots=True, eq=False)
class _Key:
    """One epoch and no equal one: comparing a thousand epochs of eight GPUs would take 0.1 s at each epoch's end."""

    epoch: EpochSummary
    has_gpus: bool

    def __hash__(self) -> int:
        return id(self.epoch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.epoch is other.epoch and self.has_gpus == other.has_gpus


@functools.lru_cache(maxsize=2 * EPOCHS_IN_JSON)
def _epoch_json(key: _Key) -> str:
    epoch = key.epoch
    if epoch.gpus and not key.has_gpus:
        epoch = dataclasses.replace(epoch, gpus=(), notes=(*epoch.notes, GPUS_LEFT_OUT))
    data = dataclasses.asdict(epoch)
    data.update(gpus=_rounded(data["gpus"]), host=_rounded(data["host"]))
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return float(f"{value:.{SAMPLE_DIGITS}g}") if isinstance(value, float) else value


def _epoch(
    estimated: list[str],
    notes: list[str],
    gpus: Iterable[dict[str, Any]] = (),
    host: dict[str, Any] | None = None,
    **fields: Any,
) -> EpochSummary:
    return EpochSummary(
        **fields,
        gpus=tuple(GpuSummary(**_with_distributions(**gpu)) for gpu in gpus),
        host=None if host is None else HostSummary(**_with_distributions(**host)),
        estimated=tuple(estimated),
        notes=tuple(notes),
    )


def _with_distributions(**fields: Any) -> dict[str, Any]:
    return {name: Distribution(**value) if isinstance(value, dict) else value for name, value in fields.items()}


def _devices(gpus: list[dict[str, Any]], host: dict[str, Any] | None, **fields: Any) -> Devices:
    return Devices(
        **fields,
        gpus=tuple(GpuDevice(**_with_reasons(**gpu)) for gpu in gpus),
        host=None if host is None else HostDevice(**_with_reasons(**host)),
    )


def _with_reasons(unavailable: list[list[str]], **fields: Any) -> dict[str, Any]:
    return {**fields, "unavailable": tuple((name, reason) for name, reason in unavailable)}
