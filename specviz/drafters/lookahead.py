"""Drafting by lookahead: the target guesses several future tokens at once and remembers its guesses."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor

from specviz.drafters.base import DraftContext, Drafter
from specviz.models.pair import ModelPair
from specviz.passes.reading_checks import reads_trees
from specviz.records.errors import SpecvizError
from specviz.records.settings import DraftParams
from specviz.rules.draft import Draft, Verdict
from specviz.rules.transfer import to_device


class Window:
    """Guesses at future tokens, `columns` wide and `ngram` − 1 levels high, each level made from the one below.

    Fu et al. 2024, arXiv 2402.02057, section 3.1. Counting from the last committed token, the guess at level k of
    column j stands at position j + k. At level 0, the oldest, column 0 is the last committed token itself, and the
    others are a text that continues it. Higher up, a guess sees level 0 up to its own column, then what lies below it
    in that column: a column's levels continue its level 0. After a pass, the target's choices after each column's
    highest guess form a new top level, each column with its choice is an n-gram that the target has written, and the
    oldest level is dropped: Jacobi iterations, one a pass.

    levels: [ngram − 1] lists of tokens; level 0 starts at column 1, the others at column 0.
    """

    def __init__(self, columns: int, ngram: int, guess: Iterator[int]):
        self.columns = columns
        self.guess = guess
        self.levels = [self._guesses(columns - (level == 0)) for level in range(ngram - 1)]

    def column(self, index: int, last: int) -> tuple[int, ...]:
        """The ngram − 1 tokens of a column, bottom up; `last` is the last committed token."""
        return (self.levels[0][index - 1] if index else last, *(level[index] for level in self.levels[1:]))

    def advance(self, choices: Sequence[int]) -> None:
        """Adds a top level from the target's choices for the first columns; columns it has not seen guess again.

        The window moves by one position, however many tokens were accepted: moving further would fill it with random
        guesses, and took a tenth more passes when tried.
        """
        new = [*choices, *self._guesses(self.columns - len(choices))]
        levels = [*self.levels[1:], new]
        self.levels = [levels[0][1:], *levels[1:]]

    def _guesses(self, count: int) -> list[int]:
        return [next(self.guess) for _ in range(count)]


class Pool:
    """The n-grams seen so far: for each first token, the `guesses` most recent continuations."""

    def __init__(self, guesses: int):
        self.guesses = guesses
        self.followers: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, first: int, continuation: tuple[int, ...]) -> None:
        continuations = self.followers.setdefault(first, {})
        continuations.pop(continuation, None)
        continuations[continuation] = None
        if len(continuations) > self.guesses:
            del continuations[next(iter(continuations))]

    def after(self, first: int) -> list[tuple[int, ...]]:
        """What followed this token, most recent first."""
        return list(reversed(self.followers.get(first, {})))


class Trie:
    """Branches merged on common prefixes, so that siblings differ; `sources` names each token's first proposer."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.sources: list[str] = []
        self.places: dict[tuple[int, int], int] = {}

    def add(self, parent: int, tokens: Sequence[int], source: str) -> int:
        """Adds a chain of tokens that continues `parent`; returns the place of the last."""
        for token in tokens:
            place = self.places.setdefault((parent, token), len(self.tokens))
            if place == len(self.tokens):
                self.tokens.append(token)
                self.parents.append(parent)
                self.sources.append(source)
            parent = place
        return parent


class Lookahead(Drafter):
    """Lookahead decoding, Fu et al. 2024, arXiv 2402.02057: no draft model; the target drafts while it verifies.

    One tree carries both of the paper's branches. The window's guesses (source ``window``) serve to learn what the
    target says after them; earlier n-grams that begin with the last committed token (``pool``) serve to be accepted.
    Every token is a point mass and the tree is verified like any other, so a window guess that happens to be right is
    accepted too, and none can change the output's distribution.

    `WINDOW` columns (the paper's W) of n-grams of `NGRAM` tokens (N); branches are the pool's n-grams tried per round
    (G). The window starts with guesses picked from the prompt's tokens by the setting's seed.
    """

    name: ClassVar[str] = "lookahead"
    parameters: ClassVar[frozenset[str]] = frozenset({"branches"})
    default_branches: ClassVar[int] = 5

    #: Tokens a pass on greedy texts of the embedded target, 8 draft tokens deep: 2.3 in trees of 25 tokens; with six
    #: columns of 5-grams 2.4 in trees of 30, which costs more to verify than it saves. A depth of 4 leaves room for 3
    #: columns of 4-grams (2.1 tokens a pass) or 2 of 5-grams (1.8).
    WINDOW = 7
    NGRAM = 4

    #: How deep one column reaches. In less there is none, and so nothing to learn: the pool would stay empty.
    least_depth: ClassVar[int] = NGRAM - 2

    def __init__(self, context: DraftContext):
        self.device = context.pair.device
        self.random = random.Random(context.seed)
        self.pool = Pool(context.branches)

    @classmethod
    def check(cls, pair: ModelPair, params: DraftParams) -> None:
        if params.branches == 1:
            raise SpecvizError(
                "Lookahead's window and candidates form a tree: set branches, the candidates of a round, to 2 or more.",
                "branches",
            )
        if not reads_trees(pair.target):
            raise SpecvizError(
                "Lookahead has the target read a tree, but {name} reads only chains: draft with prompt_lookup or "
                "suffix.",
                "drafter",
                name=pair.target_name,
            )

    @classmethod
    def settings(cls, pair: ModelPair, params: DraftParams) -> dict[str, Any]:
        return {"window": cls.WINDOW, "ngram": cls.NGRAM, "guesses": cls.branches(pair, params)}

    @classmethod
    def largest_draft(cls, num_draft_tokens: int, branches: int) -> int:
        columns = _columns(num_draft_tokens, cls.WINDOW, cls.NGRAM)
        window = columns * (cls.NGRAM - 1) - 1 if columns else 0
        return window + branches * min(num_draft_tokens, cls.NGRAM - 1)

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        tokens = tuple(prompt)
        self.window = Window(self.WINDOW, self.NGRAM, iter(lambda: self.random.choice(tokens), None))

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        trie, last = Trie(), committed[-1]
        for continuation in self.pool.after(last):
            trie.add(-1, continuation[:budget], "pool")
        self.columns = [self.window.column(index, last) for index in range(_columns(budget, self.WINDOW, self.NGRAM))]
        self.tops, base = [], -1
        for index, (first, *above) in enumerate(self.columns):
            base = trie.add(base, [first], "window") if index else base
            self.tops.append(trie.add(base, above, "window"))
        tokens = to_device(trie.tokens, self.device)
        return Draft(tokens, tuple(trie.parents), sources=tuple(trie.sources))

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        choices = [verdict.choices[top + 1] for top in self.tops]
        for (first, *above), choice in zip(self.columns, choices, strict=True):
            self.pool.add(first, (*above, choice))
        self.window.advance(choices)


def _columns(budget: int, window: int, ngram: int) -> int:
    """How many columns fit: the last one starts at depth columns − 1 and reaches ngram − 2 tokens further."""
    return max(0, min(window, budget - ngram + 3))
