"""What the record of a round is made of: gathered on the device, and fetched from there in one transfer.

The cost is in many small operations, not in arithmetic, so each part is fetched for all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms, Verdict
from specviz.rules.transfer import Layout, to_host

#: How many of the likeliest tokens a row lists, each for target and drafter.
TOP = 5

Ids = Sequence[int]
Numbers = Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A judged round of n draft tokens as plain values, each named as its part of `parts_of`.

    What a round does not have is None, or empty: it drafted nothing, drew nothing, or the part would say the same as
    another one.
    """

    # The token that ends it
    next_token: int
    next_u: float
    row: Ids  # [1] the target row that it comes from
    line: Ids = ()  # it, then the likeliest of the distribution that it was drawn from; empty at temperature 0
    line_probs: Numbers = ()
    line_ends: Numbers = ()  # where each ends on the line that u fell on
    line_total: float = 1.0
    residual_ids: Ids = ()  # [TOP] the likeliest of that distribution
    residual: Numbers = ()
    # The rows' own lists, [n + 1, TOP]
    leading: Sequence[Ids]
    leading_raw: Sequence[Numbers]
    leading_p: Sequence[Numbers] = ()  # empty: as `leading_raw`
    choice: Ids = ()  # [n + 1] the likeliest token, at temperature 0
    reach: Numbers = ()  # [n + 1], see `Candidates`
    allowed: Ids = ()  # [n + 1] how many tokens a grammar allows; 0 where the row is not masked
    allowed_mass: Numbers = ()  # [n + 1], see `Candidates`
    # The draft tokens, [n]
    token: Ids = ()
    accepted: Sequence[bool] = ()
    p: Numbers = ()
    q: Numbers = ()  # empty at temperature 0
    accept_prob: Numbers = ()  # empty: as p
    u: Numbers = ()  # empty where no coin is flipped
    p_left: Numbers = ()  # empty: as p
    weighed: Sequence[bool] = ()  # the tokens of the path that the rule picked; empty where it walks through all
    draw: Numbers = ()
    distance: float | None = None
    # The lists of the rows that judged them, [n, 2 · TOP + 1]; the token itself comes last
    ids: Sequence[Ids] = ()
    ids_raw: Sequence[Numbers] = ()
    ids_p: Sequence[Numbers] = ()  # empty: as `ids_raw`
    ids_q_raw: Sequence[Numbers] = ()
    ids_q: Sequence[Numbers] = ()  # empty: as `ids_q_raw`

    @classmethod
    def of(cls, verdict: Verdict, reachable: Tensor | None) -> Fetched:
        """In one transfer."""
        rows, decision, uniforms = verdict.details()
        parts = parts_of(verdict.draft, rows, decision, uniforms, reachable)
        if verdict.unmasked is not None:
            parts |= _allowed_parts(rows.logits, verdict.unmasked.float())
        return cls(**to_host(parts))

    @classmethod
    def unpacked(cls, layout: Layout, row: Tensor) -> Fetched:
        """From a row on the host that holds these parts among others."""
        return cls(**layout.read(row, *_NAMES))


_NAMES = tuple(field.name for field in fields(Fetched))


def parts_of(
    draft: Draft, rows: TargetRows, decision: Decision, uniforms: Uniforms, reachable: Tensor | None
) -> dict[str, Tensor]:
    """Everything that the record of a round is made of, on the device. reachable: see `Drafter`."""
    drawn_from = draft.probs if decision.drawn_from is None else decision.drawn_from
    parts = _decision_parts(draft, decision, uniforms) | _listed_parts(draft, rows, drawn_from)
    if reachable is not None:
        choices = rows.choices
        parts["reach"] = (rows.drawn_from * reachable).sum(-1) if choices is None else reachable[choices].float()
    return parts | _line_parts(decision, parts.get("residual_ids", parts["leading"]))


