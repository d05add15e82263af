"""How deep to draft next: the depth with the most expected tokens a second, none where drafting does not pay.

A round's length depends on earlier rounds and on times measured before the run, and is fixed before anything is drawn.
Any length keeps the output's distribution exact.
"""

from collections.abc import Sequence
from itertools import accumulate

from specviz.records.runs import LengthChoice

#: The acceptance rate assumed while nothing is known, and for how many judgements it counts: optimistic, and
#: slow to change, so that a few unlucky drafts do not end drafting.
HOPE, HOPED = 0.75, 20

#: How many judgements at a depth outweigh those at all depths together.
OWN = 2

#: How much of a judgement's weight each further round leaves: about the last 32 rounds count.
FADING = 1 - 1 / 32

#: How many plain steps rounds may have lost to plain decoding before drafting stops, and how many of these are forgiven
#: in each further round.
STAKE, FORGIVEN = 2.0, 1 / 128


class FixedLength:
    """The same depth in every round."""

    def __init__(self, tokens: int):
        self.choice = LengthChoice(tokens)

    def choose(self) -> LengthChoice:
        return self.choice

    def observe(self, depth: int, accepted: int) -> None:
        """Learns nothing."""


class AdaptiveLength:
    """Chooses each round's depth by expected tokens / measured time, and learns from the outcome.

    A round that drafts γ deep is expected to make 1 + S(1) + … + S(γ) tokens, where S(d) is the chance that the draft
    survives to depth d, counted depth by depth over recent rounds. With S(d) = α^d that is Leviathan's formula (arXiv
    2211.17192, eq. 1), and choosing γ from α and c (Thm 3.8) the special case in which all target passes take the same
    time. Servers choose by survival and measured cost, too (vLLM's adaptive verification).

    Judgements fade towards `HOPE`: where drafting did not pay, it is tried again once that memory has faded. What that
    may cost is bounded: while rounds lag plain decoding by more than `STAKE`, steps are plain. A lag is forgiven little
    by little, so that a drafter that only began badly is tried again soon, and one that is never right costs little
    more than STAKE · FORGIVEN of the speed.
    """

    def __init__(self, seconds: Sequence[float]):
        """seconds: [longest + 1], of a round that drafts 0, 1, … tokens deep."""
        self.costs = [one / seconds[0] for one in seconds]  # in plain steps
        self._accepted = [0.0] * len(seconds)  # by depth, from 1 on
        self._judged = [0.0] * len(seconds)
        self._lost = 0.0  # to plain decoding, in plain steps

    def survival(self) -> list[float]:
        """[longest + 1]: S(0) = 1, S(1), …"""
        overall = (sum(self._accepted) + HOPED * HOPE) / (sum(self._judged) + HOPED)
        rates = [
            (accepted + OWN * overall) / (judged + OWN)
            for accepted, judged in zip(self._accepted[1:], self._judged[1:])
        ]
        return list(accumulate(rates, lambda survived, rate: survived * rate, initial=1.0))

    def choose(self) -> LengthChoice:
        """The next round's depth, with its reason."""
        survival = self.survival()
        speeds = [tokens / cost for tokens, cost in zip(accumulate(survival), self.costs)]
        behind = self._lost > STAKE
        depth = 0 if behind else max(range(len(speeds)), key=speeds.__getitem__)
        deeper = depth + 1
        if deeper == len(speeds):
            return LengthChoice(depth, speeds[depth])
        more = self.costs[deeper] - self.costs[depth]
        return LengthChoice(depth, speeds[depth], kept=survival[deeper], cost=more, behind=behind)

    def observe(self, depth: int, accepted: int) -> None:
        """Learns from a finished round: its depth, which may be less than chosen, and how many tokens it kept."""
        self._accepted = [weight * FADING for weight in self._accepted]
        self._judged = [weight * FADING for weight in self._judged]
        for place in range(1, min(depth, accepted + 1) + 1):
            self._judged[place] += 1
            self._accepted[place] += place <= accepted
        # At its measured cost, not at the time it took: a busy moment of the machine says nothing about a depth.
        self._lost = (1 - FORGIVEN) * self._lost + self.costs[depth] - (accepted + 1)


#: What decides how deep each round drafts.
DraftLength = FixedLength | AdaptiveLength
