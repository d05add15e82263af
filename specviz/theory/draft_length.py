"""How many tokens to draft next: the length that has promised most tokens a second so far, 0 where none pays.

The length of a round follows from earlier rounds alone and is settled before anything of it is drawn. Every length is
exact by itself, so the output keeps the target's law whatever is chosen here.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from specviz.records.runs import Round
from specviz.theory.formulas import expected_tokens

#: Where nothing is known, a draft token is taken to be this likely to be right: hope, so that drafting gets a try.
HOPE = 0.7

#: What a judgement counts for after each further round, so that about the last 64 rounds speak.
FADING = 1 - 1 / 64

#: Measured times kept of each length, and the rounds after which one is too old to go by.
RECENT, MEMORY = 9, 128

#: How far the last `WINDOW` rounds together may be behind plain decoding, in plain steps, before nothing is drafted.
STAKE, WINDOW = 1.5, 100

#: Plain steps timed before anything is drafted: all lengths are compared with them.
PLAIN_STEPS = 2


class AdaptiveLength:
    """Chooses the draft length 0 … `longest` of each round by expected tokens / seconds, and hears what came of it.

    Expected tokens are Leviathan's (arXiv 2211.17192, eq. 1) for the running acceptance rate; seconds are those that
    rounds of the length really took, so that a wide target pass costs what it costs. The theorem's choice of γ by α
    and c (Thm 3.8) is the case in which every target pass takes the same time.

    It explores by hope rather than by chance. A length without a recent time of its own is taken to cost one draft step
    more than the length before it: less than it will turn out, so it is tried where it could be best. And judgements
    fade, towards `HOPE`: where drafting did not pay it is tried again once the memory of that is weak enough. What hope
    may cost is bounded: where the last `WINDOW` rounds are behind plain decoding by more than `STAKE` the next step is
    plain, so that drafts which are never right cost little more than STAKE / WINDOW of the speed.
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
        """The running acceptance rate, with one hopeful judgement among those that count."""
        return (self._accepted + HOPE) / (self._judged + 1)

    @property
    def draft_step(self) -> float | None:
        """Seconds of one draft step, as of late; None before the first."""
        return _typical(self._steps) if self._steps else None

    def seconds(self) -> list[float]:
        """Seconds of a round that drafts 0 … `longest` tokens, measured or hoped for; empty while too little is known.

        Too little is fewer than `PLAIN_STEPS` recent plain steps, or no draft step at all.
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
        """Tokens to draft in the next round. First come plain steps, then one token, to learn what each costs."""
        if self.longest == 0 or len(self._fresh(0)) < PLAIN_STEPS:
            return 0
        alpha, times = self.alpha, self.seconds()
        if not times:
            return 1
        if self._behind(times) > STAKE:
            return 0
        return max(range(self.longest + 1), key=lambda length: expected_tokens(alpha, length) / times[length])

    def _behind(self, times: Sequence[float]) -> float:
        """How many plain steps the recent rounds took more than they made tokens, by what each length takes now.

        Not by what each round took: that the machine was busy for a moment is no fault of a length.
        """
        return sum(times[length] / times[0] - tokens for length, tokens in self._window)

    def observe(self, one: Round) -> None:
        """Hears of a finished round; its length may be another than the chosen one, as at the end of a text."""
        self._rounds += 1
        self._accepted = self._accepted * FADING + one.accepted
        self._judged = self._judged * FADING + one.judged
        length = len(one.drafted)
        if length:
            self._steps.append(one.seconds.draft / length)
        self._taken.setdefault(length, deque(maxlen=RECENT)).append((self._rounds, one.seconds.total))
        self._window.append((length, one.accepted + 1))

    def _fresh(self, length: int) -> list[float]:
        """The times of rounds of this length that are not too old."""
        return [seconds for made, seconds in self._taken.get(length, ()) if self._rounds - made < MEMORY]


def _typical(seconds: Sequence[float]) -> float:
    """The median, of two the lower: other work on the machine only ever adds time."""
    return statistics.median_low(seconds)
