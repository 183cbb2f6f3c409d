# SPDX-License-Identifier: Apache-2.0
"""Applies all rules to an epoch, or to a run, and chooses the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keras_gpu_watch.diagnosis.all_rules import RULES, RUN_RULES
from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.diagnosis.pooling import pool
from keras_gpu_watch.diagnosis.rule import Rule
from keras_gpu_watch.diagnosis.rules.compute import COMPUTE_SHARE
from keras_gpu_watch.diagnosis.thresholds import LIMITS
from keras_gpu_watch.diagnosis.waiting import with_waiting_stages
from keras_gpu_watch.findings import Verdict
from keras_gpu_watch.records import EpochSummary, RunInfo
from keras_gpu_watch.samples import Devices


def diagnose(
    epochs: Sequence[EpochSummary], devices: Devices, info: RunInfo | None
) -> tuple[Verdict, tuple[Verdict, ...]]:
    """Say why the newest epoch did not go faster.

    Args:
        epochs: All epochs so far, the newest last; at least one.
        devices: The machine.
        info: What was known when the run began; `None`: nothing.

    Returns:
        The verdict, and what else costs time, the greatest loss first.
    """
    context = Context(epoch=epochs[-1], earlier=tuple(epochs[:-1]), devices=devices, info=info)
    # The first epoch can only be compared once the second one is over.
    found = _found((*RULES, *RUN_RULES) if len(epochs) == 2 else RULES, context)
    return found[0], tuple(found[1:])


def mark_waiting(
    summary: EpochSummary, earlier: Sequence[EpochSummary], devices: Devices, info: RunInfo | None
) -> EpochSummary:
    """Say of each stage of an epoch's pipeline whether it computes or waits for something else.

    Args:
        summary: The epoch, its stages measured.
        earlier: Those before it.
        devices: The machine.
        info: What was known when the run began; `None`: nothing.
    """
    context = Context(epoch=summary, earlier=tuple(earlier), devices=devices, info=info)
    return replace(summary, pipeline=with_waiting_stages(context))


def diagnose_run(epochs: Sequence[EpochSummary], devices: Devices, info: RunInfo | None) -> Verdict | None:
    """Say why a whole run did not go faster.

    Its epochs are judged as one, so that short ones give enough steps together. The first one, with its cold caches and
    its compiling, is left out where the others suffice.

    Args:
        epochs: All epochs, the newest last.
        devices: The machine.
        info: What was known when the run began; `None`: nothing.

    Returns:
        The verdict; `None` without any epoch.
    """
    # An epoch that was broken off before its first step says nothing.
    epochs = [each for each in epochs if each.steps] or epochs
    if not epochs:
        return None
    first, later = tuple(epochs[:1]), epochs[1:]
    if not later:
        return diagnose(epochs, devices, info)[0]
    suffice = sum(each.steady_steps for each in later) >= LIMITS.min_steady_steps
    judged = tuple(later if suffice else epochs)
    context = Context(epoch=pool(judged), parts=judged, earlier=first, devices=devices, info=info)
    if not suffice:
        return _found(RULES, context)[0]
    verdict = _found(RULES, context)[0]
    # Nothing to change in the later epochs, and most of the run's time went to the first one: that is the run's story.
    notes = [note for note in _found(RUN_RULES, context) if (note.lost_share or 0.0) >= LIMITS.explained_share]
    return notes[0] if notes and verdict.severity == "info" else verdict


def _found(rules: Sequence[Rule], context: Context) -> list[Verdict]:
    found = [verdict for rule in rules if (verdict := rule.find(context)) is not None]
    return sorted(found, key=_rank)


def _rank(verdict: Verdict) -> tuple[bool, float]:
    """Notes come last. The greatest loss comes first; a compute-bound epoch counts with its compute."""
    weight = verdict.lost_share or 0.0
    if verdict.kind == "compute_bound":
        weight = verdict.evidence.get(COMPUTE_SHARE, weight)
    return verdict.severity == "info", -weight
