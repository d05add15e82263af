"""Speculative sampling on arrays of probabilities, right or wrong in one step: the controls for a test of an engine.

Two of the wrong rules that engines shipped, and that the lab has, are not here, because one row for each position does
not show them: llama.cpp's n-min looks at the row after a token, and what bfloat16 does to q depends on the size of the
logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy
from numpy.typing import ArrayLike, NDArray

from specviz.theory.sample_tests import Floats
from specviz.theory.shared_noise import residual_under_shared_noise

#: What a row [vocab] becomes, by the target's row and the drafter's.
OfRows = Callable[[Floats, Floats], Floats]


def ratio(p: Floats, q: Floats) -> Floats:
    """p/q; where q is 0, every token passes that the target may write."""
    return numpy.divide(p, q, out=(p > 0).astype(float), where=q > 0)


def residual(p: Floats, q: Floats) -> Floats:
    """max(0, p − q), or p where nothing is left."""
    rest = numpy.maximum(p - q, 0)
    return rest if rest.any() else p


@dataclass(frozen=True)
class TokenRule:
    """Speculative sampling token by token (Leviathan et al. 2023, arXiv 2211.17192, Alg. 1), or with a step changed."""

    drawn: Callable[[Floats], Floats] = lambda q: q  # what a draft token is really drawn from
    judged: Callable[[Floats, Floats], tuple[Floats, Floats]] = lambda p, q: (p, q)  # by which rows, all at once
    accept: OfRows = ratio  # each token's chance to pass
    recovered: OfRows = residual  # what replaces a rejected token
    bonus: OfRows = lambda p, q: p  # what follows if all pass; q is the last token's

    def __call__(
        self, target_probs: ArrayLike, draft_probs: ArrayLike, rounds: int, generator: numpy.random.Generator
    ) -> NDArray[numpy.int64]:
        """The tokens of so many rounds, [rounds, γ + 1], with −1 after the one that ends a round.

        target_probs: [γ + 1, vocab]. draft_probs: [γ, vocab]. They are the same in all rounds, whatever is drafted.
        """
        target, draft = numpy.asarray(target_probs, float), numpy.asarray(draft_probs, float)
        tokens = numpy.full((rounds, len(draft) + 1), -1)
        going = numpy.arange(rounds)
        for place, (p, q) in enumerate(zip(*self.judged(target[:-1], draft))):
            drafted = drawn_from(self.drawn(draft[place]), len(going), generator)
            passed = generator.random(len(going)) < self.accept(p, q)[drafted]
            recovered = drawn_from(self.recovered(p, q), len(going), generator)
            tokens[going, place] = numpy.where(passed, drafted, recovered)
            going = going[passed]
        tokens[going, -1] = drawn_from(self.bonus(target[-1], draft[-1]), len(going), generator)
        return tokens


def drawn_from(weights: Floats, count: int, generator: numpy.random.Generator) -> NDArray[numpy.int64]:
    """So many tokens by inverse CDF; the weights [vocab] need not sum to 1."""
    sums = weights.cumsum()
    return numpy.searchsorted(sums, generator.random(count) * sums[-1], side="right")


TOKEN_BY_TOKEN = TokenRule()

#: Each by its mistake; those that are also in the lab by their names there.
WRONG_RULES: dict[str, TokenRule] = {
    "everything": TokenRule(accept=lambda p, q: numpy.ones_like(p)),
    "mislabelled": TokenRule(drawn=lambda q: (q == q.max()).astype(float)),
    "swapped": TokenRule(accept=lambda p, q: ratio(q, p)),
    "recovered_from_target": TokenRule(recovered=lambda p, q: p),
    "recovered_from_draft": TokenRule(recovered=lambda p, q: q),
    "residual_not_clipped": TokenRule(recovered=lambda p, q: abs(p - q)),
    "bonus_from_draft": TokenRule(bonus=lambda p, q: q),
    "row_too_late": TokenRule(judged=lambda p, q: (numpy.roll(p, -1, 0), q)),
    "mixed_rows": TokenRule(judged=lambda p, q: (p, q[numpy.arange(len(q)) // 2])),
    "shared_noise": TokenRule(recovered=residual_under_shared_noise),
}
