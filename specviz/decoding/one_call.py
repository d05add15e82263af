"""A decoder on compiled kernels: one call of C++ makes the target's pass, judges the draft and keeps what is accepted.

Where the drafter needs nobody else, the same call drafts, and may make several rounds. A pass pushes Python's code and
data out of the caches, so even a little of it takes long before the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from specviz.decoding.decoder import Decoder, KernelJudge
from specviz.decoding.request import Request
from specviz.drafters.base import Drafter, Plain
from specviz.passes.kernels.rounds import Ahead, MadeRound, RoundsInOneCall, SelfReliant
from specviz.passes.readers import StaticModel
from specviz.passes.static_passes import WIDEST
from specviz.rules.draft import Draft, Uniforms, Verdict

#: For how many new tokens room is made before the first round, as to make some takes a tenth of one.
ROOM_AHEAD = 192


class OneCallDecoder(Decoder):
    """Its rounds come out as those of a `Decoder` that has the same parts."""

    target: StaticModel
    judge: KernelJudge
    calls: RoundsInOneCall
    alone: tuple[Drafter, SelfReliant] | None  # a drafter, and what drafts without it
    new_tokens: int  # how much longer the text may become
    ends: Collection[int]  # tokens that end it

    @classmethod
    def of(cls, decoder: Decoder, request: Request) -> Decoder:
        """The request's decoder as one of these, where C++ can run the target's passes, and judges."""
        target, judge, coins = decoder.target, decoder.judge, decoder.coins
        if not isinstance(target, StaticModel) or not isinstance(judge, KernelJudge) or target.passes.opened is None:
            return decoder
        if target.passes.static.vocab_size != request.pair.vocab_size or coins.largest_draft >= WIDEST:
            return decoder
        made = cls(target, decoder.drafter, coins, judge)
        made.new_tokens, made.ends = request.settings.max_new_tokens, request.pair.eos_ids
        return made

    def begin(self, committed: Sequence[int]) -> None:
        drafter, judge, coins = self.drafter, self.judge, self.coins.largest_draft
        reliant = drafter.self_reliant()
        self.alone = None if reliant is None else (drafter, reliant)
        for reader in (self.target, *(reliant.readers if reliant else ())):
            reader.buffers.reserve(len(committed) + min(self.new_tokens, ROOM_AHEAD) + coins)
        judged = coins, judge.temperature, judge.as_block
        self.calls = RoundsInOneCall(self.target, committed, *judged, reliant, self.ends)

    @property
    def asks(self) -> bool:
        """Whether the drafter is asked for drafts; known once the run has begun."""
        return self.alone is None and not isinstance(self.drafter, Plain)

    def round(self, committed: Sequence[int], budget: int) -> Verdict:
        """See `Decoder.round`."""
        if self.asks:
            return self._asking(committed, budget)
        began = time.perf_counter()
        ((made, uniforms),) = self.rounds(len(committed), budget)
        if made.parents:
            self.target.stopwatch.spans.append((began, began + made.drafting))
        self._time(began, began + made.drafting, made)
        return self.verdict(len(committed), made, uniforms)

    def rounds(self, committed: int, budget: int, most: int = 1, longest: int = 0) -> list[tuple[MadeRound, Uniforms]]:
        """Rounds for which nobody is asked, with their coins: at least one, and at most `most`, as long as the text
        stays within `longest` tokens. Each of them is handed to `verdict` before others are made."""
        levels, choice = 0, None
        if self.alone is not None:
            drafter, reliant = self.alone
            levels, choice, longest = reliant.levels(committed, budget), drafter.choice, reliant.longest(longest)
        uniforms = self.coins.flip()
        made = self.calls.rounds(levels, choice, uniforms, Ahead.of(min(most, 1 + self.coins.left), longest))
        return list(zip(made, [uniforms, *[self.coins.flip() for _ in made[1:]]]))

    def verdict(self, committed: int, made: MadeRound, uniforms: Uniforms) -> Verdict:
        """Of one of `rounds`, after so many tokens."""
        if self.alone is None:
            return self._verdict(committed, made, uniforms, lambda: self.nothing)
        drafter, reliant = self.alone
        for reader in reliant.readers:
            reader.length = made.read
        draft = (lambda: drafter.as_draft(made.draft, uniforms.draft)) if made.parents else lambda: self.nothing
        return self._verdict(committed, made, uniforms, draft)

    def _asking(self, committed: Sequence[int], budget: int) -> Verdict:
        """A round with the draft that the drafter proposes."""
        began, uniforms, drafter = time.perf_counter(), self.coins.flip(), self.drafter
        draft = drafter.propose(committed, budget, uniforms.draft) if budget else self.nothing
        drafted = time.perf_counter() if budget else began
        made = self.calls.judged(draft, uniforms)
        verdict = self._verdict(len(committed), made, uniforms, lambda: draft)
        self._time(began, drafted, made)
        observe = drafter.observe_draft if budget else drafter.observe_plain_step
        observe(len(committed), verdict, made.states)
        return verdict

    def _verdict(self, committed: int, made: MadeRound, uniforms: Uniforms, draft: Callable[[], Draft]) -> Verdict:
        self.target.length = committed + len(made.path)
        recall = self.judge.recall(draft, lambda: made.logits, uniforms, made)
        return Verdict(made.path, made.tokens, made.choices, made.parents, draft, recall, made.bytes)

    def _time(self, began: float, drafted: float, made: MadeRound) -> None:
        self.marks = began, drafted, drafted + made.verifying
        self.target.stopwatch.spans.append((drafted, drafted + made.verifying))
