"""How deep to draft next: the depth with the most expected tokens a second, or no draft if drafting does not pay.

The depth depends only on earlier rounds, on the tokens they accepted and the time they took, and is fixed before
anything is drawn. Any depth keeps the output's distribution exact.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from specviz.records.runs import LengthChoice

#: The acceptance rate assumed while nothing is known, and for how many judgements it counts: optimistic, and
#: slow to change, so that a few unlucky drafts do not end drafting.
HOPE, HOPED = 0.75, 10

#: The expected share of rejected tokens with an accepted sibling, while nothing is known.
RESCUED = 0.5

#: How many judgements at a depth outweigh those at all depths together.
OWN = 4

#: How much of a judgement's weight each further round leaves: about the last 64 rounds count.
FADING = 1 - 1 / 64

#: How many plain steps rounds may have lost to plain decoding before drafting stops, and how many of these are forgiven
#: in each further round.
STAKE, FORGIVEN = 2.0, 1 / 128

#: How many of a depth's times count, and how many of them outweigh what the times of all depths say of it: with fewer,
#: one time in a busy moment would end the use of a depth.
TIMES, TIMED = 9, 8

#: Rounds after which a depth's times are forgotten: other work may have slowed the machine then.
OLD = 256


#: A depth, and whether a drafter of trees drafts a chain.
ChosenLength = tuple[LengthChoice, bool]


class Curve:
    """Seconds by depth: an expected shape, moved to where rounds have shown it to lie.

    shape: [longest + 1] seconds, of which only the ratios count once there are times; 0 where nothing is timed.
    """

    def __init__(self, shape: Sequence[float]):
        self.shape = shape
        self._recent: deque[float] = deque(maxlen=TIMES)  # times / shape, whatever the depth
        self._own: list[deque[float]] = [deque(maxlen=TIMES) for _ in shape]
        self._middles = [1.0 for _ in shape]  # the medians of these
        self.level: float | None = None  # the median of the former; None before the first
        self._last = [-OLD for _ in shape]  # the round in which each depth was timed last

    def observe(self, number: int, depth: int, seconds: float) -> None:
        """number: of the round."""
        if not self.shape[depth]:
            return
        ratio = seconds / self.shape[depth]
        if number - self._last[depth] >= OLD:
            self._own[depth].clear()
        for times in (self._recent, self._own[depth]):
            times.append(ratio)
        self.level, self._middles[depth] = statistics.median(self._recent), statistics.median_low(self._own[depth])
        self._last[depth] = number

    def seconds(self, number: int, level: float = 1.0) -> list[float]:
        """[longest + 1], to be expected of round `number`. level: assumed before anything was timed."""
        level, found = self.level or level, []
        for shape, own, middle, last in zip(self.shape, self._own, self._middles, self._last):
            weight = len(own) if number - last < OLD else 0
            found.append(shape * (TIMED * level + weight * middle) / (TIMED + weight))
        return found


class Experience:
    """What a pair's rounds have shown that were drafted in one way: their times, and how deep drafts survived.

    drafting, rest: [longest + 1], the shapes (`Curve`) of the seconds that a round drafts 0, 1, … tokens deep, and of
    its other seconds.
    """

    def __init__(self, drafting: Sequence[float], rest: Sequence[float]):
        self._drafting, self._rest = Curve(drafting), Curve(rest)
        self._accepted = [0.0] * len(rest)  # by depth, from 1 on
        self._judged = [0.0] * len(rest)
        self._rounds = 0
        #: What rounds have lost to a simpler way, and what they have gained, below 0: so a drafter that has paid for
        #: hundreds of tokens is not given up for the first bad draft of a text.
        self.lost = 0.0

    def observe(self, depth: int, accepted: int, seconds: tuple[float, float] | None) -> None:
        """Learns from a finished round: its depth, which may be less than chosen, and how many tokens it kept.

        seconds: of drafting and of the rest; None for a round that had more to do than others.
        """
        self._accepted = [weight * FADING for weight in self._accepted]
        self._judged = [weight * FADING for weight in self._judged]
        for place in range(1, min(depth, accepted + 1) + 1):
            self._judged[place] += 1
            self._accepted[place] += place <= accepted
        self._rounds += 1
        if seconds is not None:
            for curve, taken in zip((self._drafting, self._rest), seconds):
                curve.observe(self._rounds, depth, taken)

    def costs(self, beside: Experience | None = None) -> list[float]:
        """[longest + 1]: of a round that drafts 0, 1, … tokens deep, in plain steps.

        beside: of rounds with the same target, whose plain steps are meant: else two could not be compared.
        """
        level = 1.0 if beside is None else beside._rest.level or 1.0
        rest = self._rest.seconds(self._rounds, level)
        drafting = self._drafting.seconds(self._rounds, self._rest.level or level)
        plain = rest[0] if beside is None else beside._rest.seconds(beside._rounds)[0]
        return [(draft + other) / plain for draft, other in zip(drafting, rest)]

    @property
    def timed(self) -> bool:
        """Whether a draft was."""
        return self._drafting.level is not None

    def rate(self, hope: float = HOPE) -> float:
        """Of acceptance, at all depths together."""
        return (sum(self._accepted) + HOPED * hope) / (sum(self._judged) + HOPED)

    def survival(self, hope: float = HOPE) -> list[float]:
        """[longest + 1]: S(0) = 1, S(1), …"""
        overall = self.rate(hope)
        rates = [
            (accepted + OWN * overall) / (judged + OWN)
            for accepted, judged in zip(self._accepted[1:], self._judged[1:])
        ]
        return list(accumulate(rates, lambda survived, rate: survived * rate, initial=1.0))


def _rescued(rate: float) -> float:
    """The acceptance rate of trees to hope for, of that of chains."""
    return 1 - (1 - RESCUED) * (1 - rate)


def _alone(rate: float) -> float:
    """The inverse of `_rescued`."""
    return max(0.0, 1 - (1 - rate) / (1 - RESCUED))


class FixedLength:
    """The same depth in every round."""

    as_chain = False

    def __init__(self, tokens: int):
        self.choice = LengthChoice(tokens)

    def choose(self) -> LengthChoice:
        return self.choice

    def observe(self, depth: int, accepted: int, seconds: tuple[float, float] | None) -> None:
        """Learns nothing."""


class AdaptiveLength:
    """Chooses each round's depth by expected tokens / expected time, and learns from the outcome.

    A round that drafts γ deep is expected to make 1 + S(1) + … + S(γ) tokens, where S(d) is the chance that the draft
    survives to depth d, counted depth by depth over recent rounds. With S(d) = α^d that is Leviathan's formula (arXiv
    2211.17192, eq. 1), and choosing γ from α and c (Thm 3.8) the special case in which all target passes take the same
    time. Servers choose by survival and measured cost, too (vLLM's adaptive verification).

    Judgements fade towards `HOPE`: where drafting did not pay, it is tried again once that memory has faded. What that
    may cost is bounded: while rounds lag plain decoding by more than `STAKE`, steps are plain. A lag is forgiven little
    by little, so that a drafter that only began badly is tried again soon, and one that is never right costs little
    more than STAKE · FORGIVEN of the speed.

    A drafter of trees drafts a chain instead where that promises more, or while trees lag chains by more than `STAKE`.
    So a tree has to be worth its rows.
    """

    def __init__(
        self,
        experience: Experience,
        made: list[ChosenLength] | None = None,
        chains: Experience | None = None,
        depths: Sequence[int] | None = None,
    ):
        """experience: of earlier runs, goes on in this one. made: the choices of a run that is made once more, which
        begins with them: this one's follow them there. chains: the experience of chains, where drafts are trees that
        can be chains as well. depths: to choose from, 0 first; None for all."""
        self.depths = depths
        self.experience, self.trees, self.chains = experience, experience, chains
        self.as_chain = False  # the chosen draft of trees
        self._made = [] if made is None else made
        self._rounds = 0
        self._costs = experience.costs()
        self._yardstick = 1.0  # the tokens that a chain promises in the time of a plain step

    def choose(self) -> LengthChoice:
        """The next round's depth, with its reason."""
        if self._rounds == len(self._made):
            self._made.append(self._best())
        choice, self.as_chain = self._made[self._rounds]
        self._rounds += 1
        self.experience = self.chains if self.chains is not None and self.as_chain else self.trees
        self._costs = self.experience.costs(None if self.as_chain else self.chains)
        return choice

    def _best(self) -> ChosenLength:
        if self.chains is None:
            return self._deepest(self.trees.costs(), self.trees.survival())[1], False
        # What trees have shown says what chains can be, and the other way round.
        shown = self.trees.rate(_rescued(HOPE))
        chain_speed, chain = self._deepest(self.chains.costs(), self.chains.survival(_alone(shown)))
        # Until a chain was drafted its speed is a hope: plain decoding is what is known.
        self._yardstick = chain_speed if self.chains.timed else 1.0
        if self.trees.lost > STAKE:
            return chain, True
        hope = _rescued(self.chains.rate())
        tree_speed, tree = self._deepest(self.trees.costs(self.chains), self.trees.survival(hope))
        return (chain, True) if chain_speed >= tree_speed else (tree, False)

    def _deepest(self, costs: Sequence[float], survival: Sequence[float]) -> tuple[float, LengthChoice]:
        """As deep as pays most, after the speed that this promises."""
        speeds = [tokens / cost for tokens, cost in zip(accumulate(survival), costs)]
        behind = (self.chains or self.trees).lost > STAKE
        depths = range(len(speeds)) if self.depths is None else self.depths
        depth = 0 if behind else max(depths, key=speeds.__getitem__)
        deeper, speed = next((longer for longer in depths if longer > depth), None), speeds[depth]
        if deeper is None:
            return speed, LengthChoice(depth, speed)
        more = costs[deeper] - costs[depth]
        return speed, LengthChoice(depth, speed, kept=survival[deeper], cost=more, behind=behind)

    def observe(self, depth: int, accepted: int, seconds: tuple[float, float] | None) -> None:
        """See `Experience.observe`."""
        # At its expected cost, not at the time it took: a busy moment of the machine says nothing about a depth.
        cost, made = self._costs[depth], accepted + 1
        # Chains are held against plain decoding, in plain steps, trees against chains, in tokens.
        yardstick = 1.0 if self.chains is None or self.as_chain else self._yardstick
        for known in {self.trees, self.chains or self.trees}:
            lost = yardstick * cost - made if known is self.experience else 0.0
            known.lost = (1 - FORGIVEN) * known.lost + lost
        self.experience.observe(depth, accepted, seconds)


#: What decides how deep each round drafts.
DraftLength = FixedLength | AdaptiveLength
