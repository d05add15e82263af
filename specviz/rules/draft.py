"""An acceptance rule, its inputs (a draft, the target's rows, the round's coins) and its outcome.

A rule never knows who drafted. Its `Decision` stays on the device; a `Verdict` is the part that decoding needs to go
on, on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor

from specviz.records.rules import RULES
from specviz.records.trees import depths_of
from specviz.rules.sampling import Warper, draw_with_sums, first_largest
from specviz.rules.transfer import to_device

#: Where the token that ends a round came from; ``plain``: the target's own, with nothing drafted.
Ending = Literal["recovered", "bonus", "plain"]


def chain(length: int) -> tuple[int, ...]:
    """The parents of a chain: −1, 0, 1, ..."""
    return tuple(range(-1, length - 1))


def draft_depth(parents: Sequence[int]) -> int:
    """How many levels a draft with these parents has; 0 if it is empty."""
    return max(depths_of(parents), default=-1) + 1


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens, on the device: a chain or a tree, possibly empty.

    `probs` are the distributions that the tokens were *really* drawn from. A copied or argmax token is a point mass
    (q = 1), whatever the model's softmax gives it.
    """

    tokens: Tensor  # [n] int64
    # [n] the index of the draft token that each continues, −1 for the committed text. Parents come before their
    # children; siblings are tried in order, and distinct unless each was drawn without regard to the others.
    parents: tuple[int, ...]
    probs: Tensor | None = None  # [n, vocab] float32, each without its elder siblings; None for point masses
    # [m, vocab] the drafter's own, for display: the row after the committed text, then after each token with
    # children (in a chain m = n). None where `probs` are their softmax, or without a model.
    logits: Tensor | None = None
    draws: Tensor | None = None  # [n] the uniforms the tokens were drawn with; None where nothing was drawn
    sources: tuple[str, ...] = ()  # [n] the origin of each token, in a word or two; may be empty
    confidence: float | None = None  # the drafter's probability for its last token, where that ended drafting early
    # A tree whose parents the host does not know: then `parents` says only how many tokens there are.
    grown: GrownTree | None = None

    @property
    def is_chain(self) -> bool:
        return self.grown is None and self.parents == chain(len(self.parents))

    @property
    def shape(self) -> TreeShape:
        """Which token continues which, on the tokens' device."""
        return self.grown or tree_shape(self.parents, self.tokens.device)

    @classmethod
    def copied(cls, tokens: Sequence[int], device: torch.device) -> Draft:
        """A chain of point masses."""
        return cls(to_device(tokens, device), chain(len(tokens)))


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's n + 1 rows: row 0 follows the committed text, row i + 1 follows draft token i, so row parent + 1
    judges a token."""

    logits: Tensor  # [n + 1, vocab] float32
    probs: Tensor | None  # as sampled from; None if greedy
    choices: Tensor | None  # [n + 1] int64, the likeliest tokens; None unless greedy
    warped: bool = True  # False if `probs` are the model's own softmax, unchanged by temperature and filters

    @classmethod
    def of(cls, logits: Tensor, warper: Warper) -> TargetRows:
        logits = logits.float()
        if warper.params.greedy:
            return cls(logits, None, first_largest(logits))
        return cls(logits, warper.probabilities(logits), None, warper.changes_logits)

    @property
    def drawn_from(self) -> Tensor:
        """`probs`, where tokens are drawn."""
        assert self.probs is not None, "at temperature 0 no token is drawn"
        return self.probs

    @property
    def raw(self) -> Tensor:
        """The target's softmax at temperature 1, [n + 1, vocab]."""
        return self.logits.softmax(-1) if self.warped or self.probs is None else self.probs

    @property
    def likeliest(self) -> Tensor:
        """Each row's likeliest token, [n + 1] int64."""
        return first_largest(self.logits) if self.choices is None else self.choices


@dataclass(frozen=True, slots=True)
class Uniforms:
    """One round's coins, on the device: float32 values held as float64."""

    draft: Tensor  # [most draft tokens], for drawing the draft
    accept: Tensor  # [most draft tokens], one for each decision
    next: Tensor  # [], for drawing the next token

    @classmethod
    def of(cls, row: Tensor) -> Uniforms:
        """From one row of 2 · most + 1 coins."""
        most = len(row) // 2
        return cls(row[:most], row[most : 2 * most], row[2 * most])

    @classmethod
    def each(cls, rows: Tensor) -> Iterator[Uniforms]:
        """`of` each row: what it takes three slices for, this takes for all rows."""
        most = rows.shape[1] // 2
        return map(cls, rows[:, :most].unbind(), rows[:, most : 2 * most].unbind(), rows[:, 2 * most].unbind())


