"""Rounds of a decoder that asks nobody, several in one call: each is handed over as if it had been made alone."""

import time
from collections import deque
from functools import partial

from specviz.decoding.continuation import Continuation
from specviz.decoding.host_rounds import HostRounds, JudgedRound
from specviz.decoding.one_call import OneCallDecoder
from specviz.decoding.request import Request
from specviz.passes.kernels.rounds import MadeRound
from specviz.records.runs import Seconds
from specviz.rules.draft import Uniforms
from specviz.theory.draft_length import DepthPolicy

#: The most rounds of one call. With more there is little left to save: what Python does for each round stays.
MOST = 8


class RoundsAhead(HostRounds):
    """Makes the rounds of a run as far ahead as the depth of their drafts is settled, for at most 20 ms (`PATIENCE`).

    A round that was made after the text's end is dropped.
    """

    decoder: OneCallDecoder

    def __init__(self, request: Request, decoder: OneCallDecoder, policy: DepthPolicy):
        super().__init__(request, decoder, policy)
        self.waiting: deque[tuple[MadeRound, Uniforms]] = deque()

    def next(self, text: Continuation) -> JudgedRound:
        began, committed = time.perf_counter(), len(text.committed)
        if self.waiting:
            choice, made_now = self.policy.stand(), 0.0
        else:
            choice = self.policy.choose()
            self.narrow()
            depth, most = self.request.allowed_depth(choice.depth, text.room), min(MOST, 1 + self.policy.stands)
            self.waiting.extend(self.decoder.rounds(committed, depth, most, committed + text.tokens_left))
            made_now = sum([made.seconds for made, _ in self.waiting])
        made, uniforms = self.waiting.popleft()
        verdict = self.decoder.verdict(committed, made, uniforms)
        apart = made_now - made.seconds
        return JudgedRound(verdict, choice, partial(self._times, began, made, apart), apart=apart)

    def _times(self, began: float, made: MadeRound, apart: float, prefill: float) -> Seconds:
        total, in_models = time.perf_counter() - began - apart, made.drafting + made.verifying
        return Seconds(made.drafting, made.verifying, total - in_models, total, in_models, prefill)
