# SPDX-License-Identifier: Apache-2.0
"""Time on the training's own thread between steps and after them: callbacks, progress bar, logging."""

from __future__ import annotations

from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.rule import Cause, Found, Rule
from keras_gpu_watch.diagnosis.rules import python_code
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.wording import duration, percent
from keras_gpu_watch.findings import CallbackSeconds, Severity, Suggestion, Verdict
from keras_gpu_watch.records import EpochSummary

_PROGRESS_BAR = "ProgbarLogger"
_SPARING: dict[str, tuple[str, str | None]] = {
    "TensorBoard": (
        "let TensorBoard write once an epoch, without profiling",
        'keras.callbacks.TensorBoard(log_dir, update_freq="epoch", profile_batch=0)',
    ),
    "ModelCheckpoint": (
        "save less often, or weights only",
        "keras.callbacks.ModelCheckpoint(path, save_weights_only=True, save_freq=batches)",
    ),
    "BackupAndRestore": (
        "back up less often",
        'keras.callbacks.BackupAndRestore(backup_dir, save_freq="epoch")',
    ),
    _PROGRESS_BAR: ("print one line an epoch instead of a progress bar", "model.fit(ds, verbose=2)"),
}
"""What to write for Keras's own callbacks."""


def begin_seconds(epoch: EpochSummary) -> float:
    """Time of callbacks in `on_epoch_begin`, as far as it is certain: more than what follows the last step."""
    hooks = sum(each.epoch_seconds for each in epoch.callbacks)
    return min(max(0.0, hooks - epoch.epoch_end_seconds), epoch.first_batch_seconds)


def host_seconds(context: Context) -> float:
    """All host time that there are enough steps, or seconds, to speak of."""
    between_steps = context.epoch.host_seconds if context.has_steps else 0.0
    around_steps = context.epoch.epoch_end_seconds + begin_seconds(context.epoch)
    return between_steps + (around_steps if context.has_seconds else 0.0)


def is_host_bound(context: Context) -> bool:
    """Whether the host time is much of the steps, or of the epoch."""
    share_of_steps = context.host_share if context.has_steps else 0.0
    return max(share_of_steps, context.share_of_wall(host_seconds(context))) >= LIMITS.host_share


def judge(context: Context) -> Verdict | None:
    """Host time by its share."""
    if not is_host_bound(context):
        return None
    epoch, seconds = context.epoch, host_seconds(context)
    share = context.share_of_wall(seconds)
    severity: Severity = "critical" if share >= LIMITS.high_host_share else "warning"
    return Verdict(
        kind="host_bound",
        severity=severity,
        headline=f"Host-bound: {duration(seconds)} of {duration(epoch.wall_seconds)} pass between steps and after "
        "the last one",
        evidence={
            "host_seconds": epoch.host_seconds,
            "epoch_end_seconds": epoch.epoch_end_seconds,
            "host_share": share,
            "host_share_of_steps": context.host_share,
            **{f"{each.name}_seconds": _of_host(each) for each in epoch.callbacks if _of_host(each) > 0},
        },
        lost_share=share,
    )


def callback(context: Context) -> Found | None:
    """Callbacks explain the time; the slowest is named."""
    slowest = _slowest(context)
    if slowest is None or slowest.name == _PROGRESS_BAR:
        return None
    return _found(context, slowest, f"callback:{slowest.name}")


def progress_bar(context: Context) -> Found | None:
    """Keras's progress bar is the slowest callback."""
    slowest = _slowest(context)
    return None if slowest is None or slowest.name != _PROGRESS_BAR else _found(context, slowest, None)


def python_lock(context: Context) -> Found | None:
    """Other threads hold the interpreter lock, which everything between two steps needs."""
    if not python_code.lock_is_held(context):
        return None
    return Found(
        clause="Python code in other threads holds the interpreter lock, and the training's own thread waits for it",
        evidence={"interpreter_held_share": context.lock_share or 0.0},
        suggestions=(
            Suggestion(
                what="take Python code out of the input pipeline, or run it in other processes",
                why="each process has an interpreter lock of its own; threads share one",
                code="data = YourPyDataset(workers=2, use_multiprocessing=True)  # a keras.utils.PyDataset",
            ),
        ),
    )


def unknown(context: Context) -> Found:
    """No callback explains it: Keras's own loop, and what user code does between steps."""
    if context.info is not None and context.info.steps_per_execution > 1:
        return Found(clause="no callback explains it")
    return Found(
        clause="no callback explains it",
        suggestions=(
            Suggestion(
                what="run several batches in each call of the train function",
                why="Keras's own work between two calls is then done once for all of them",
                code="model.compile(optimizer, loss, steps_per_execution=16)",
                expected_speedup=context.speedup_without(context.epoch.host_seconds),
            ),
        ),
    )


def _found(context: Context, slowest: CallbackSeconds, name: str | None) -> Found:
    seconds = _of_host(slowest)
    what, code = _SPARING.get(slowest.name.split(" ")[0], (f"let {slowest.name} do its work less often", None))
    return Found(
        name=name,
        clause=f"{duration(seconds)} of them in {slowest.name}",
        suggestions=(
            Suggestion(
                what=what,
                why="callbacks run on the training's own thread, and the next step waits for them",
                code=code,
                expected_speedup=context.speedup_without(seconds),
            ),
        ),
    )


def _slowest(context: Context) -> CallbackSeconds | None:
    callbacks = context.epoch.callbacks
    if sum(_of_host(each) for each in callbacks) < LIMITS.explained_share * host_seconds(context):
        return None
    return max(callbacks, key=_of_host, default=None)


def _of_host(seconds: CallbackSeconds) -> float:
    return seconds.step_seconds + seconds.epoch_seconds


RULE = Rule(
    kinds=("host_bound",),
    when=(
        f"At least {percent(LIMITS.host_share)} of the steps' time pass between them, or as much of the epoch "
        f"between and after them. Between steps with at least {LIMITS.min_steady_steps} steady ones; after them in "
        f"epochs of {LIMITS.min_wall_seconds:.0f} s or more."
    ),
    judge=judge,
    causes=(
        Cause(
            name="callback:<name>",
            when=f"Callbacks are at least {percent(LIMITS.explained_share)} of it; the slowest is named.",
            remedy="Its work less often, or less of it.",
            find=callback,
        ),
        Cause(
            name="progress_bar",
            when="The slowest is Keras's progress bar.",
            remedy="`verbose=2`.",
            find=progress_bar,
        ),
        Cause(
            name="python_lock",
            when=(
                "Callbacks don't explain it, and Python code in other threads holds the interpreter lock at least "
                f"{LIMITS.interpreter_busy_percent:.0f} % of the time besides."
            ),
            remedy="No Python code in the pipeline, or other processes for it.",
            find=python_lock,
        ),
        Cause(
            name=None,
            when="Nor does that.",
            remedy="`steps_per_execution`, so that it is done for several batches at once.",
            find=unknown,
        ),
    ),
)
