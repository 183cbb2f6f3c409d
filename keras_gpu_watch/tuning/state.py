# SPDX-License-Identifier: Apache-2.0
"""The states of the tuner, and how it comes from one to another."""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where the tuner stands.

    | from | on | to |
    | --- | --- | --- |
    | `OFF` | `begin` | `OBSERVING` |
    | `OBSERVING` | an epoch that can be judged: input-bound, and there is something to try | `TRYING` |
    | `OBSERVING` | an epoch that can be judged, otherwise | `SETTLED` |
    | `TRYING` | an epoch that can be judged, and there is something else to try | `TRYING` |
    | `TRYING` | an epoch that can be judged, but was too short for a look at the stages | `OBSERVING` |
    | `TRYING` | an epoch that can be judged, and nothing is left to try | `SETTLED` |
    | `TRYING` | too many epochs in a row that can't be judged | `SETTLED` |
    | `TRYING` | an epoch whose iterator is still the one from before | `WAITING` |
    | `WAITING` | an epoch that ran with the settings, or `begin` | `TRYING` |
    | `SETTLED` | two epochs in a row that wait more for input than when it settled | `OBSERVING` |
    | any | the process takes more memory than allowed | `SETTLED` |
    | any | `failed` | `OFF` |
    """

    OFF = "off"
    OBSERVING = "observing"
    TRYING = "trying"
    WAITING = "waiting"
    SETTLED = "settled"
