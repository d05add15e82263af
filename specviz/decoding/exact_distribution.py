"""The exact distribution of a run's first tokens, enumerated, for comparison with many short runs."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.request import Request
from specviz.passes.cached_model import CachedModel, has_sliding_windows
from specviz.passes.devices import Stopwatch
from specviz.passes.readers import new_cached_model
from specviz.passes.roles import TARGET
from specviz.passes.states import keeps_state
from specviz.rules.draft import chain

#: How many tokens of each run are compared. The second follows an accepted token in the same target pass, or a
#: recovered one in the next pass, from rewound caches.
COMPARED = 2

#: Runs are set up for one token more, so that a round may draft all compared tokens.
RUN_TOKENS = COMPARED + 1

#: The first tokens of a run: two, or one that ends the text.
FirstTokens = tuple[int, ...]

#: The second token's distribution [vocab] after each first token.
RowAfter = Callable[[int], Tensor]


@dataclass(frozen=True, slots=True)
class ExactDistribution:
    """The exact distribution of the first two tokens, or of the first alone if it ends the text."""

    outcomes: tuple[FirstTokens, ...]  # all that are possible, likeliest first
    texts: tuple[tuple[str, ...], ...]  # of each, token by token
    probs: tuple[float, ...]  # P(a)·P(b | a) from one-token passes, as in plain decoding; sum ≈ 1
    low: tuple[float, ...]  # the least that passes over several tokens give instead,
    high: tuple[float, ...]  # and the most
    rounding: float  # the largest total variation between these distributions


class Start:
    """A target that has read a prompt up to its last token, ready for as many runs as wanted.

    Its cache is rewound to the prompt, or refilled where it has sliding windows or running states, which can undo one
    round only.
    """

    def __init__(self, request: Request, feature_layers: tuple[int, ...] = (), kind: type[CachedModel] | None = None):
        """kind: of the reader, one that is wrong on purpose."""
        self.request, self.kind = request, kind
        self.ids = list(request.prompt.ids)
        self.feature_layers = feature_layers
        model = request.pair.target
        self.rewinds = not (has_sliding_windows(model) or keeps_state(model))
        self._read()

    def _read(self) -> None:
        pair = self.request.pair
        stopwatch = Stopwatch(pair.device)
        if self.kind is None:
            self._target = new_cached_model(pair.target, stopwatch, self.request.passes.get(TARGET))
        else:
            self._target = self.kind(pair.target, stopwatch)
        self._target.feature_layers = self.feature_layers
        self._target.prefill(self.ids)
        #: The target's hidden states of the prompt, if requested.
        self.features = self._target.features

    def target(self) -> CachedModel:
        if self.rewinds:
            self._target.rewind(len(self.ids) - 1)
            self._target.stopwatch.forget_spans()
        else:
            self._read()
        return self._target


@torch.inference_mode()
def exact_distribution(request: Request) -> ExactDistribution:
    """Enumerates all outcomes: one pass for the first token's row, and one for each possible first token.

    A round's passes read several tokens at once and round differently in half precision. So the distribution is also
    taken from such passes: after an accepted draft token, and after a token that ended the previous round.
    """
    start, end = Start(request), request.pair.eos_ids
    distributions = [_enumerate(*_by_single_passes(start), end)]
    for parents in _shapes(request):
        distributions += [_enumerate(*read(start, parents), end) for read in (_after_accepted, _after_next)]
    plain = distributions[0]
    outcomes = sorted(set().union(*distributions), key=lambda outcome: (-plain.get(outcome, 0.0), outcome))
    rows = [tuple(probs.get(outcome, 0.0) for outcome in outcomes) for probs in distributions]
    texts = request.pair.texts
    return ExactDistribution(
        outcomes=tuple(outcomes),
        texts=tuple(tuple(texts.chip(token) for token in outcome) for outcome in outcomes),
        probs=rows[0],
        low=tuple(map(min, zip(*rows))),
        high=tuple(map(max, zip(*rows))),
        rounding=max(sum(abs(p - plain_p) for p, plain_p in zip(row, rows[0])) / 2 for row in rows),
    )


def _enumerate(first: Tensor, after: RowAfter, end: frozenset[int]) -> dict[FirstTokens, float]:
    """P(a)·P(b | a) of every possible pair, from the first row [vocab] and the row after each first token."""
    probs: dict[FirstTokens, float] = {}
    for a in first.nonzero().flatten().tolist():
        p = first[a].item()
        if a in end:
            probs[a,] = p
            continue
        row = after(a).double()
        for b in row.nonzero().flatten().tolist():
            probs[a, b] = p * row[b].item()
    return probs


def _shapes(request: Request) -> list[tuple[int, ...]]:
    """The parents of drafts as large as in the first and second rounds of a run."""
    branches = request.branches
    budgets = {min(request.num_draft_tokens, RUN_TOKENS - emitted - 1) for emitted in range(COMPARED)}
    if branches == 1:
        return [chain(budget) for budget in sorted(budgets)]
    return [(-1,) * request.drafter.largest_draft(budget, branches) for budget in sorted(budgets)]


def _by_single_passes(start: Start) -> tuple[Tensor, RowAfter]:
    target, ids, request = start.target(), start.ids, start.request
    first = request.probabilities(target.forward(target.unread(ids), rows_wanted=1), ())[0]
    target.rewind(len(ids))

    def after(a: int) -> Tensor:
        row = request.probabilities(target.forward(target.unread([*ids, a]), rows_wanted=1), (a,))[0]
        target.rewind(len(ids))
        return row

    return first.double(), after


def _after_accepted(start: Start, parents: tuple[int, ...]) -> tuple[Tensor, RowAfter]:
    """Both rows from one target pass over a draft that begins with the first token."""
    target, ids = start.target(), start.ids

    def rows(a: int) -> Tensor:
        read = target.verify(ids, _draft_of(a, parents, target), parents)[:2]
        target.rewind(len(ids) - 1)
        return start.request.probabilities(read, (), (a,))

    return rows(0)[0].double(), lambda a: rows(a)[1]


def _after_next(start: Start, parents: tuple[int, ...]) -> tuple[Tensor, RowAfter]:
    """The second row from the next round's pass: the first token ended a round whose whole draft was rejected."""
    target, ids, request = start.target(), start.ids, start.request
    first = request.probabilities(target.verify(ids, _draft_of(0, parents, target), parents)[:1], ())[0]
    target.rewind_to_path(len(ids), ())

    def after(a: int) -> Tensor:
        row = request.probabilities(target.verify([*ids, a], _draft_of(0, parents, target), parents)[:1], (a,))[0]
        target.rewind(len(ids))
        return row

    return first.double(), after


def _draft_of(first: int, parents: tuple[int, ...], target: CachedModel) -> Tensor:
    """A draft of this shape with the given first token; no row that is read sees the others."""
    tokens = torch.zeros(len(parents), dtype=torch.long, device=target.device)
    tokens[0] = first
    return tokens
