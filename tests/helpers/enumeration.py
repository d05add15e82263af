"""Exact distributions of a round, by enumeration: every draft, every way the coins can fall, every next token.

A rule here is a function (tokens, parents, draft_probs, target_probs, coins, next_u) -> Decision.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from specviz.rules import RULES, rule_named
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms, chain
from specviz.rules.exact import verify_match, verify_siblings_on_device
from specviz.rules.typical import verify_typical

Verify = Callable[[Draft, TargetRows, Uniforms], Decision]
NOTHING = torch.empty(0)


def judged(
    verify: Verify,
    tokens: Tensor,
    parents: tuple[int, ...],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    coins: Tensor,
    next_u: Tensor,
) -> Decision:
    """The decision about tokens [n] drawn from draft_probs [n, vocab] (None: point masses), by target rows [n + 1,
    vocab] and uniforms [n] and []."""
    draft, rows = Draft(tokens, parents, draft_probs), TargetRows(target_probs.log(), target_probs, None)
    return verify(draft, rows, Uniforms(NOTHING, coins, next_u))


#: Every rule by its name.
BY_NAME = {name: partial(judged, rule_named(name).verify) for name in RULES}
by_token, by_block, by_tree, by_multi_path = (BY_NAME[name] for name in ("token", "block", "tree", "multi_path"))
by_tree_on_device = partial(judged, verify_siblings_on_device)


def verify_by_typical(tokens, parents, target_probs, next_u, **constants):
    rows = TargetRows(target_probs.log(), target_probs, None)
    coins = torch.zeros(len(tokens)).double()
    return verify_typical(Draft(tokens, parents), rows, Uniforms(NOTHING, coins, next_u), **constants)


def verify_by_match(tokens, parents, target_choices):
    rows = TargetRows(NOTHING, None, target_choices)
    return verify_match(Draft(tokens, parents), rows, Uniforms(NOTHING, NOTHING, NOTHING))


Rule = Callable[[Tensor, tuple[int, ...], Tensor | None, Tensor, Tensor, Tensor], Decision]

#: Trees by the parents of their tokens: chains, siblings, siblings of siblings.
SHAPES = {
    "chain 1": chain(1),
    "chain 2": chain(2),
    "chain 3": chain(3),
    "(2,)": (-1, -1),
    "(3,)": (-1, -1, -1),
    "(1, 2)": (-1, 0, 0),
    "(2, 1)": (-1, -1, 0, 1),
    "(2, 2)": (-1, -1, 0, 0, 1, 1),
    "uneven": (-1, 0, -1, 0, 1),
}


class Model:
    """A made-up language model: random next-token distributions, other ones after every text of `depth` tokens."""

    def __init__(self, seed: int, depth: int, vocab: int = 3, zeros: bool = False):
        generator = torch.Generator().manual_seed(seed)
        self.rows: dict[tuple[int, ...], Tensor] = {}
        for length in range(depth + 1):
            for text in itertools.product(range(vocab), repeat=length):
                weights = torch.rand(vocab, generator=generator) ** 2
                if zeros:
                    weights[torch.randint(vocab, (1,), generator=generator)] = 0
                self.rows[text] = weights / weights.sum()

    def joint(self, text: tuple[int, ...], length: int) -> Tensor:
        """The distribution [vocab, ...] of the next `length` tokens, float64."""
        if length == 0:
            return torch.ones((), dtype=torch.float64)
        row = self.rows[text].double()
        after = torch.stack([self.joint((*text, token), length - 1) for token in range(len(row))])
        return row.view(-1, *[1] * (length - 1)) * after


@dataclass(frozen=True)
class Outcome:
    """One way a round can go: how likely, which tokens it kept, what the next one is drawn from."""

    chance: float
    kept: tuple[int, ...]
    next_probs: Tensor


def drafts(
    drafter: Model, parents: tuple[int, ...], how: str
) -> Iterator[tuple[float, list[tuple[int, ...]], Tensor | None]]:
    """Every draft of that shape: its probability, the text up to each token, the rows the tokens were drawn from.

    how: siblings "without" or "with" replacement, or "chosen": the likeliest ones, point masses.
    """

    def extend(chance: float, texts: list[tuple[int, ...]], rows: list[Tensor]):
        index = len(texts)
        if index == len(parents):
            yield chance, texts, torch.stack(rows) if how != "chosen" else None
            return
        before = texts[parents[index]] if parents[index] >= 0 else ()
        elders = [texts[i][-1] for i in range(index) if parents[i] == parents[index]]
        row = drafter.rows[before].clone()
        if how != "with":
            row[elders] = 0
            row /= row.sum()
        choices = [row.argmax().item()] if how == "chosen" else row.nonzero().flatten().tolist()
        for token in choices:
            share = 1.0 if how == "chosen" else row[token].item()
            yield from extend(chance * share, [*texts, (*before, token)], [*rows, row])

    yield from extend(1.0, [], [])


def outcomes(
    rule: Rule, target: Model, drafter: Model, parents: tuple[int, ...], how: str, *, all_judged: bool = False
) -> Iterator[Outcome]:
    """Every way a round can go.

    A coin is integrated over the two sides of the token's `accept_prob`: the largest one below it, the smallest not
    below it; a rule that does not act at what it reports is found out. all_judged: the rule looks at every coin.
    """
    for chance, texts, draft_probs in drafts(drafter, parents, how):
        tokens = torch.tensor([text[-1] for text in texts])
        rows = torch.stack([target.rows[text] for text in [(), *texts]])
        decide = partial(rule, tokens, parents, draft_probs, rows)
        yield from flips(
            lambda coins, decide=decide: decide(coins, torch.tensor(0.5).double()), texts, parents, chance, all_judged
        )


def flips(
    decide: Callable[[Tensor], Decision],
    texts: list[tuple[int, ...]],
    parents: tuple[int, ...],
    chance: float,
    all_judged: bool,
    coins: Mapping[int, float] = MappingProxyType({}),
) -> Iterator[Outcome]:
    """Every way the coins can fall over one draft, by the decision about it with coins [n]. chance: of that draft, and
    of the `coins` set so far."""
    flipped = [coins.get(token, 0.5) for token in range(len(parents))]
    decision = decide(torch.tensor(flipped).double())
    kept = decision.accepted.tolist()
    judged = [i for i in range(len(parents)) if all_judged or is_tried(i, parents, kept)]
    token = next((i for i in judged if i not in coins), None)
    if token is None:
        path = [texts[i] for i in range(len(parents)) if kept[i]]
        yield Outcome(chance, path[-1] if path else (), decision.next_probs.double())
        return
    edge = decision.accept_prob[token]
    if edge > 0:
        below = torch.nextafter(edge, torch.zeros(())).item()
        yield from flips(decide, texts, parents, chance * edge.item(), all_judged, {**coins, token: below})
    if edge < 1:
        yield from flips(decide, texts, parents, chance * (1 - edge.item()), all_judged, {**coins, token: edge.item()})


def is_tried(token: int, parents: tuple[int, ...], kept: list[bool]) -> bool:
    """Its parent was kept and none of its elder siblings."""
    elders = [i for i in range(token) if parents[i] == parents[token]]
    return (parents[token] < 0 or bool(kept[parents[token]])) and not any(kept[i] for i in elders)


def distribution(ways: Iterator[Outcome], target: Model, length: int) -> Tensor:
    """The distribution [vocab, ...] of the first `length` tokens: the round's, and then the target's own."""
    total = torch.zeros_like(target.joint((), length))
    for way in ways:
        kept = way.kept[:length]
        left = length - len(kept)
        if left == 0:
            total[kept] += way.chance
            continue
        after = torch.stack([target.joint((*kept, token), left - 1) for token in range(len(way.next_probs))])
        total[kept] += way.chance * way.next_probs.view(-1, *[1] * (left - 1)) * after
    return total


def distance(rule: Rule, target: Model, drafter: Model, parents: tuple[int, ...], how: str, **options: bool) -> float:
    """The largest difference between the target and what a round emits, and what follows it, as distributions."""
    length = max_depth(parents) + 1
    emitted = distribution(outcomes(rule, target, drafter, parents, how, **options), target, length)
    return (emitted - target.joint((), length)).abs().max().item()


def mean_kept(
    rule: Rule, target: Model, drafter: Model, parents: tuple[int, ...], how: str = "without", **options: bool
) -> float:
    """Expected number of accepted tokens in a round."""
    return sum(way.chance * len(way.kept) for way in outcomes(rule, target, drafter, parents, how, **options))


def max_depth(parents: tuple[int, ...]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return max(depths)


def replaced(decision: Decision, **changes: Tensor) -> Decision:
    fields = {name: getattr(decision, name) for name in decision.__slots__}
    return type(decision)(**(fields | changes))