@dataclass(frozen=True, slots=True)
class Decision:
    """A rule's decision about n draft tokens, on the device."""

    accepted: Tensor  # [n] bool or 0/1, the tokens of one path from the root
    p: Tensor  # [n] float32, each token's probability under the target
    q: Tensor | None  # [n] float32, the same under the drafter; None if greedy
    accept_prob: Tensor  # [n] float32, the bound that its coin had to stay below
    row: Tensor  # [1] int64, the target row that the next token comes from
    next_token: Tensor  # [] int64
    next_probs: Tensor | None  # [vocab] float32, its distribution: the residual or a target row; None if greedy
    next_sums: Tensor | None  # [vocab] float64, their running sums; None if greedy
    p_left: Tensor | None = None  # [n] float32, p after its elder siblings were rejected; None where that equals p
    distance: Tensor | None = None  # [] float32, see `Round`; None under a lossless rule
    # Where the rule picked one of several paths: [n] bool, its tokens, and [n, vocab] their distributions.
    weighed: Tensor | None = None
    drawn_from: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for a draft of n tokens, on the host, and everything that its record is made of."""

    path: tuple[int, ...]  # indices of the accepted draft tokens, in order
    tokens: tuple[int, ...]  # those tokens, then the recovered, bonus or plain one that ends the round
    choices: tuple[int, ...]  # [n + 1] the target's likeliest token of each row
    parents: tuple[int, ...]  # [n] the draft's
    drafted: Callable[[], Draft]  # the draft, perhaps made only when called
    # What it came from, on the device, and perhaps computed only when called. None where no round is waited for: all of
    # that, and the draft's tensors, are a later round's by now.
    recall: Callable[[], tuple[TargetRows, Decision, Uniforms]] | None
    held_bytes: int  # of tensors as wide as the vocabulary held for its record
    unmasked: Tensor | None = None  # [n + 1, vocab] the target's logits before a grammar masked them

    def details(self) -> tuple[TargetRows, Decision, Uniforms]:
        """What it came from, where that is still held."""
        assert self.recall is not None, "a later round has these tensors by now"
        return self.recall()

    @property
    def draft(self) -> Draft:
        return self.drafted()

    @property
    def next_token(self) -> int:
        return self.tokens[-1]

    @property
    def ending(self) -> Ending:
        if not self.parents:
            return "plain"
        # Rejected siblings of an accepted token leave no residual: only children of the last accepted token count.
        last = self.path[-1] if self.path else -1
        return "recovered" if last in self.parents else "bonus"


Verify = Callable[[Draft, TargetRows, Uniforms], Decision]


@dataclass(frozen=True, slots=True)
class Rule:
    """An acceptance rule decides which draft tokens are accepted, and which distribution the next token comes from."""

    name: str  # as users type it
    verify: Verify  # the rule itself, for n ≥ 1 draft tokens
    lossless: bool = True  # the output follows the target's distribution, whatever the drafter
    weighs_all: bool = False  # reads every draft token's coin, even after the first rejection
    trees: bool = True  # can judge siblings; otherwise chains only
    #: `verify` as a function of tensors alone, which can be recorded; often itself. None if the host has to look.
    on_device: Verify | None = None
    paths: bool = False  # siblings must be whole paths, each drawn without regard to the others

    def decide(self, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
        """`verify`; with nothing drafted, the next token is the target's own under every rule."""
        return self.verify(draft, rows, uniforms) if draft.parents else _plain(rows, uniforms)

    def decided_on_device(self, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
        """The same by `on_device`."""
        assert self.on_device is not None, f"{self.name} looks at what it decides on the host"
        return self.on_device(draft, rows, uniforms) if draft.parents else _plain(rows, uniforms)


def registered(name: str, verify: Verify, on_device: Verify | None = None) -> Rule:
    """The rule of a row of `records.rules.RULES`, by what it says of it."""
    row = RULES[name]
    return Rule(name, verify, row.lossless, row.draws_like == "block", row.trees, on_device, row.paths)


def _plain(rows: TargetRows, uniforms: Uniforms) -> Decision:
    nothing, row = uniforms.next.new_empty(0), uniforms.next.new_zeros(1, dtype=torch.long)
    if rows.choices is not None:
        return Decision(nothing, nothing, nothing, nothing, row, rows.choices[0], None, None)
    next_token, next_sums = draw_with_sums(rows.drawn_from[0], uniforms.next)
    return Decision(nothing, nothing, nothing, nothing, row, next_token, rows.drawn_from[0], next_sums)


def require_shapes(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> tuple[int, Tensor]:
    """What every rule expects of its arguments, asserted: n tokens, n rows of q, n coins; n + 1 rows of p, as wide.

    Returns n and p [n + 1, vocab].
    """
    n, p = len(draft.parents), rows.drawn_from
    assert draft.tokens.shape == (n,) and len(uniforms.accept) >= n and uniforms.next.shape == ()
    assert p.shape[:-1] == (n + 1,), f"p {tuple(p.shape)} cannot judge {n} tokens"
    assert draft.probs is None or draft.probs.shape == p[:n].shape, f"q {tuple(draft.probs.shape)}, p {tuple(p.shape)}"
    return n, p


class TreeShape:
    """Which token of a draft continues which, as tensors on a device, each built on first use.

    Two branches with a shared beginning, as `Draft.parents` writes them:

        committed text ─┬─ 0 "the" ─┬─ 2 "old"          parents = (−1, −1, 0, 0, 1)
                        │           └─ 3 "king"         rows    = ( 0,  0, 1, 1, 2): which target row judges each
                        └─ 1 "a" ───── 4 "king"         families = (0, 0, 1, 1, 2): siblings share a number

    Token 3 sees the text, 0 and itself (`ancestors[3]` = 1 0 0 1 0), and is tried after its elder sibling 2
    (`elders[3]` = 0 0 1 0 0). If 0 and 3 are accepted, the next token comes from row 4 (`row_after`).
    Chains take shortcuts.
    """

    def __init__(self, parents: tuple[int, ...], device: torch.device):
        self.parents = parents
        self.device = device
        self.is_chain = parents == chain(len(parents))

    @cached_property
    def rows(self) -> Tensor:
        """[n] int64, the target row that judges each token."""
        return to_device(self.parents, self.device) + 1

    @cached_property
    def ancestors(self) -> Tensor:
        """[n, n] bool, (i, j): token j is i itself or precedes it on its branch."""
        n = len(self.parents)
        # Bytes, because a single tensor operation costs more than a whole row here.
        cells = bytearray(n * n)
        for token, parent in enumerate(self.parents):
            if parent >= 0:
                cells[token * n : token * n + n] = cells[parent * n : parent * n + n]
            cells[token * n + token] = True
        branch = torch.frombuffer(cells, dtype=torch.bool).view(n, n) if n else torch.empty(0, 0, dtype=torch.bool)
        return to_device(branch, self.device)

    @cached_property
    def elders(self) -> Tensor:
        """[n, n] bool, (i, j): token j is a sibling of i, tried before it."""
        return (self.rows.unsqueeze(-1) == self.rows).tril(-1)

    @cached_property
    def steps(self) -> Tensor:
        """[n] int64, i − parent, so that a branch's steps add up to the row after its last token."""
        return torch.arange(1, len(self.parents) + 1, device=self.device) - self.rows

    @cached_property
    def families(self) -> Tensor:
        """[n] int64, a number shared by siblings, counted from 0 by first appearance."""
        numbers: dict[int, int] = {}
        numbered = [numbers.setdefault(parent, len(numbers)) for parent in self.parents]
        return to_device(numbered, self.device)

    def judging(self, table: Tensor) -> Tensor:
        """From target rows [n + 1, ...], the one that judges each token: [n, ...]."""
        return table[:-1] if self.is_chain else table.index_select(0, self.rows)

    def judging_cells(self, table: Tensor, ids: Tensor) -> Tensor:
        """[n, k]: from target rows [n + 1, vocab], the cells of `ids` [n, k] in each token's judging row."""
        if self.is_chain:
            return table[:-1].gather(-1, ids)
        # Unlike `judging`, copies no rows.
        return table[self.rows.unsqueeze(-1), ids]

    def path(self, passed: Tensor) -> Tensor:
        """accepted [n]: from the root on, the first sibling that passes. `passed` [n]: which tokens would."""
        if self.is_chain:
            return passed.cumprod(0)
        chosen = passed & ~(passed & self.elders).any(-1)
        return (chosen | ~self.ancestors).all(-1)

    @property
    def widths(self) -> tuple[int, ...]:
        """By level, the most siblings that there may be."""
        return (max(map(self.parents.count, self.parents)),) * draft_depth(self.parents)

    def children(self) -> Tensor:
        """[n + 1, most siblings] int64: by row, the tokens that it judges, in the order in which they are tried; −1
        where there are no more."""
        count = len(self.parents)
        table = self.rows.new_full((count + 1, max(self.widths)), -1)
        table[self.rows, self.elders.sum(-1)] = torch.arange(count, device=self.device)
        return table

    def row_after(self, accepted: Tensor) -> Tensor:
        """[1] int64, the target row after the last accepted token."""
        return (accepted if self.is_chain else accepted * self.steps).sum(0, keepdim=True)


class GrownTree(TreeShape):
    """A tree that was grown on a device, where its shape depends on what was drafted.

    `Draft.logits` has a row for the text and one for each token that may be continued, so that what siblings have in
    common is the number of the row that judges them. rows: [n] int64. ancestors: [n, n] bool. widths: as far as the
    host knows them.
    """

    widths: tuple[int, ...] = ()

    def __init__(self, rows: Tensor, ancestors: Tensor, widths: tuple[int, ...]):
        super().__init__((-1,) * len(rows), rows.device)
        self.is_chain, self.widths = False, widths
        self.rows, self.ancestors, self.families = rows, ancestors, rows


@lru_cache(maxsize=256)
def tree_shape(parents: tuple[int, ...], device: torch.device) -> TreeShape:
    """Cached: chains come in few shapes; trees that grow with the draft keep bringing new ones."""
    return TreeShape(parents, device)
