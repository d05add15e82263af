"""How deep to draft next: the depth with the most expected tokens a second, or no draft if drafting does not pay.

The depth depends only on earlier rounds, on the tokens they accepted and the time they took, and is fixed before
anything is drawn. Any depth keeps the output's distribution exact.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from specviz.records.runs import LengthChoice

#: The acceptance rate assumed at first, and for how many judgements it counts: optimistic, and slow to change, so that
#: a few unlucky drafts do not end drafting.
HOPE, HOPED = 0.75, 10

#: The expected share of rejected tokens with an accepted sibling, assumed at first.
RESCUED = 0.5

#: How many judgements at a depth the acceptance rate at all depths together counts for.
RATE_WEIGHT = 4

#: How much of a judgement's weight each further round leaves: about the last 64 rounds count.
FADING = 1 - 1 / 64

#: How many plain steps rounds may lag plain decoding before drafting stops, and the share of a lag that is forgiven in
#: each further round.
STAKE, FORGIVEN = 2.0, 1 / 128

#: How many of a depth's times count, n of them for n², and for how much the level of all depths counts: with less, a
#: single time in a busy moment would end the use of a depth; nine times, though, are hardly ever all wrong.
TIMES, LEVEL_WEIGHT = 9, 8

#: Rounds after which a depth's times are forgotten: other work may have slowed the machine then.
OLD = 256

#: For how many rounds a choice stands at most, and after how many rounds of a run it stands for one more. Choosing
#: takes 3 % of a short round.
STANDS, CHOICES = 4, 4

#: For how many rounds what is fixed stands: for all.
MANY = 1 << 30

#: A depth, and whether a drafter of trees drafts a chain.
ChosenDepth = tuple[LengthChoice, bool]


class SecondsByDepth:
    """Seconds by depth: an expected shape, moved to where rounds have shown it to lie.

    shape: [most + 1] seconds, of which only the ratios count once there are times; 0 where nothing is timed.
    """

    def __init__(self, shape: Sequence[float]):
        self.shape = shape
        self._recent: deque[float] = deque(maxlen=TIMES)  # times / shape, whatever the depth
        self._by_depth: list[deque[float]] = [deque(maxlen=TIMES) for _ in shape]
        self._middles = [1.0 for _ in shape]  # the medians of these
        self.level: float | None = None  # the median of the former; None before the first
        self._last = [-OLD for _ in shape]  # the round in which each depth was timed last

    def observe(self, round_: int, depth: int, seconds: float) -> None:
        """round_: its number."""
        if not self.shape[depth]:
            return
        ratio = seconds / self.shape[depth]
        if round_ - self._last[depth] >= OLD:
            self._by_depth[depth].clear()
        for times in (self._recent, self._by_depth[depth]):
            times.append(ratio)
        self.level, self._middles[depth] = statistics.median(self._recent), statistics.median_low(self._by_depth[depth])
        self._last[depth] = round_

    def seconds(self, round_: int, level: float = 1.0) -> list[float]:
        """[most + 1], expected of this round. level: assumed before anything was timed."""
        level, expected = self.level or level, []
        for shape, times, middle, last in zip(self.shape, self._by_depth, self._middles, self._last):
            weight = len(times) ** 2 if round_ - last < OLD else 0
            expected.append(shape * (LEVEL_WEIGHT * level + weight * middle) / (LEVEL_WEIGHT + weight))
        return expected


class History:
    """What a pair's rounds have shown that were drafted in one way: their times, and how deep drafts survived.

    drafting, rest: [most + 1], the shapes (`SecondsByDepth`) of a round's seconds of drafting 0, 1, … tokens deep, and
    of its other seconds.
    """

    def __init__(self, drafting: Sequence[float], rest: Sequence[float]):
        self._drafting, self._rest = SecondsByDepth(drafting), SecondsByDepth(rest)
        self._accepted = [0.0] * len(rest)  # by depth, from 1 on
        self._judged = [0.0] * len(rest)
        self._rounds = 0
        #: How far rounds lag a simpler way of decoding, in its steps; negative where they lead: a drafter that has paid
        #: for hundreds of tokens is not given up for the first bad draft of a text.
        self.lag = 0.0

    def observe(self, depth: int, accepted: int, seconds: tuple[float, float] | None) -> None:
        """Learns from a finished round: its depth, which may be less than chosen, and how many tokens were accepted.

        seconds: of drafting and of the rest; None for a round that had more to do than others.
        """
        self._accepted = [weight * FADING for weight in self._accepted]
        self._judged = [weight * FADING for weight in self._judged]
        for place in range(1, min(depth, accepted + 1) + 1):
            self._judged[place] += 1
            self._accepted[place] += place <= accepted
        self._rounds += 1
        if seconds is not None:
            for curve, phase_seconds in zip((self._drafting, self._rest), seconds):
                curve.observe(self._rounds, depth, phase_seconds)

    def costs(self, reference: History | None = None) -> list[float]:
        """[most + 1]: of a round that drafts 0, 1, … tokens deep, in plain steps.

        reference: rounds with the same target, whose plain steps are the unit, so that two histories can be compared.
        """
        level = 1.0 if reference is None else reference._rest.level or 1.0
        rest = self._rest.seconds(self._rounds, level)
        drafting = self._drafting.seconds(self._rounds, self._rest.level or level)
        plain = rest[0] if reference is None else reference._rest.seconds(reference._rounds)[0]
        return [(draft_seconds + rest_seconds) / plain for draft_seconds, rest_seconds in zip(drafting, rest)]

    @property
    def timed(self) -> bool:
        """Whether any draft was timed."""
        return self._drafting.level is not None

    def rate(self, hope: float = HOPE) -> float:
        """The acceptance rate at all depths together."""
        return (sum(self._accepted) + HOPED * hope) / (sum(self._judged) + HOPED)

    def survival(self, hope: float = HOPE) -> list[float]:
        """[most + 1]: S(0) = 1, S(1), …"""
        overall = self.rate(hope)
        rates = [
            (accepted + RATE_WEIGHT * overall) / (judged + RATE_WEIGHT)
            for accepted, judged in zip(self._accepted[1:], self._judged[1:])
        ]
        return list(accumulate(rates, lambda survived, rate: survived * rate, initial=1.0))


def _tree_rate(rate: float) -> float:
    """The acceptance rate to hope for with trees, from that of chains."""
    return 1 - (1 - RESCUED) * (1 - rate)


def _chain_rate(rate: float) -> float:
    """The inverse of `_tree_rate`."""
    return max(0.0, 1 - (1 - rate) / (1 - RESCUED))


class FixedDepth:
    """The same depth in every round."""

    drafts_chain = False
    stands = MANY

    def __init__(self, tokens: int):
        self.choice = LengthChoice(tokens)

    def choose(self) -> LengthChoice:
        return self.choice

    def stand(self) -> LengthChoice:
        return self.choice

    def observe(self, depth: int, accepted: int, seconds: tuple[float, float] | None) -> None:
        """Learns nothing."""


class AdaptiveDepth:
    """Chooses each round's depth by expected tokens / expected time, and learns from the outcome.

    A round that drafts γ deep is expected to yield 1 + S(1) + … + S(γ) tokens, where S(d) is the chance that the draft
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
        history: History,
        choices: list[ChosenDepth] | None = None,
        chains: History | None = None,
        depths: Sequence[int] | None = None,
    ):
        """history: of earlier runs, continued by this one. choices: those of an earlier run that is repeated; this run
        begins with them and appends its own. chains: the history of chains, for drafters whose trees can be chains.
        depths: to choose from, 0 first; None for all."""
        self.depths = depths
        self.history, self.trees, self.chains = history, history, chains
        self.drafts_chain = False  # whether a drafter of trees drafts a chain this round
        self._choices = [] if choices is None else choices
        self._rounds = 0
        self._costs = history.costs()
        self._stands = 0  # for how many rounds the last choice does, itself included
        self._yardstick = 1.0  # the tokens that a chain promises in the time of a plain step

    def choose(self) -> LengthChoice:
        """The next round's depth, with its reason: the last choice, as long as it `stands`."""
        if self.stands:
            return self.stand()
        if self._rounds == len(self._choices):
            self._stands = min(STANDS, 1 + len(self._choices) // CHOICES)
            self._choices.append(self._best())
        choice, self.drafts_chain = self._choices[self._rounds]
        self._rounds += 1
        self.history = self.chains if self.chains is not None and self.drafts_chain else self.trees
        self._costs = self.history.costs(None if self.drafts_chain else self.chains)
        return choice

    @property
    def stands(self) -> int:
        """For how many more rounds the last choice does, whatever they show; none that drafts while rounds lag."""
        if self._rounds == len(self._choices):
            lags, left = max(self.trees.lag, (self.chains or self.trees).lag) > STAKE, max(0, self._stands - 1)
            return 0 if left and lags and self._choices[-1][0].depth else left
        known = itertools.islice(self._choices, self._rounds, None)
        return sum(1 for _ in itertools.takewhile(self._choices[self._rounds - 1].__eq__, known)) if self._rounds else 0

    def stand(self) -> LengthChoice:
        """The last choice once more: for a round that is made before it is known what those before it show."""
        if self._rounds == len(self._choices):
            self._choices.append(self._choices[-1])
            self._stands -= 1
        choice, _ = self._choices[self._rounds]
        self._rounds += 1
        return choice

    def _best(self) -> ChosenDepth:
        if self.chains is None:
            return self._deepest(self.trees.costs(), self.trees.survival())[1], False
        # What trees have shown says what chains can be, and the other way round.
        shown = self.trees.rate(_tree_rate(HOPE))
        chain_speed, chain = self._deepest(self.chains.costs(), self.chains.survival(_chain_rate(shown)))
        # Until a chain was drafted its speed is a hope: plain decoding is what is known.
        self._yardstick = chain_speed if self.chains.timed else 1.0
        if self.trees.lag > STAKE:
            return chain, True
        hope = _tree_rate(self.chains.rate())
        tree_speed, tree = self._deepest(self.trees.costs(self.chains), self.trees.survival(hope))
        return (chain, True) if chain_speed >= tree_speed else (tree, False)

    def _deepest(self, costs: Sequence[float], survival: Sequence[float]) -> tuple[float, LengthChoice]:
        """As deep as pays most, after the speed that this promises."""
        speeds = [tokens / cost for tokens, cost in zip(accumulate(survival), costs)]
        behind = (self.chains or self.trees).lag > STAKE
        depths = range(len(speeds)) if self.depths is None else self.depths
        depth = 0 if behind else max(depths, key=speeds.__getitem__)
        deeper, speed = next((longer for longer in depths if longer > depth), None), speeds[depth]
        if deeper is None:
            return speed, LengthChoice(depth, speed)
        more = costs[deeper] - costs[depth]
        return speed, LengthChoice(depth, speed, kept=survival[deeper], cost=more, behind=behind)

    def observe(self, depth: int, accepted: int, seconds: tuple[float, float] | None) -> None:
        """See `History.observe`."""
        # At its expected cost, not at the time it took: a busy moment of the machine says nothing about a depth.
        cost, tokens = self._costs[depth], accepted + 1
        # Chains are held against plain decoding, in plain steps, trees against chains, in tokens.
        yardstick = 1.0 if self.chains is None or self.drafts_chain else self._yardstick
        for history in {self.trees, self.chains or self.trees}:
            lag = yardstick * cost - tokens if history is self.history else 0.0
            history.lag = (1 - FORGIVEN) * history.lag + lag
        self.history.observe(depth, accepted, seconds)


#: What decides how deep each round drafts.
DepthPolicy = FixedDepth | AdaptiveDepth
