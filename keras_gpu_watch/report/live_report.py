# SPDX-License-Identifier: Apache-2.0
"""The report of a run under way: several threads change it, and it can be read at any time."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

from keras_gpu_watch.report.run_report import RunReport, earlier_report


class LiveReport:
    """Holds the newest `RunReport`.

    Args:
        earlier: The report that this one continues, if its files are continued; an empty one otherwise.
    """

    def __init__(self, earlier: RunReport | None = None) -> None:
        self.newest = RunReport()
        self._earlier = earlier or RunReport()
        self._lock = threading.Lock()

    @property
    def earlier_run_dir(self) -> str | None:
        """Where the files of the earlier `fit` are."""
        return None if self._earlier.info is None else self._earlier.info.run_dir

    def continue_run(self, run_dir: str | None, text: str | None, step: int) -> int:
        """Take over what is known of the run in a directory.

        Args:
            run_dir: The directory; `None` where nothing can be written.
            text: The report that was found there, as JSON; `None` if there was none.
            step: Optimizer iteration at which it is continued.

        Returns:
            Optimizer iteration at which the run began.
        """
        self._earlier = earlier_report(self._earlier, run_dir, text, step)
        self.update(epochs=self._earlier.epochs)
        return step if self._earlier.info is None else self._earlier.info.start_step

    def note_startup(self, seconds: float) -> None:
        """Note the time from `on_train_begin` to the first epoch; that of what is continued is added."""
        self.update(startup_seconds=(self._earlier.startup_seconds or 0.0) + seconds)

    def note_wall(self, seconds: float) -> None:
        """Note the time from `on_train_begin` to the end; that of what is continued is added."""
        self.update(wall_seconds=(self._earlier.wall_seconds or 0.0) + seconds)

    def update(self, **changes: Any) -> None:
        """Change some fields."""
        with self._lock:
            self.newest = dataclasses.replace(self.newest, **changes)

    def add_note(self, text: str) -> bool:
        """Add a note; `False` if it was there already."""
        with self._lock:
            if text in self.newest.notes:
                return False
            self.newest = dataclasses.replace(self.newest, notes=(*self.newest.notes, text))
        return True
