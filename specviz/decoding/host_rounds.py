"""Rounds that the host makes one after the other, each once it knows the result of the last."""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from specviz.decoding.continuation import Continuation
from specviz.decoding.decoder import Decoder
from specviz.decoding.fetched import Fetched
from specviz.decoding.request import Request
from specviz.records.runs import LengthChoice, Seconds
from specviz.rules.draft import Verdict
from specviz.theory.draft_length import DepthPolicy


class JudgedRound(NamedTuple):
    """A round whose outcome is known."""

    verdict: Verdict
    choice: LengthChoice  # of its depth
    seconds: Callable[[float], Seconds]  # its times, given those of reading the prompt before it
    fetch: Callable[[], Fetched] | None = None  # see `PendingRound`
    apart: float = 0.0  # see `PendingRound`


class HostRounds:
    """Makes the rounds of a run with its decoder."""

    def __init__(self, request: Request, decoder: Decoder, policy: DepthPolicy):
        self.request, self.decoder, self.policy = request, decoder, policy

    def next(self, text: Continuation) -> JudgedRound:
        """The next round after the text, which is yet to be extended by it."""
        return self._make(text, time.perf_counter(), self.policy.choose())

    def narrow(self) -> None:
        """Has the drafter draft chains or trees, as was chosen."""
        self.decoder.drafter.narrow(1 if self.policy.drafts_chain else self.request.branches)

    def _make(self, text: Continuation, began: float, choice: LengthChoice) -> JudgedRound:
        """Makes a round at once. began: on the host's clock."""
        self.narrow()
        verdict = self.decoder.round(text.committed, self.request.allowed_depth(choice.depth, text.room))
        return JudgedRound(verdict, choice, partial(self._seconds, began))

    def _seconds(self, began: float, prefill: float) -> Seconds:
        """The times of the last round; its one transfer to the host has made all marks readable."""
        clock, (start, drafted, verified) = self.decoder.target.stopwatch, self.decoder.marks
        total = time.perf_counter() - began
        draft, verify = clock.between(start, drafted), clock.between(drafted, verified)
        return Seconds(draft, verify, total - draft - verify, total, clock.take_spans(), prefill)
