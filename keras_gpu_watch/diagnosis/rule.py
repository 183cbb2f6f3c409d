# SPDX-License-Identifier: Apache-2.0
"""A rule: when a kind of verdict holds, and which of its causes.

The words of a rule stand beside its code; docs/verdicts.md is made from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from keras_gpu_watch.diagnosis.context import Context
from keras_gpu_watch.findings import Kind, Stage, Suggestion, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a cause adds to a verdict."""

    clause: str = ""
    """Part of the headline."""
    suggestions: tuple[Suggestion, ...] = ()
    evidence: dict[str, float] = field(default_factory=dict)
    name: str | None = None
    """The cause where its name depends on the epoch, as `"callback:ModelCheckpoint"`."""
    stage: Stage | None = None
    """The stage to blame, where it is another one than the rule's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason for a kind of verdict."""

    name: str | None
    """`None`: the kind is certain, its cause is not."""
    when: str
    remedy: str
    find: Callable[[Context], Found | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of verdict, or the kinds that share a measure, with the causes in the order in which they are tried."""

    kinds: tuple[Kind, ...]
    when: str
    judge: Callable[[Context], Verdict | None]
    """Kind, severity, headline, evidence and lost share; `None`: not the case."""
    causes: tuple[Cause, ...] = ()

    def find(self, context: Context) -> Verdict | None:
        """The verdict with its cause, or `None`.

        Args:
            context: The epoch.
        """
        verdict = self.judge(context)
        if verdict is None:
            return None
        for cause in self.causes:
            found = cause.find(context)
            if found is not None:
                return _joined(verdict, cause, found)
        return verdict


def _joined(verdict: Verdict, cause: Cause, found: Found) -> Verdict:
    stage = found.stage
    return replace(
        verdict,
        cause=found.name or cause.name,
        stage=verdict.stage if stage is None else stage.label,
        stage_index=verdict.stage_index if stage is None else stage.index,
        headline=verdict.headline + (f"; {found.clause}" if found.clause else ""),
        evidence={**verdict.evidence, **found.evidence},
        suggestions=found.suggestions,
    )
