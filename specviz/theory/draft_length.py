"""How many tokens to draft next: the length that promises the most tokens a second, 0 where drafting does not pay.

A round's length depends on earlier rounds alone and is fixed before anything is drawn. Every length is exact, so the
output follows the target's distribution whatever is chosen here.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from specviz.records.runs import Round
from specviz.theory.formulas import expected_tokens

#: The acceptance rate assumed while nothing is known: optimistic, so that drafting gets a try.
HOPE = 0.7

#: How much of a judgement's weight each further round leaves: about the last 64 rounds count.
FADING = 1 - 1 / 64

#: How many times are kept for each length, and after how many rounds a time is too old to use.
RECENT, MEMORY = 9, 128

#: How many plain steps the last `WINDOW` rounds may have lost to plain decoding before drafting stops.
STAKE, WINDOW = 1.5, 100

#: Plain steps timed before anything is drafted: every length is compared with them.
PLAIN_STEPS = 2


class AdaptiveLength:
    """Chooses each round's draft length, 0 … `longest`, by expected tokens / seconds, and learns from the outcome.

    Expected tokens are Leviathan's (arXiv 2211.17192, eq. 1) at the running acceptance rate; seconds are what rounds
    of that length really took, so a wide target pass counts at its measured cost. Choosing γ from α and c (Thm 3.8) is
    the special case in which every target pass takes the same time.

    It explores by optimism, not at random. A length without a recent time is assumed to cost one draft step more than
    the length before it, which is too little, so it gets tried where it could be best. Judgements fade towards
    `HOPE`: where drafting did not pay, it is tried again once that memory has faded. The cost of optimism is bounded:
    once the last `WINDOW` rounds lag plain decoding by more than `STAKE`, the next step is plain, so a drafter that is
    never right costs little more than STAKE / WINDOW of the speed.
    """

    def __init__(self, longest: int = 8):
        if longest < 0:
            raise ValueError(f"A draft length counts tokens and cannot be {longest}.")
        self.longest = longest
        self._rounds = 0
        self._window: deque[tuple[int, int]] = deque(maxlen=WINDOW)
        self._accepted = self._judged = 0.0
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._taken: dict[int, deque[tuple[int, float]]] = {}

    @property
    def alpha(self) -> float:
        """The running acceptance rate, with `HOPE` counted as one judgement."""
        return (self._accepted + HOPE) / (self._judged + 1)

    @property
    def draft_step(self) -> float | None:
        """Recent seconds of one draft step; None before the first."""
        return _typical(self._steps) if self._steps else None

    def seconds(self) -> list[float]:
        """Seconds of a round that drafts 0 … `longest` tokens, measured or assumed.

        Empty while there are fewer than `PLAIN_STEPS` recent plain steps, or no draft step at all.
        """
        step, plain = self.draft_step, self._fresh(0)
        if step is None or len(plain) < PLAIN_STEPS:
            return []
        times = [_typical(plain)]
        for length in range(1, self.longest + 1):
            own = self._fresh(length)
            times.append(_typical(own) if own else times[-1] + step)
        return times

    def choose(self) -> int:
        """Tokens to draft in the next round. The first rounds are plain steps, then one token, to learn their cost."""
        if self.longest == 0 or len(self._fresh(0)) < PLAIN_STEPS:
            return 0
        alpha, times = self.alpha, self.seconds()
        if not times:
            return 1
        if self._behind(times) > STAKE:
            return 0
        return max(range(self.longest + 1), key=lambda length: expected_tokens(alpha, length) / times[length])

    def _behind(self, times: Sequence[float]) -> float:
        """How many plain steps the recent rounds cost beyond the tokens they made, at each length's typical time.

        Not at each round's own time: a busy moment of the machine says nothing about a length.
        """
        return sum(times[length] / times[0] - tokens for length, tokens in self._window)

    def observe(self, one: Round) -> None:
        """Learns from a finished round, whose length may differ from the chosen one, as at the end of a text."""
        self._rounds += 1
        self._accepted = self._accepted * FADING + one.accepted
        self._judged = self._judged * FADING + one.judged
        length = len(one.drafted)
        if length:
            self._steps.append(one.seconds.draft / length)
        self._taken.setdefault(length, deque(maxlen=RECENT)).append((self._rounds, one.seconds.total))
        self._window.append((length, one.accepted + 1))

    def _fresh(self, length: int) -> list[float]:
        """The times of recent rounds of this length."""
        return [seconds for made, seconds in self._taken.get(length, ()) if self._rounds - made < MEMORY]


def _typical(seconds: Sequence[float]) -> float:
    """The median, the lower of two: other work on the machine only ever adds time."""
    return statistics.median_low(seconds)
