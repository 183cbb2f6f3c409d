# SPDX-License-Identifier: Apache-2.0
"""All outputs of one run: the console at once, the files from a background thread."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras_gpu_watch.guard import Guard, logger
from keras_gpu_watch.records import EpochSummary, StepArray, WatchOptions
from keras_gpu_watch.samples import GpuSamples, HostSamples
from keras_gpu_watch.sinks.console import ConsoleSink, Draw
from keras_gpu_watch.sinks.fanout import BackgroundFanout
from keras_gpu_watch.sinks.sink import Sink
from keras_gpu_watch.tags import REPORT_FILE

if TYPE_CHECKING:
    from keras_gpu_watch.sinks.json_report import JsonReport

CONSOLE = "console output"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Where a run's files go."""

    run_dir: str | None
    """`None` when nothing can be written."""
    resumed: bool = False
    earlier_report: str | None = None
    """The report of the run that is continued."""


class Outputs:
    """Opens, feeds and closes the sinks of one run.

    Args:
        options: What the user asked for.
        worker: This process's number in a multi-worker job; `None` when it is alone.
        guard: Catches our own failures.
        on_tick: Called from the background thread about twice a second.
        note: Takes a sentence for the report.
        draw: Gives the picture of an epoch, for the console.
    """

    def __init__(
        self,
        options: WatchOptions,
        worker: int | None,
        guard: Guard,
        on_tick: Callable[[], None],
        note: Callable[[str], None],
        draw: Draw | None = None,
    ) -> None:
        self._options = options
        self._worker = worker
        self._guard = guard
        self._on_tick = on_tick
        self._note = note
        self._console = ConsoleSink(options.console, draw)
        self._files: BackgroundFanout | None = None
        self._report: JsonReport | None = None

    @property
    def dropped(self) -> int:
        """Chunks of steps, samples, or epochs that were not written because the disk didn't keep up."""
        return 0 if self._files is None else self._files.dropped

    def open(self, start_step: int, previous: str | None) -> RunFiles:
        """Find the run's directory and start writing.

        Args:
            start_step: Optimizer iterations done so far.
            previous: The directory that this callback used in an earlier `fit`.

        Returns:
            Where the files are. A directory that can't be written is one warning, no error.
        """
        sinks: dict[str, Sink] = {}
        try:
            files = self._open_files(start_step, previous, sinks)
        except OSError as error:
            files = RunFiles(None)
            self.warn(f"nothing is written, because {self._options.log_dir!r} can't be used as log_dir: {error}")
        # The thread runs without files too: it is the one that notices an interrupted `fit`.
        self._files = BackgroundFanout(sinks, self._guard, self._on_tick, on_write_error=self._note)
        try:
            self._files.start()
        except RuntimeError as error:
            # The files are then written when the run ends.
            self._note(f"the writer could not be started: {error}")
        return files

    def begin(self, report_json: str) -> None:
        """Put the first report down at once, so that a run that is killed early can be continued."""
        if self._report is not None:
            # A directory that can't be written is noticed, and said, by the sinks.
            with suppress(OSError):
                self._report.begin(report_json)

    def steps(self, chunk: StepArray) -> None:
        """Write some steps."""
        if self._files is not None:
            self._files.steps(chunk)

    def samples(self, gpus: GpuSamples, host: HostSamples) -> None:
        """Write some samples; may be called from another thread than the rest."""
        if self._files is not None:
            self._files.samples(gpus, host)

    def epoch(self, summary: EpochSummary, report_json: str) -> None:
        """Print and write an epoch."""
        with self._guard(CONSOLE):
            self._console.epoch(summary, report_json)
        if self._files is not None:
            self._files.epoch(summary, report_json)

    def say(self, text: str) -> None:
        """Print a sentence, each one once."""
        with self._guard(CONSOLE):
            self._console.note(text)

    def tell(self, lines: Sequence[str]) -> None:
        """Print some lines, also if they were printed before."""
        with self._guard(CONSOLE):
            self._console.tell(lines)

    def warn(self, sentence: str) -> None:
        """Note a sentence, and warn the user of it."""
        self._note(sentence)
        try:
            warnings.warn(f"keras-gpu-watch: {sentence}", RuntimeWarning, stacklevel=2)
        except Warning as warning:
            # Warnings were made errors; this one must not end the training.
            logger.warning("%s", warning)

    def close(self, report_json: str) -> None:
        """Finish the files, end the thread, print the table."""
        if self._files is not None:
            self._files.close(report_json)
        with self._guard(CONSOLE):
            self._console.close(report_json)

    def _open_files(self, start_step: int, previous: str | None, sinks: dict[str, Sink]) -> RunFiles:
        # Here, because with another backend than TensorFlow this package must not load it.
        from keras_gpu_watch.sinks import storage
        from keras_gpu_watch.sinks.json_report import JsonReport
        from keras_gpu_watch.sinks.run_dir import choose_run_dir
        from keras_gpu_watch.sinks.tensorboard_events import TensorBoardEvents

        options = self._options
        run_dir, resumed = choose_run_dir(options.log_dir, start_step, self._worker, previous)
        path = storage.join(run_dir, REPORT_FILE)
        earlier = None
        if resumed:
            with suppress(OSError, ValueError):
                earlier = storage.read_text(path)
        self._report = JsonReport(run_dir)
        sinks["TensorBoard file"] = TensorBoardEvents(run_dir, options.update_freq, start_step, resumed)
        sinks[REPORT_FILE] = self._report
        return RunFiles(run_dir, resumed, earlier)
