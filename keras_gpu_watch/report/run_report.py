# SPDX-License-Identifier: Apache-2.0
"""`RunReport`: everything that is known of a run, as plain data and as JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from typing import Any, Literal

from keras_gpu_watch._version import __version__
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.tags import SCHEMA_VERSION

EPOCHS_IN_JSON = 1000
"""The JSON form keeps the first and the newest epochs of a longer run, so that rewriting it stays cheap."""

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
    notes: tuple[str, ...] = ()
    """What is not measured, and why; what failed."""

    def to_json(self) -> str:
        """The report as JSON.

        Returns:
            An object with `schema_version`, the fields of this class and `start_step`; an array `epochs` of at most
            1,000 objects, the first and the newest ones. What is not measured is `null`.
        """
        kept = self.epochs
        if len(kept) > EPOCHS_IN_JSON:
            kept = kept[: EPOCHS_IN_JSON // 10] + kept[EPOCHS_IN_JSON // 10 - EPOCHS_IN_JSON :]
        head = {
            "schema_version": SCHEMA_VERSION,
            "keras_gpu_watch": __version__,
            "status": self.status,
            "start_step": None if self.info is None else self.info.start_step,
            "info": None if self.info is None else dataclasses.asdict(self.info),
            "startup_seconds": self.startup_seconds,
            "wall_seconds": self.wall_seconds,
            "records_dropped": self.records_dropped,
            "notes": list(self.notes),
            "epochs_total": len(self.epochs),
        }
        epochs = ",\n".join(_epoch_json(summary) for summary in kept)
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
        epochs = tuple(_epoch(fields) for fields in data["epochs"])
        kept = tuple(epoch for epoch in epochs if epoch.last_step is not None and epoch.last_step <= step)
        startup = data["startup_seconds"] or 0.0
        return RunReport(
            info=RunInfo(**data["info"]),
            epochs=kept,
            startup_seconds=startup,
            # A run that was killed could not write its own, and what is done again counts once.
            wall_seconds=startup + sum(epoch.wall_seconds for epoch in kept),
        )
    except (ValueError, TypeError, KeyError):
        return RunReport()


def _epoch(fields: dict[str, Any]) -> EpochSummary:
    return EpochSummary(**{**fields, "estimated": tuple(fields["estimated"]), "notes": tuple(fields["notes"])})


@functools.lru_cache(maxsize=2 * EPOCHS_IN_JSON)
def _epoch_json(summary: EpochSummary) -> str:
    return json.dumps(dataclasses.asdict(summary), allow_nan=False)
