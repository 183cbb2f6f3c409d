# SPDX-License-Identifier: Apache-2.0
"""`GPUWatch`: the Keras callback. Each hook is one line to the session."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from keras_gpu_watch.records import WatchOptions
from keras_gpu_watch.report.run_report import RunReport
from keras_gpu_watch.session import Session
from keras_gpu_watch.tuning import AutoTune

SHORTEST_GPU_INTERVAL_SECONDS = 0.1


class GPUWatch(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells where every second of training goes, and what it costs to wait for input.

    Works on whatever `fit` takes. `tf.data` datasets, NumPy arrays and generators are timed as they are;
    `fit(watch(dataset))` times each batch inside the pipeline. Where something can't be measured, the report says
    what and why; training goes on as if the callback were not there.

    Example:
    ```python
    model.fit(dataset, epochs=5, callbacks=[GPUWatch("logs")])
    ```

    Then `tensorboard --logdir logs` shows the scalars of run `gpu_watch`.

    Args:
        log_dir: String or path. Directory that TensorBoard is pointed at; `~` is expanded and `gs://` works. The run's
            files go to `gpu_watch` inside it, or to `gpu_watch-2`, ... for further trainings from scratch.
            Defaults to `"logs"`.
        autotune: Boolean or `AutoTune`. Whether to tune the input pipeline between epochs (an `AutoTune` sets limits);
            only `fit(watch(dataset), ...)` can be tuned. Elements and their order stay. Defaults to `False`.
        update_freq: `"batch"`, `"epoch"` or a positive integer. How often step scalars are written: for each
            step, not at all, or the mean of every so many steps. Epochs are always written. Defaults to `"batch"`.
        gpu_interval: Number, at least 0.1. Seconds between two samples of the GPUs (utilization, memory, power,
            ...); the host is sampled every 0.5 s. Defaults to `0.5`.
        console: Boolean. Whether to print one line an epoch and a table at the end. Defaults to `True`.

    Attributes:
        report: The `RunReport` of the latest `fit`.

    Raises:
        ValueError, TypeError: If an argument is not one of the above.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        *,
        autotune: bool | AutoTune = False,
        update_freq: str | int = "batch",
        gpu_interval: float = 0.5,
        console: bool = True,
    ) -> None:
        super().__init__()
        _check_arguments(log_dir, autotune, update_freq, gpu_interval, console)
        self._options = WatchOptions(
            log_dir=os.path.expanduser(os.fspath(log_dir)),
            update_freq=update_freq,
            console=console,
            gpu_interval_seconds=float(gpu_interval),
        )
        self._autotune = autotune if isinstance(autotune, AutoTune) else AutoTune() if autotune else None
        self._session = Session(self._options, self._autotune)

    def __getstate__(self) -> dict[str, Any]:
        # Tuners and pipelines copy their callbacks. A copy watches for itself.
        return {name: value for name, value in vars(self).items() if name != "_session"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session = Session(self._options, self._autotune)

    @property
    def report(self) -> RunReport:
        """Everything that is known of the latest `fit`, and of earlier ones that it continued."""
        return self._session.report

    def batches(self) -> NDArray[np.void]:
        """The newest steps of all `fit`s of this callback, at most 200,000.

        Returns:
            Structured array with one row a call of the train function; see `keras_gpu_watch.records.STEP_DTYPE` for
            its fields and their units. What is not known is NaN.
        """
        return self._session.recorder.run()

    def set_model(self, model: Any) -> None:
        """Take the model, and have the begin of its training noted."""
        super().set_model(model)
        self._session.join(self)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start a session, unless this kind of training is not measured yet."""
        self._session.finish("interrupted")
        self._session = Session(self._options, self._autotune, previous=self._session)
        reason = _why_not_measured(self.model)
        if reason is None:
            self._session.train_begin(self, self.model)
        else:
            self._session.decline(reason)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Close the account of the epoch before."""
        self._session.epoch_begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Follow a train function that was replaced within the epoch."""
        self._session.batch_begin()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Note the end of validation."""
        self._session.test_end()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the account of the run."""
        self._session.train_end()

    # tf_keras asks every callback these; Keras 3 has no such methods.
    def _implements_train_batch_hooks(self) -> bool:
        return False

    _implements_test_batch_hooks = _implements_train_batch_hooks
    _implements_predict_batch_hooks = _implements_train_batch_hooks


def _why_not_measured(model: Any) -> str | None:
    if not isinstance(model, keras.Model):
        kind = f"{type(model).__module__.partition('.')[0]} model"
        return f"nothing is measured: this is a {kind}, and only Keras 3 models are supported yet"
    if keras.backend.backend() != "tensorflow":
        return f"nothing is measured: the {keras.backend.backend()} backend is not supported yet, only tensorflow"
    return None


def _check_arguments(log_dir: Any, autotune: Any, update_freq: Any, gpu_interval: Any, console: Any) -> None:
    if not isinstance(log_dir, str | os.PathLike) or not isinstance(os.fspath(log_dir), str):
        _refuse(TypeError, "log_dir", log_dir, "a string or a path")
    if not isinstance(autotune, bool | AutoTune):
        _refuse(TypeError, "autotune", autotune, "True, False or an AutoTune")
    count = isinstance(update_freq, int) and not isinstance(update_freq, bool) and update_freq > 0
    if not count and update_freq not in ("batch", "epoch"):
        _refuse(ValueError, "update_freq", update_freq, '"batch", "epoch" or a positive integer')
    number = isinstance(gpu_interval, int | float) and not isinstance(gpu_interval, bool)
    if not number or not SHORTEST_GPU_INTERVAL_SECONDS <= gpu_interval < float("inf"):
        _refuse(ValueError, "gpu_interval", gpu_interval, "a number of seconds, at least 0.1")
    if not isinstance(console, bool):
        _refuse(TypeError, "console", console, "True or False")


def _refuse(kind: type[Exception], name: str, received: Any, expected: str) -> None:
    raise kind(f"Invalid value for argument `{name}`. Received: {name}={received!r}. Expected: {expected}.")
