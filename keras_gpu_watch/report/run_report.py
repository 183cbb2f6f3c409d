# SPDX-License-Identifier: Apache-2.0
"""`RunReport`: everything that is known of a run, as plain data and as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from keras_gpu_watch._version import __version__
from keras_gpu_watch.findings import Stage, Verdict
from keras_gpu_watch.knobs import TuningSummary
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.report.json_form import EpochForm, epoch_json, finding_json, read_record
from keras_gpu_watch.samples import Devices
from keras_gpu_watch.tags import SCHEMA_VERSION

EPOCHS_IN_JSON = 1000
"""The JSON form keeps the first and the newest epochs of a longer run, so that rewriting it stays cheap."""
GPUS_IN_JSON = 1600
"""Likewise the statistics of single GPUs, of which eight GPUs have that many in 200 epochs."""
DETAILED_EPOCHS = 50
"""Epochs whose pipeline, callbacks and suggestions are in the JSON form: the first ten and the newest."""
STAGES_IN_JSON = 3000
"""Likewise stages, of which pipelines of more than 60 have that many in fewer epochs."""

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
    verdict: Verdict | None = None
    """Of the run; `None` before the first epoch's end."""
    tuning: TuningSummary | None = None
    """What the tuner tried and found in the newest `fit`; `None` without `autotune`."""
    devices: Devices = field(default_factory=Devices)
    """Of the newest `fit`, whose epochs' `gpus` have the positions in it. A continued run may have had others."""
    notes: tuple[str, ...] = ()
    """What is not measured, and why; what failed."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the input pipeline, as they were in the newest epoch of which they are known."""
        pipelines = (epoch.pipeline for epoch in reversed(self.epochs))
        return next((pipeline.stages for pipeline in pipelines if pipeline is not None and pipeline.stages), ())

    def to_json(self) -> str:
        """The report as JSON.

        Returns:
            An object with `schema_version`, the fields of this class and `start_step`; an array `epochs` of at most
            1,000 objects, the first and the newest ones. What is not measured is `null`. Where single GPUs would
            be in it more than 1,600 times, epochs in between have an empty array `gpus` and a note that says so.
            Likewise pipeline, callbacks, typical steps, suggestions and further verdicts are those of 50 epochs,
            or fewer if these have more than 3,000 stages. Numbers in all of these are rounded to 5 digits.
        """
        kept = _ends(self.epochs, EPOCHS_IN_JSON)
        most_gpus = max((len(epoch.gpus) for epoch in kept), default=0)
        with_gpus = {id(epoch) for epoch in _ends(kept, GPUS_IN_JSON // max(most_gpus, 1))}
        most_stages = max((len(epoch.pipeline.stages) for epoch in kept if epoch.pipeline is not None), default=0)
        detailed_epochs = min(DETAILED_EPOCHS, max(STAGES_IN_JSON // max(most_stages, 1), 1))
        detailed = {id(epoch) for epoch in _ends(kept, detailed_epochs, first=detailed_epochs // 5)}
        head = {
            "schema_version": SCHEMA_VERSION,
            "keras_gpu_watch": __version__,
            "status": self.status,
            "start_step": None if self.info is None else self.info.start_step,
            "info": None if self.info is None else dataclasses.asdict(self.info),
            "startup_seconds": self.startup_seconds,
            "wall_seconds": self.wall_seconds,
            "records_dropped": self.records_dropped,
            "verdict": None if self.verdict is None else finding_json(dataclasses.asdict(self.verdict)),
            "tuning": None if self.tuning is None else finding_json(dataclasses.asdict(self.tuning)),
            "devices": dataclasses.asdict(self.devices),
            "notes": list(self.notes),
            "epochs_total": len(self.epochs),
        }
        forms = (EpochForm(epoch, id(epoch) in with_gpus, id(epoch) in detailed) for epoch in kept)
        epochs = ",\n".join(epoch_json(form) for form in forms)
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
        return _read_report(data, step) if data["schema_version"] == SCHEMA_VERSION else RunReport()
    except (ValueError, TypeError, KeyError, RecursionError):
        return RunReport()


def _read_report(data: dict[str, Any], step: int) -> RunReport:
    epochs = tuple(read_record(EpochSummary, fields) for fields in data["epochs"])
    kept = tuple(epoch for epoch in epochs if epoch.last_step is not None and epoch.last_step <= step)
    startup = data["startup_seconds"] or 0.0
    verdict = data.get("verdict")
    return RunReport(
        info=read_record(RunInfo, data["info"]),
        epochs=kept,
        startup_seconds=startup,
        # A run that was killed could not write its own, and what is done again counts once.
        wall_seconds=startup + sum(epoch.wall_seconds for epoch in kept),
        # It is about all of them.
        verdict=read_record(Verdict, verdict) if verdict is not None and len(kept) == len(epochs) else None,
        devices=read_record(Devices, data["devices"]) if "devices" in data else Devices(),
    )


def earlier_report(known: RunReport, run_dir: str | None, text: str | None, step: int) -> RunReport:
    """What is known of the run that is continued in a directory; an empty report where a run is begun.

    Args:
        known: The report of this callback's earlier `fit`.
        run_dir: The directory; `None` where nothing can be written, so that nothing is continued.
        text: The report that was found there, as JSON; `None` if there was none.
        step: Optimizer iteration at which the run is continued.
    """
    if run_dir is not None and known.info is not None and known.info.run_dir == run_dir:
        return known
    return report_from_json(text or "", step)


def _ends(epochs: tuple[EpochSummary, ...], limit: int, first: int | None = None) -> tuple[EpochSummary, ...]:
    """The first epochs, a tenth of `limit` unless told otherwise, and the newest."""
    head = limit // 10 if first is None else first
    return epochs if len(epochs) <= limit else epochs[:head] + epochs[head - limit :]
