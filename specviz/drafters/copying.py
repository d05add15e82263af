"""Drafting by copying: what followed the text's end at its last occurrence, or most often."""

import bisect
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, ClassVar

from torch import Tensor

from specviz.drafters.base import DraftContext, Drafter
from specviz.models.pair import ModelPair
from specviz.parts.servers import Servers
from specviz.passes.kernels.rounds import SelfReliant
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft
from specviz.rules.transfer import to_device


class PromptLookup(Drafter):
    """Finds the last few tokens earlier in prompt and output, and proposes what followed them there.

    Saxena 2023, prompt lookup decoding; Yang et al. 2023, arXiv 2304.04487. No model: q is a point mass on each
    copied token. The longest match wins, from `MAX_NGRAM` tokens down to `MIN_NGRAM`; of several places, the most
    recent one that offers a full draft, else the one that offers most.

    An index from every n-gram to the places after it makes lookup time independent of the text's length.
    """

    name: ClassVar[str] = "prompt_lookup"
    copies: ClassVar[bool] = True
    MAX_NGRAM, MIN_NGRAM = 4, 1

    servers: ClassVar[Servers] = Servers("ngram", "NGRAM", "ngram-simple", ngram=(MIN_NGRAM, MAX_NGRAM))

    def __init__(self, context: DraftContext):
        self.device = context.pair.device
        self.sizes = range(self.MAX_NGRAM, self.MIN_NGRAM - 1, -1)
        self.text: list[int] = []
        self.followers: dict[tuple[int, ...], list[int]] = {}

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return {"max_ngram": cls.MAX_NGRAM, "min_ngram": cls.MIN_NGRAM}

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self._read(prompt)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        self._read(committed[len(self.text) :])
        return Draft.copied(self._continuation(budget), self.device)

    def self_reliant(self) -> SelfReliant | None:
        return SelfReliant(ngrams=(self.MIN_NGRAM, self.MAX_NGRAM)) if type(self) is PromptLookup else None

    def _read(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the text; indexes an n-gram once something follows it."""
        for token in tokens:
            place = len(self.text)
            for size in self.sizes:
                if size <= place:
                    self.followers.setdefault(tuple(self.text[place - size :]), []).append(place)
            self.text.append(token)

    def _continuation(self, budget: int) -> list[int]:
        """Up to `budget` tokens that followed the longest earlier occurrence of the text's end; empty if none."""
        for size in self.sizes:
            places = self.followers.get(tuple(self.text[-size:]), ()) if size <= len(self.text) else ()
            if places:
                # Places ascend, and the earlier one is, the more text follows it.
                full = bisect.bisect_right(places, len(self.text) - budget)
                start = places[max(full - 1, 0)]
                return self.text[start : start + budget]
        return []


class SuffixAutomaton:
    """Every string of tokens that occurs in a growing text, and how often each token followed it.

    Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text". A state stands for the strings
    that end at the same places in the text; all are suffixes of its longest one. Its link leads to the longest suffix
    that also ends elsewhere, so the links from the whole text's state visit all its suffixes, ever shorter and more
    frequent. State 0 is the empty string.

    order: followers are counted for strings of up to this many tokens. A text that merely repeats itself has as many
    suffixes of different frequency as periods; the limit keeps the cost per token independent of the text's length.

    transitions: per state, token -> state. lengths: of each state's longest string. followers: per state,
    token -> how often it followed; exact for states with a string of up to `order` tokens.
    """

    def __init__(self, order: int):
        self.order = order
        self.transitions: list[dict[int, int]] = [{}]
        self.links = [-1]
        self.lengths = [0]
        self.followers: list[dict[int, int]] = [{}]
        self.text_state = 0
        self.recent = 0

    def append(self, token: int) -> None:
        """Extends the text by a token, in amortised constant time."""
        for state in self.suffixes():
            followers = self.followers[state]
            followers[token] = followers.pop(token, 0) + 1
        self._extend(token)
        self.recent = self._shorten(self.transitions[self.recent][token])

    def suffixes(self) -> Iterator[int]:
        """The states of the text's last `order` tokens and their non-empty suffixes, longest first."""
        state = self.recent
        while state > 0:
            yield state
            state = self.links[state]

    def after(self, state: int, token: int) -> int:
        """The state of `state`'s string plus a token that has followed it, cut to the last `order` tokens."""
        return self._shorten(self.transitions[state][token])

    def _shorten(self, state: int) -> int:
        """The first state down the links that has a string of up to `order` tokens."""
        while self.lengths[self.links[state]] >= self.order:
            state = self.links[state]
        return state

    def _extend(self, token: int) -> None:
        new = self._add(self.lengths[self.text_state] + 1, {}, {}, 0)
        state = self.text_state
        while state >= 0 and token not in self.transitions[state]:
            self.transitions[state][token] = new
            state = self.links[state]
        if state >= 0:
            self.links[new] = self._exact_state(state, token)
        self.text_state = new

    def _exact_state(self, state: int, token: int) -> int:
        """The state whose longest string is `state`'s longest plus the token.

        If that string has so far ended at the same places as longer ones, it splits off now. Having shared their
        history, it starts with a copy of their followers.
        """
        target = self.transitions[state][token]
        if self.lengths[target] == self.lengths[state] + 1:
            return target
        split = self._add(
            self.lengths[state] + 1, dict(self.transitions[target]), dict(self.followers[target]), self.links[target]
        )
        self.links[target] = split
        while state >= 0 and self.transitions[state].get(token) == target:
            self.transitions[state][token] = split
            state = self.links[state]
        return split

    def _add(self, length: int, transitions: dict[int, int], followers: dict[int, int], link: int) -> int:
        self.lengths.append(length)
        self.transitions.append(transitions)
        self.followers.append(followers)
        self.links.append(link)
        return len(self.links) - 1


@dataclass(slots=True)
class Tree:
    """The continuations of one match."""

    match: int  # how many tokens at the text's end match
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    score: float = 0.0  # how many are expected to be accepted if the text continues as it used to


class Suffix(Drafter):
    """Finds the end of the text earlier in prompt and output, and proposes what followed it there most often.

    SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975, with an automaton over this text alone instead of suffix
    trees. A continuation's score is the product of its tokens' relative frequencies, each given everything before
    it; a tree grows by highest score. The end of the text has matches of many lengths: a long one knows more, a short
    one has seen more. Each may draft up to `FACTOR` tokens deep per matched token (the paper's α); the tree with the
    largest sum of scores is proposed. No model: q is a point mass on each token.

    With b branches, a token has at most b followers and a level b tokens on average; 1 makes a chain.
    """

    name: ClassVar[str] = "suffix"
    copies: ClassVar[bool] = True
    servers: ClassVar[Servers] = Servers("suffix", "NGRAM", "ngram-simple", note="arctic")
    parameters: ClassVar[frozenset[str]] = frozenset({"branches"})

    #: Measured on greedy texts of the embedded target (code, books, refrains): going from 1 to 6 tokens of depth per
    #: matched token saves 3 to 8 % of passes, from 6 to 64 at most 1 % more. Contexts of 4 tokens instead of 16 take up
    #: to 5 % more passes, contexts of 64 save none. Tokens that score below 0.1 are mostly rejected.
    FACTOR = 6
    ORDER = 16
    LEAST_SCORE = 0.1

    def __init__(self, context: DraftContext):
        self.device = context.pair.device
        self.width = context.branches
        self.automaton = SuffixAutomaton(self.ORDER)
        self.read = 0

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return {"branches": cls.branches(pair, params), "factor": cls.FACTOR, "order": cls.ORDER}

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self._read(prompt)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        return self.draft_of(self.best_continuation(committed, budget))

    def best_continuation(self, committed: Sequence[int], budget: int) -> Tree:
        """The most promising continuation, at most `budget` deep; without tokens if the text's end is new to it."""
        self._read(committed)
        return self._best_tree(budget)

    def draft_of(self, tree: Tree) -> Draft:
        tokens = to_device(tree.tokens, self.device)
        return Draft(tokens, tuple(tree.parents), sources=(f"match {tree.match}",) * len(tree.tokens))

    def _read(self, committed: Sequence[int]) -> None:
        for token in committed[self.read :]:
            self.automaton.append(token)
        self.read = len(committed)

    def _best_tree(self, budget: int) -> Tree:
        best = Tree(match=0)
        for state in self.automaton.suffixes():
            match = self.automaton.lengths[state]
            depth = min(budget, self.FACTOR * match)
            # Scores at one depth sum to at most 1, so neither this match nor a shorter one can do better.
            if depth <= best.score:
                break
            tree = self._grow(state, match, depth)
            if tree.score > best.score:
                best = tree
        return best

    def _grow(self, state: int, match: int, depth: int) -> Tree:
        """The highest-scoring continuations of a state's string, down to `depth`, `width` tokens a level on average.

        A token never outscores its parent, so the heap yields parents before children and the most frequent sibling
        first; of equals, the one seen last.
        """
        tree, age = Tree(match), itertools.count()
        frontier = [(-score, next(age), token, state, -1, 1) for token, score in self._likeliest(state, 1.0)]
        while frontier and len(tree.tokens) < depth * self.width:
            negated, _, token, state, parent, level = heapq.heappop(frontier)
            place = len(tree.tokens)
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.score -= negated
            if level < depth:
                state = self.automaton.after(state, token)
                for follower, score in self._likeliest(state, -negated):
                    heapq.heappush(frontier, (-score, next(age), follower, state, place, level + 1))
        return tree

    def _likeliest(self, state: int, score: float) -> list[tuple[int, float]]:
        """A state's most frequent followers, each with its score after a text with this `score`."""
        followers = self.automaton.followers[state]
        total = sum(followers.values())
        ranked = heapq.nlargest(self.width, reversed(followers.items()), key=itemgetter(1))
        scored = [(token, score * count / total) for token, count in ranked]
        return [(token, score) for token, score in scored if score >= self.LEAST_SCORE]
