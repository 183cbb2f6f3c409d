# SPDX-License-Identifier: Apache-2.0
"""The tuner: from epoch to epoch it tries settings, keeps what is faster, and takes the rest back. Pure: no clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from keras_gpu_watch.findings import PipelineSummary
from keras_gpu_watch.knobs import Knobs, Tunable, TuningSummary
from keras_gpu_watch.tuning.evidence import Observation, why_not_judged
from keras_gpu_watch.tuning.limits import NUMBERS, AutoTune
from keras_gpu_watch.tuning.memory import MemoryWatch, halved
from keras_gpu_watch.tuning.rate import Rate
from keras_gpu_watch.tuning.room import Room
from keras_gpu_watch.tuning.stage_memory import StageMemory
from keras_gpu_watch.tuning.state import State
from keras_gpu_watch.tuning.strategy import Proposal, escalate, propose, trim
from keras_gpu_watch.tuning.trial_book import TrialBook
from keras_gpu_watch.tuning.wording import as_code, percent, rate_in_words, speedup

NOT_INPUT_BOUND = "the training does not wait for its input: there is nothing to tune"
NEXT_FIT = "this training reads one iterator for the whole fit: the new settings take effect at the next fit"

Step = Callable[[Observation, Knobs, Room], "Proposal | None"]


class Tuner:
    """Chooses the knobs of the next epoch.

    Args:
        limits: What the user allows.
    """

    def __init__(self, limits: AutoTune) -> None:
        self._limits = limits
        self._state = State.OFF
        self._headline = "nothing has been tried yet"
        self._room = Room(tunable=Tunable(shape=""))
        self._refused: list[Knobs] = []
        self._forget()

    def _forget(self) -> None:
        self._knobs = self._best = Knobs()
        self._best_rate: Rate | None = None
        self._written_rate: Rate | None = None
        self._baseline: Observation | None = None
        """The epoch with the best settings, from which the next ones follow."""
        self._proposal: Proposal | None = None
        self._book = TrialBook()
        self._memory = StageMemory()
        self._pipeline = PipelineSummary()
        self._epoch = 0
        self._rounds = 0
        """Trials since it began to observe."""
        self._unjudged = 0
        self._awakenings = 0
        self._settled_share = 0.0
        self._news = 0
        """Epochs in a row that wait more than when it settled."""
        self._memory_watch = MemoryWatch()

    @property
    def knobs(self) -> Knobs:
        """For the next epoch."""
        return self._knobs

    @property
    def shape(self) -> str:
        """The key of the pipeline that is tuned."""
        return self._room.tunable.shape

    @property
    def summary(self) -> TuningSummary:
        """What was tried, and what it came to."""
        written, best = self._written_rate, self._best_rate
        return TuningSummary(
            state=self._state.value,
            headline=self._headline,
            knobs=self._knobs,
            best=self._best,
            baseline_batches_per_second=None if written is None else written.batches_per_second,
            best_batches_per_second=None if best is None else best.batches_per_second,
            speedup=None if written is None or best is None else 1 + best.gain_over(written),
            trials=self._book.trials,
            exploration_seconds=self._book.cost_seconds,
            code=as_code(self._best, self._room.tunable, self._pipeline),
            fixed=self._room.tunable.fixed,
            max_memory_bytes=self._room.max_bytes,
        )

    def begin(self, tunable: Tunable, free_memory_bytes: float | None, saved: Knobs | None = None) -> list[str]:
        """Prepare for a `fit`.

        Args:
            tunable: Its pipeline. What was found in an earlier `fit` of one of the same shape is used again.
            free_memory_bytes: What the process may still take; `None`: not known.
            saved: The settings that an earlier run has kept.

        Returns:
            Lines for the console.
        """
        goes_on = self._state is not State.OFF and tunable.shape == self.shape
        if tunable.shape != self.shape:
            self._refused = []
        self._room = Room.within(self._limits, tunable, free_memory_bytes)
        if goes_on:
            self._unjudged = 0
            if self._state is State.WAITING:
                self._state = State.TRYING
            return []
        self._forget()
        self._state, self._headline = State.OBSERVING, "the first epochs are observed"
        return [] if saved is None else self._begin_from(saved)

    def judge(self, observation: Observation) -> list[str]:
        """Take note of an epoch, and choose the knobs of the next one.

        Args:
            observation: The epoch.

        Returns:
            Lines for the console, one for each decision.
        """
        self._epoch = observation.summary.epoch
        observation = self._memory.complete(observation)
        if observation.pipeline.stages:
            self._pipeline = observation.pipeline
        if self._state is State.OFF:
            return []
        lines = self._keep_memory_in_bounds(observation)
        if lines:
            return lines
        if self._state is State.OBSERVING:
            return self._observe(observation)
        return self._watch(observation) if self._state is State.SETTLED else self._compare(observation)

    def failed(self, reason: str) -> list[str]:
        """Go back to the user's own pipeline, and stay there for the rest of this `fit`.

        Args:
            reason: What went wrong, as a clause.

        Returns:
            Lines for the console.
        """
        if self._state is State.OFF:
            return []
        self._book.end(outcome="failed", reason=reason)
        self._refused.append(self._knobs)
        self._knobs = self._best = Knobs()
        self._best_rate, self._proposal, self._state = self._written_rate, None, State.OFF
        self._headline = f"your own pipeline was put back: {reason}"
        return [f"tuner: {self._headline}"]

    def _begin_from(self, saved: Knobs) -> list[str]:
        reason = self._room.why_not(saved)
        if reason is not None:
            return [f"tuner: the settings of an earlier run are not used: {reason}"]
        self._knobs = self._best = saved
        self._headline = "it begins with the settings of an earlier run"
        return [f"tuner: {self._headline}"]

    def _observe(self, observation: Observation) -> list[str]:
        if why_not_judged(observation, self._knobs) is not None:
            return []
        if self._best_rate is None:
            self._best_rate = Rate.of(observation)
            if self._knobs.is_empty:
                self._written_rate = self._best_rate
        self._baseline = observation
        if not observation.is_input_bound:
            return self._settle(observation, None if self._book.trials else NOT_INPUT_BOUND)
        self._unjudged += 1
        if not observation.pipeline.stages and self._unjudged < NUMBERS.max_unjudged:
            # Too short for a look at its stages; there will be one in the next.
            return []
        return self._try_next(observation, propose, escalate)

    def _try_next(self, observation: Observation, *steps: Step) -> list[str]:
        """Try the first proposal that was not refused before; settle when there is none."""
        proposals = (step(observation, self._knobs, self._room) for step in steps)
        new = (each for each in proposals if each is not None and each.knobs not in self._refused)
        proposal = next(new, None)
        if proposal is None or self._rounds >= NUMBERS.max_trials:
            return self._settle(observation)
        self._proposal, self._knobs, self._state = proposal, proposal.knobs, State.TRYING
        self._unjudged, self._rounds = 0, self._rounds + 1
        self._book.begin(self._epoch + 1, proposal.knobs, proposal.hypothesis)
        self._headline = f"trying {proposal.hypothesis}"
        return [f"tuner: {self._headline}"]

    def _compare(self, observation: Observation) -> list[str]:
        reason = why_not_judged(observation, self._knobs)
        best, proposal = self._best_rate, self._proposal
        if reason is not None or best is None or proposal is None:
            return self._let_pass(observation, reason or "there is nothing to compare it with")
        self._state = State.TRYING
        rate = Rate.of(observation)
        gain, noise = rate.gain_over(best), rate.noise_against(best)
        is_better = gain >= -NUMBERS.trimming_loss if proposal.is_trimming else gain > noise
        is_kept = is_better and not rate.is_below(self._written_rate)
        self._book.end(
            epoch=self._epoch,
            batches_per_second=rate.batches_per_second,
            speedup=1 + gain,
            noise=noise,
            outcome="kept" if is_kept else "rolled back",
            cost_seconds=self._cost_seconds(observation, best),
        )
        if is_kept:
            words = f"{rate_in_words(rate.batches_per_second)} after {rate_in_words(best.batches_per_second)}"
            self._best, self._best_rate = self._knobs, rate
            return [f"tuner: kept, {speedup(1 + gain)} ({words})", *self._go_on(observation, proposal)]
        self._refused.append(self._knobs)
        self._knobs = self._best
        words = f"{speedup(1 + gain)} is within the noise of {percent(noise)}" if gain > 0 else speedup(1 + gain)
        # From the epoch before: of a stage whose kind was not known, it is known now that it computes.
        baseline = self._baseline or observation
        return [f"tuner: rolled back, {words}", *self._try_next(baseline, partial(propose, unknown_is_waiting=False))]

    def _go_on(self, observation: Observation, proposal: Proposal) -> list[str]:
        self._baseline = observation
        if proposal.is_trimming:
            return self._settle(observation)
        if observation.is_input_bound and not observation.pipeline.stages:
            self._state, self._unjudged = State.OBSERVING, 0
            return []
        return self._try_next(observation, propose, escalate, trim)

    def _let_pass(self, observation: Observation, reason: str) -> list[str]:
        """The trial stays up for another epoch, but not for ever."""
        if observation.knobs is not None and observation.knobs != self._knobs and not observation.is_first:
            lines = [] if self._state is State.WAITING else [f"tuner: {NEXT_FIT}"]
            self._state, self._headline = State.WAITING, NEXT_FIT
            return lines
        self._unjudged += not observation.is_first
        if self._unjudged < NUMBERS.max_unjudged:
            return []
        self._book.end(outcome="not judged", reason=reason)
        self._knobs = self._best
        return [f"tuner: rolled back, because it could not be judged: {reason}", *self._settle(observation)]

    def _settle(self, observation: Observation, headline: str | None = None) -> list[str]:
        self._state, self._proposal, self._news = State.SETTLED, None, 0
        self._settled_share = observation.wait_share or 0.0
        self._headline = headline or self._outcome(observation)
        return [f"tuner: {self._headline}"]

    def _outcome(self, observation: Observation) -> str:
        gain, tried = self.summary.speedup, self._book.count_in_words
        if not self._best.is_empty and gain is not None and gain > 1:
            return f"settled at {speedup(gain)} {tried}, {self._book.cost_seconds:.1f} s spent on trying"
        settings = "your own settings stay" if self._best.is_empty else "the settings stay as they are"
        words = ["no knob helps", *([tried] if self._book.trials else [])]
        remedy = [] if observation.remedy is None else [f"instead, {observation.remedy}"]
        return "; ".join([f"{' '.join(words)}, {settings}", *remedy])

    def _watch(self, observation: Observation) -> list[str]:
        """Wake up when the training waits more for its input than it did."""
        if why_not_judged(observation, self._knobs) is not None:
            return []
        share = observation.wait_share or 0.0
        is_news = observation.is_input_bound and share > self._settled_share + NUMBERS.risen_share
        self._news = self._news + 1 if is_news else 0
        if self._news < NUMBERS.news_epochs or self._awakenings >= NUMBERS.max_awakenings:
            return []
        self._awakenings, self._rounds, self._unjudged = self._awakenings + 1, 0, 0
        self._refused.clear()
        self._state, self._best_rate = State.OBSERVING, None
        line = f"tuner: input wait has risen to {percent(share)} of the step, so it tries again"
        return [line, *self._observe(observation)]

    def _keep_memory_in_bounds(self, observation: Observation) -> list[str]:
        """Halve the buffers when the process has grown by more than they may hold."""
        grown, bound = (
            self._memory_watch.grown_bytes(observation.process_memory_bytes, self._knobs),
            self._room.max_bytes,
        )
        smaller = halved(self._knobs)
        if bound is None or grown <= bound or smaller == self._knobs or observation.knobs != self._knobs:
            return []
        self._book.end(outcome="rolled back", reason="the process took more memory than is allowed")
        self._memory_watch = MemoryWatch()
        self._knobs = self._best = smaller
        mib = math.ceil(grown / 2**20)
        return self._settle(observation, f"buffers were halved, because the process had grown by {mib} MiB")

    def _cost_seconds(self, observation: Observation, best: Rate) -> float:
        """What the epoch took longer than it would have at the best settings before."""
        rate = Rate.of(observation).batches_per_second
        slower = max(0.0, 1 / rate - 1 / best.batches_per_second) * observation.summary.batches
        before = 0.0 if self._baseline is None else self._baseline.summary.first_batch_seconds
        return slower + max(0.0, observation.summary.first_batch_seconds - before)
