# SPDX-License-Identifier: Apache-2.0
"""docs/verdicts.md, made from the rules' own words and numbers."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence

from keras_gpu_watch.diagnosis.all_rules import RULES, RUN_RULES
from keras_gpu_watch.diagnosis.rule import Cause, Rule
from keras_gpu_watch.diagnosis.thresholds import LIMITS

_WIDTH = 120
_INTRODUCTION = """\
# Verdicts

Made from the rules in `keras_gpu_watch/diagnosis/`; don't edit.

Each epoch, and the run as a whole, gets a verdict: a *kind*, a *cause*, the stage to blame, the numbers that say so
(`evidence`), and what to change. Every rule looks at the same account. Each finding has a `lost_share`: the share of
the wall time that its cure could give back at most. The finding that loses most is the verdict, the others are listed
after it; notes (`info`) come last. A verdict names what the time was lost to. It is a symptom, well measured, and not a
proof.

Shares of the input wait are measured, never concluded from "the CPU is busy and the GPU is not". What is not measured
is not taken for zero: a rule that needs it does not fire.

For input, `ceiling_speedup` says how many times faster the steps would go if input were free. No suggestion promises
more.
"""


def verdicts_markdown() -> str:
    """The page.

    Returns:
        Markdown: all kinds with their rules, causes and remedies, and all numbers with their sources.
    """
    sections = [_section(rule) for rule in (*RULES, *RUN_RULES)]
    return "\n".join([_INTRODUCTION, *sections, _numbers()])


def _section(rule: Rule) -> str:
    title = ", ".join(f"`{kind}`" for kind in rule.kinds)
    body = _table(("Cause", "When", "Remedy"), [_row(cause) for cause in rule.causes])
    # Several rules may give a kind. One with a single cause says all about it itself.
    if len(rule.causes) == 1:
        title += f": `{rule.causes[0].name}`"
        body = [f"Remedy: {rule.causes[0].remedy}"]
    return "\n".join([f"## {title}", "", textwrap.fill(rule.when, _WIDTH), "", *body, ""])


def _row(cause: Cause) -> tuple[str, str, str]:
    return (f"`{cause.name}`" if cause.name else "none", cause.when, cause.remedy)


def _numbers() -> str:
    rows = [
        (f"`{each.name}`", f"{getattr(LIMITS, each.name):.4g}", each.metadata["source"])
        for each in dataclasses.fields(LIMITS)
    ]
    return "\n".join(["## Numbers", "", *_table(("Limit", "Value", "Source, or reason"), rows), ""])


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [header, tuple("---" for _ in header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