def _allowed_parts(masked: Tensor, unmasked: Tensor) -> dict[str, Tensor]:
    """What a grammar leaves of the target's rows of logits [n + 1, vocab]."""
    is_masked = (masked != unmasked).any(-1)
    mass = (masked.logsumexp(-1) - unmasked.logsumexp(-1)).exp()
    return {"allowed": masked.isfinite().sum(-1) * is_masked, "allowed_mass": mass.clamp_max(1)}


def _decision_parts(draft: Draft, decision: Decision, uniforms: Uniforms) -> dict[str, Tensor]:
    parts = {"next_token": decision.next_token, "next_u": uniforms.next, "row": decision.row}
    if not draft.parents:
        return parts
    parts |= {"token": draft.tokens, "accepted": decision.accepted, "p": decision.p}
    optional = {"p_left": decision.p_left, "weighed": decision.weighed, "distance": decision.distance}
    optional["draw"] = draft.draws
    if decision.next_probs is not None:
        optional["q"], parts["accept_prob"] = decision.q, decision.accept_prob
        if decision.distance is None:  # a lossy rule flips no coins
            parts["u"] = uniforms.accept[: len(draft.parents)]
        parts["residual"], parts["residual_ids"] = _leading(decision.next_probs)
    return parts | {name: part for name, part in optional.items() if part is not None}


def _listed_parts(draft: Draft, rows: TargetRows, drawn_from: Tensor | None) -> dict[str, Tensor]:
    """Which ids each row lists, and their probabilities under target and drafter.

    Filters and temperature preserve the order of tokens, so the likeliest before warping are the likeliest after it.
    The rows' own lists are [n + 1, TOP]. The draft tokens' lists, [n, 2 · TOP + 1], cover the rows that judged them:
    the target's likeliest, the drafter's, and the token itself.
    """
    raw, warped = rows.raw, rows.probs if rows.warped else None
    leading_raw, leading = _leading(raw)
    parts = {"leading": leading, "leading_raw": leading_raw}
    if rows.choices is not None:
        parts["choice"] = rows.choices
    if warped is not None:
        parts["leading_p"] = warped.gather(-1, leading)
    if not draft.parents:
        return parts
    shape = draft.shape
    lists = [shape.judging(leading), draft.tokens.unsqueeze(-1)]
    draft_raw = drawn_from if draft.logits is None else draft.logits.softmax(-1)
    if draft_raw is not None:
        drafter_ids = _leading(draft_raw)[1]
        # Siblings were drafted from the same row.
        lists.insert(1, drafter_ids if shape.is_chain else drafter_ids.index_select(0, shape.families))
    ids = torch.cat(lists, dim=-1)
    parts |= {"ids": ids, "ids_raw": shape.judging_cells(raw, ids)}
    if warped is not None:
        parts["ids_p"] = shape.judging_cells(warped, ids)
    if draft_raw is not None:
        q_raw = draft_raw.gather(-1, ids) if shape.is_chain else draft_raw[shape.families.unsqueeze(-1), ids]
        parts["ids_q_raw"] = q_raw
    if drawn_from is not None and drawn_from is not draft_raw:
        parts["ids_q"] = drawn_from.gather(-1, ids)
    return parts


def _leading(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's likeliest probabilities, [..., TOP] (fewer in a smaller vocabulary), and their ids."""
    return rows.topk(min(TOP, rows.shape[-1]))


def _line_parts(decision: Decision, likeliest: Tensor) -> dict[str, Tensor]:
    """The next token, then the likeliest of the distribution it was drawn from, with that distribution's sums."""
    if decision.next_probs is None or decision.next_sums is None:
        return {}
    ids = torch.cat([decision.next_token.view(1), likeliest.view(-1)])
    return {
        "line": ids,
        "line_probs": decision.next_probs.index_select(0, ids),
        "line_ends": decision.next_sums.index_select(0, ids),
        "line_total": decision.next_sums[-1],
    }
