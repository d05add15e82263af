"""The acceptance rules: which draft tokens are kept, and what the target says where they end.

Pure functions on tensors; no rule knows who drafted. n draft tokens give n + 1 target rows: row 0 follows the
committed text, row i + 1 follows draft token i, so token i is judged by row parent + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from specviz.rules.sampling import at_hand, draw_with_sums


@dataclass(frozen=True, slots=True)
class Decision:
    """What a rule decided about n draft tokens, still on the device.

    kept: [n] bool or 0/1, the tokens of one path from the root. p, q, accept_prob: [n] float32, each token's
    probability under target and drafter, and what its coin had to stay below; q is None if greedy. row: [1] int64, the
    target row the next token comes from. next_token: [] int64. next_probs: [vocab] float32, what it was drawn from (the
    residual, or the target's row itself), and next_sums: [vocab] float64, its running sums; None if greedy. p_left: [n]
    float32, each token's probability in what its earlier siblings left of the target; None where that is p. distance:
    [] float32, see `Round`; None under a lossless rule.
    """

    kept: Tensor
    p: Tensor
    q: Tensor | None
    accept_prob: Tensor
    row: Tensor
    next_token: Tensor
    next_probs: Tensor | None
    next_sums: Tensor | None
    p_left: Tensor | None = None
    distance: Tensor | None = None


class Shape:
    """The shape of a draft, as tensors on a device, each laid out when it is first asked for.

    A chain's questions have shorter answers than a tree's.
    """

    def __init__(self, parents: tuple[int, ...], device: torch.device):
        self.parents = parents
        self.device = device
        self.is_chain = parents == tuple(range(-1, len(parents) - 1))

    @cached_property
    def rows(self) -> Tensor:
        """[n] int64, the target row that judges each token."""
        return torch.tensor(self.parents, dtype=torch.long, device=self.device) + 1

    @cached_property
    def ancestors(self) -> Tensor:
        """[n, n] bool, (i, j) says that token j is i itself or stands before it on its branch."""
        n = len(self.parents)
        # Bytes rather than tensor operations, of which each costs more than a whole row here.
        cells = bytearray(n * n)
        for token, parent in enumerate(self.parents):
            if parent >= 0:
                cells[token * n : token * n + n] = cells[parent * n : parent * n + n]
            cells[token * n + token] = True
        branch = torch.frombuffer(cells, dtype=torch.bool).view(n, n) if n else torch.empty(0, 0, dtype=torch.bool)
        return branch.to(self.device)

    @cached_property
    def elders(self) -> Tensor:
        """[n, n] bool, (i, j) says that token j is a sibling of i and tried before it."""
        return (self.rows.unsqueeze(-1) == self.rows).tril(-1)

    @cached_property
    def steps(self) -> Tensor:
        """[n] int64, i − parent, so that a branch's steps add up to the row after its last token."""
        return torch.arange(1, len(self.parents) + 1, device=self.device) - self.rows

    @cached_property
    def families(self) -> Tensor:
        """[n] int64, siblings by a number they share, from 0 on in the order of the first of each."""
        numbers: dict[int, int] = {}
        numbered = [numbers.setdefault(parent, len(numbers)) for parent in self.parents]
        return torch.tensor(numbered, dtype=torch.long, device=self.device)

    def judging(self, table: Tensor) -> Tensor:
        """Of [n + 1, ...] target rows the one that judges each token, [n, ...]."""
        return table[:-1] if self.is_chain else table.index_select(0, self.rows)

    def judging_cells(self, table: Tensor, ids: Tensor) -> Tensor:
        """[n, k]: of [n + 1, vocab] target rows the cells of `ids` [n, k] in the one that judges each token."""
        if self.is_chain:
            return table[:-1].gather(-1, ids)
        # Copies no row, as `judging` would.
        return table[self.rows.unsqueeze(-1), ids]

    def path(self, passed: Tensor) -> Tensor:
        """kept [n], where `passed` [n] says which tokens would pass: from the root on, the first sibling that does."""
        if self.is_chain:
            return passed.cumprod(0)
        chosen = passed & ~(passed & self.elders).any(-1)
        return (chosen | ~self.ancestors).all(-1)

    def row_after(self, kept: Tensor) -> Tensor:
        """[1] int64, the target row that follows the last of the kept tokens."""
        return (kept if self.is_chain else kept * self.steps).sum(0, keepdim=True)


@lru_cache(maxsize=256)
def shape_of(parents: tuple[int, ...], device: torch.device) -> Shape:
    """Chains come in few shapes, each laid out once; trees that grow with what is drafted in ever new ones."""
    return Shape(parents, device)


def residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """norm(max(0, p − q)) of float32 distributions [..., vocab]: what is left of the target after the drafter's say.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 (p'); Chen et al. 2023, arXiv 2302.01318, (·)+.
    It sums to 0 only when p = q up to rounding; then p itself is the right distribution.
    """
    left = (target_probs - draft_probs).clamp_min_(0)
    total = left.sum(-1, keepdim=True)
    if at_hand(total) and total.min().item() > 0:
        # `where` takes as long as all the rest.
        return left.div_(total)
    return torch.where(total > 0, left / total, target_probs)


def follow_target(target_choices: Tensor | None, target_probs: Tensor | None, next_u: Tensor) -> Decision:
    """Nothing was drafted: the next token is the target's own, its choice if greedy, else a draw from its one row.

    target_choices: [1] int64, or None; then target_probs: [1, vocab]. What the rules below come to for n = 0.
    """
    nothing = next_u.new_empty(0)
    if target_choices is not None:
        next_token, next_probs, next_sums = target_choices[0], None, None
    else:
        next_probs = target_probs[0]
        next_token, next_sums = draw_with_sums(next_probs, next_u)
    return Decision(nothing, nothing, nothing, nothing, next_u.new_zeros(1), next_token, next_probs, next_sums)


def verify_by_rejection(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, coins: Tensor, next_u: Tensor
) -> Decision:
    """Speculative (rejection) sampling of a chain: keep x with probability min(1, p(x)/q(x)), else use the residual.

    draft_tokens: [n] int64. draft_probs: [n, vocab], the distributions the tokens were *really* drawn from, or None
    for point masses (a copied token: q = 1). target_probs: [n + 1, vocab]. coins: [n] uniforms. next_u: [] uniform.

    The law of what is emitted is the target's: P(x) = q·min(1, p/q) + P(rejected)·residual(x) = p(x).
    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1 and App. A.1. The test is strict (u < p/q): a coin can be
    exactly 0, and a token to which the target gives nothing must not pass.
    """
    n = draft_tokens.shape[0]
    column = draft_tokens.unsqueeze(-1)
    p = target_probs[:n].gather(-1, column).squeeze(-1)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(-1, column).squeeze(-1)
    accept_prob = (p / q).clamp_max_(1)
    kept = (coins < accept_prob).cumprod(0)
    row = kept.sum(0, keepdim=True)
    # Nothing was drafted after the last row: q = 0 there, and the same residual draws the bonus token from p.
    if draft_probs is None:
        refused = _points_at(row, draft_tokens, torch.arange(n, device=row.device), target_probs)
    else:
        refused = _draft_row(row, draft_probs)
    next_probs = residual(target_probs.index_select(0, row)[0], refused)
    next_token, next_sums = draw_with_sums(next_probs, next_u)
    return Decision(kept, p, q, accept_prob, row, next_token, next_probs, next_sums)


def verify_by_block(
    draft_tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor, coins: Tensor, next_u: Tensor
) -> Decision:
    """Block verification of a chain: the draft is judged as a whole, and kept up to the last position that passes.

    The arguments are those of `verify_by_rejection`, n ≥ 1; accept_prob is h. Sun et al. 2024, arXiv 2403.10444,
    Alg. 2, with M_b the target and M_s the drafter: p_0 = 1, p_i = min(p_{i−1}·M_b(x_i)/M_s(x_i), 1),
    Z_i = Σ_x max(p_i·M_b(x) − M_s(x), 0) over the row after x_i, h_i = Z_i/(Z_i + 1 − p_i) and h_n = p_n. Keep up to
    the *largest* i whose coin is below h_i, 0 if none is; the next token's law is ∝ max(p_i·M_b − M_s, 0) there, or the
    target's last row. What is emitted has the target's law, and no fewer tokens are kept in expectation than by
    judging them one by one.

    Where p_i = 1, h_i is 1: so it is for every Z_i > 0, and Z_i = 0 says that both models agree on the next token,
    which then passes in its turn. With p_i < 1 the denominator is positive; a token to which the target gives nothing
    makes p_i, Z_i and h_i zero from there on, and no coin is below that.
    """
    n = draft_tokens.shape[0]
    column = draft_tokens.unsqueeze(-1)
    p = target_probs[:n].gather(-1, column).squeeze(-1)
    q = torch.ones_like(p) if draft_probs is None else draft_probs.gather(-1, column).squeeze(-1)
    # The recursion unrolled: p_i is the likelihood ratio of the block over the largest it has been, 1 at least. Its
    # mean over drafts is at most 1, so float64 cannot overflow.
    ratio = (p.double() / q).cumprod(0)
    share = (ratio / ratio.cummax(0).values.clamp_min_(1)).float()
    scale = torch.nn.functional.pad(share[:-1], (1, 1), value=1.0)
    left = target_probs * scale.unsqueeze(-1)
    if draft_probs is None:
        left.scatter_(-1, column, 0.0)  # p·M_b − 1 is never positive
    else:
        left[:n] -= draft_probs
    total = left.clamp_min_(0).sum(-1)
    inner, z = share[:-1], total[1:n]
    accept_prob = torch.cat([torch.where(inner < 1, z / (z + (1 - inner)), 1.0), share[-1:]])

    positions = torch.arange(1, n + 1, device=draft_tokens.device)
    row = ((coins < accept_prob) * positions).amax(0, keepdim=True)
    left, total = left.index_select(0, row)[0], total.index_select(0, row)
    # Nothing is left only where p_i = 1 and both models agree: then the target itself is right, as in `residual`.
    next_probs = torch.where(total > 0, left / total, target_probs.index_select(0, row)[0])
    next_token, next_sums = draw_with_sums(next_probs, next_u)
    return Decision(positions <= row, p, q, accept_prob, row, next_token, next_probs, next_sums)


def verify_by_tree(
    draft_tokens: Tensor,
    parents: tuple[int, ...],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    coins: Tensor,
    next_u: Tensor,
) -> Decision:
    """Recursive rejection over a token tree: siblings are tried in turn, each against what those before it left.

    draft_tokens: [n ≥ 1] int64, siblings in the order in which they were drawn. parents: of each, −1 for the committed
    text. draft_probs: [n, vocab], the distribution each token was *really* drawn from (for a sibling without
    replacement: without those before it, renormalised), or None for point masses, siblings distinct. target_probs:
    [n + 1, vocab]. coins: [n] uniforms. next_u: [] uniform.

    At a node p_left begins as the target's row. Child x passes if its coin is below p_left(x)/q_x(x), and the walk goes
    on from x; a refusal makes p_left norm(max(0, p_left − q_x)). Where no child passes the next token is drawn from
    p_left. Each refusal is the step of `verify_by_rejection` with p_left for p, so the output has the target's law for
    any number of siblings that was settled before they were drawn. On a chain it *is* that rule.
    SpecInfer, Miao et al. 2023, arXiv 2305.09781, Alg. 2; siblings without replacement: Jeon et al. 2024, arXiv
    2402.14160, Alg. 1 (recursive rejection sampling).

    `p_left` of a sibling that was never tried is what it would have been with its elders refused where the draft is of
    point masses, and its p where it was drawn.
    """
    shape = shape_of(parents, draft_tokens.device)
    p = shape.judging_cells(target_probs, draft_tokens.unsqueeze(-1)).squeeze(-1)
    if draft_probs is None:
        q, p_left = torch.ones_like(p), _left_of_points(p, shape)
        kept = shape.path(coins < p_left)
        row = shape.row_after(kept)
        # A point mass takes its token and nothing else, so all that was refused there is taken at once.
        refused = _points_at(row, draft_tokens, shape.rows, target_probs)
        next_probs = residual(target_probs.index_select(0, row)[0], refused)
    else:
        q = draft_probs.gather(-1, draft_tokens.unsqueeze(-1)).squeeze(-1)
        p_left, path, next_probs = _walk(draft_tokens, parents, draft_probs, target_probs, p, q, coins)
        kept = torch.tensor([token in path for token in range(len(parents))], device=p.device)
        row = torch.tensor([path[-1] + 1], device=p.device)
    accept_prob = (p_left / q).clamp_max_(1)
    next_token, next_sums = draw_with_sums(next_probs, next_u)
    return Decision(kept, p, q, accept_prob, row, next_token, next_probs, next_sums, p_left)


def _draft_row(row: Tensor, draft_probs: Tensor) -> Tensor:
    """q [vocab] in a row [1] of a chain with draft_probs [n, vocab]: 0 in the last one, where nothing was drafted."""
    n = draft_probs.shape[0]
    if at_hand(row):
        # Saves four operations.
        index = row.item()
        return draft_probs[index] if index < n else torch.zeros_like(draft_probs[0])
    return (draft_probs.index_select(0, row.clamp_max(n - 1)) * (row < n))[0]


def _points_at(row: Tensor, tokens: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """[vocab]: 1 for each of the tokens [n] that is judged by `row` [1], where `rows` [n] judge them; else 0."""
    return torch.zeros_like(like[0]).index_add_(0, tokens, (rows == row).to(like.dtype))


def _left_of_points(p: Tensor, shape: Shape) -> Tensor:
    """p_left [n] of distinct point masses: a refusal takes its token's whole probability and nothing else."""
    rest = 1 - (shape.elders * p).sum(-1)
    # The rest holds the token itself; rounding must not say otherwise, nor divide 0 by 0.
    return p / torch.maximum(rest, p).clamp_min_(torch.finfo(p.dtype).tiny)


def _walk(
    draft_tokens: Tensor,
    parents: tuple[int, ...],
    draft_probs: Tensor,
    target_probs: Tensor,
    p: Tensor,
    q: Tensor,
    coins: Tensor,
) -> tuple[Tensor, list[int], Tensor]:
    """From the root to where no child passes: p_left [n], the kept tokens after −1, the root, and what is left there.

    On the host, token by token: a residual over the vocabulary is made for each refusal on the way and for no other
    sibling. Made for all siblings of a tree at once, without waiting for the device, they cost several times more.
    """
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for token, parent in enumerate(parents):
        children[parent + 1].append(token)
    ids, coin, ratio = torch.stack([draft_tokens.double(), coins.double(), (p / q).double()]).tolist()
    p_left, path = p.clone(), [-1]
    left, untried = target_probs[0], children[0]
    while untried:
        token, *untried = untried
        if coin[token] < ratio[token]:
            path.append(token)
            left, untried = target_probs[token + 1], children[token + 1]
            continue
        left = residual(left, draft_probs[token])
        if untried:
            sibling = untried[0]
            p_left[sibling] = left[int(ids[sibling])]
            ratio[sibling] = (p_left[sibling] / q[sibling]).item()
    at_a_leaf = not children[path[-1] + 1]
    return p_left, path, left / left.sum() if at_a_leaf else left


def verify_by_typical(
    draft_tokens: Tensor,
    parents: tuple[int, ...],
    target_probs: Tensor,
    next_u: Tensor,
    epsilon: float = 0.09,
    delta: float = 0.3,
) -> Decision:
    """Typical acceptance, LOSSY: keep the longest path of tokens that the target finds likely enough, without a coin.

    draft_tokens: [n ≥ 1] int64, chosen and not drawn (a drafter's likeliest). parents: of each, −1 for the committed
    text. target_probs: [n + 1, vocab]. next_u: [] uniform.

    A token is acceptable if p(x) > min(ε, δ·exp(−H(p))), H the entropy of its row in nats; among paths of equal length
    the one drafted first is kept, and the next token is drawn from the target's own row there. Medusa, Cai et al. 2024,
    arXiv 2401.10774, section 2.3.1; ε and δ = √ε are the defaults of its code (`posterior_threshold`,
    `posterior_alpha`).

    accept_prob is 1 or 0. distance: what is kept no longer depends on chance, so where a first token x is kept the
    round's first token is always x, and the total variation to the target's row is 1 − p(x); elsewhere it is 0.
    """
    shape = shape_of(parents, draft_tokens.device)
    p = shape.judging_cells(target_probs, draft_tokens.unsqueeze(-1)).squeeze(-1)
    entropy = torch.special.entr(target_probs).sum(-1)
    threshold = (delta * torch.exp(-entropy)).clamp_max_(epsilon)
    acceptable = p > shape.judging(threshold)
    reached = (acceptable | ~shape.ancestors).all(-1)
    longest = (reached * shape.ancestors.sum(-1)).argmax(0, keepdim=True)
    kept = shape.ancestors.index_select(0, longest)[0] & reached.index_select(0, longest)
    row = shape.row_after(kept)
    next_probs = target_probs.index_select(0, row)[0]
    distance = ((1 - p) * (kept & (shape.rows == 0))).sum()
    next_token, next_sums = draw_with_sums(next_probs, next_u)
    one = torch.ones_like(p)
    return Decision(kept, p, one, acceptable.float(), row, next_token, next_probs, next_sums, distance=distance)


def verify_by_match(draft_tokens: Tensor, parents: tuple[int, ...], target_choices: Tensor) -> Decision:
    """Greedy, for chains and trees: keep draft tokens while each is the target's own first choice.

    draft_tokens: [n] int64; of equal siblings only the first can be kept. parents: of each, −1 for the committed text.
    target_choices: [n + 1] int64, the likeliest token of each target row. No coin is flipped: this is the rule of
    trees at temperature 0, where p and q are point masses, p/q is 0 or 1, and the residual is p itself.
    """
    shape = shape_of(parents, draft_tokens.device)
    match = draft_tokens == shape.judging(target_choices)
    kept = shape.path(match)
    row = shape.row_after(kept)
    p = match.float()
    # index_select, because plain indexing would fetch the row to the host first.
    return Decision(kept, p, None, p, row, target_choices.index_select(0, row)[0], None, None)
