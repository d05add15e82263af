"""From tensors on the device to the plain values of a round, in one transfer.

Small operations are what this costs, not arithmetic: each part is fetched for all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from specviz.drafters.base import Draft
from specviz.records import Candidates, DraftedToken, NextToken, Outcome
from specviz.sampling import Warper
from specviz.text import TokenTexts
from specviz.verify import Decision, shape_of

#: How many of the likeliest tokens a row lists: this many of the target's and as many of the drafter's.
TOP = 5

Host = dict[str, list[float]]
Listed = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Uniforms:
    """One round's share of chance, on the device: draft [γ], accept [γ], next []; float32 values held as float64."""

    draft: Tensor
    accept: Tensor
    next: Tensor


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's say on n + 1 rows.

    raw: [n + 1, vocab] float32, its softmax at temperature 1. probs: the same as sampled from; raw itself if nothing
    warps it, None if greedy. choices: [n + 1] int64, the likeliest tokens; None unless greedy.
    """

    raw: Tensor
    probs: Tensor | None
    choices: Tensor | None

    @classmethod
    def of(cls, logits: Tensor, warper: Warper) -> TargetRows:
        logits = logits.float()
        raw = logits.softmax(-1)
        if warper.params.greedy:
            return cls(raw, None, logits.argmax(-1))
        return cls(raw, warper.probabilities(logits) if warper.changes_logits else raw, None)


@dataclass(frozen=True, slots=True)
class Report:
    """A round's decision in host values; see `Round` for the fields.

    path: indices of the kept draft tokens. choices: [n + 1], the target's likeliest token of each row.
    """

    drafted: tuple[DraftedToken, ...]
    next: NextToken
    top: tuple[Candidates, ...]
    path: tuple[int, ...]
    choices: tuple[int, ...]
    confidence: float | None = None
    distance: float | None = None


def report(
    draft: Draft, decision: Decision, rows: TargetRows, uniforms: Uniforms, texts: TokenTexts, weighs_all: bool = False
) -> Report:
    """Fetches what a record needs and builds it. weighs_all: the rule has looked at every draft token's coin."""
    parts = _decision_parts(draft, decision, uniforms) | _listed_parts(draft, rows)
    host = _fetch(parts | _line_parts(decision, parts.get("residual_ids", parts["leading"])))
    outcomes = _outcomes(draft.parents, host.get("kept", ()))
    drafted = tuple(
        _drafted_token(index, host, draft, outcome, texts, weighs_all) for index, outcome in enumerate(outcomes)
    )
    # Refused siblings of a token that was taken leave nothing to recover from: the last row decides.
    rejected = any(
        outcome == "rejected" and parent + 1 == int(host["row"][0]) for outcome, parent in zip(outcomes, draft.parents)
    )
    next_id = int(host["next_token"][0])
    below, line = _line(host) if "line" in host else (None, ())
    following = NextToken(
        id=next_id,
        text=texts.chip(next_id),
        kind="recovered" if rejected else "bonus",
        u=host["next_u"][0] if "line" in host else None,
        prob=host["line_probs"][0] if "line" in host else 1.0,
        below=below,
        line=line,
    )
    top = _candidates(host, draft, following if rejected else None)
    return Report(
        drafted=drafted,
        next=following,
        top=top,
        path=tuple(index for index, kept in enumerate(host.get("kept", ())) if kept),
        choices=tuple(map(int, host["choice"] if "choice" in host else host["leading"][::TOP])),
        confidence=draft.confidence,
        distance=host["distance"][0] if "distance" in host else None,
    )


def _outcomes(parents: tuple[int, ...], kept: Sequence[float]) -> list[Outcome]:
    """Rejected is what was tried and refused: it continues what was kept, and no earlier sibling was taken."""
    outcomes: list[Outcome] = []
    continued: set[int] = set()
    for index, parent in enumerate(parents):
        if kept[index]:
            outcomes.append("accepted")
            continued.add(parent)
        else:
            tried = (parent < 0 or bool(kept[parent])) and parent not in continued
            outcomes.append("rejected" if tried else "discarded")
    return outcomes


def _decision_parts(draft: Draft, decision: Decision, uniforms: Uniforms) -> dict[str, Tensor]:
    parts = {"next_token": decision.next_token, "next_u": uniforms.next}
    if not draft.parents:
        return parts
    parts |= {"token": draft.tokens, "kept": decision.kept, "p": decision.p, "row": decision.row}
    if decision.next_probs is not None:
        parts |= {"q": decision.q, "accept_prob": decision.accept_prob}
        if decision.distance is None:  # a lossy rule flips no coins
            parts["u"] = uniforms.accept[: len(draft.parents)]
        parts["residual"], parts["residual_ids"] = decision.next_probs.topk(TOP)
    if decision.p_left is not None:
        parts["p_left"] = decision.p_left
    if decision.distance is not None:
        parts["distance"] = decision.distance
    if draft.draws is not None:
        parts["draw"] = draft.draws
    return parts


def _listed_parts(draft: Draft, rows: TargetRows) -> dict[str, Tensor]:
    """Which ids each row lists, and what target and drafter give them.

    Filters and temperature keep the order of tokens, so the likeliest before warping are the likeliest after it.
    Row i + 1's own list is [n + 1, TOP]. A draft token's list, [n, 2 · TOP + 1], is of the row that judged it: the
    target's likeliest, the drafter's, and the token itself.
    """
    leading_raw, leading = rows.raw.topk(TOP)
    parts = {"leading": leading, "leading_raw": leading_raw}
    if rows.choices is not None:
        parts["choice"] = rows.choices
    if rows.probs is not None and rows.probs is not rows.raw:
        parts["leading_p"] = rows.probs.gather(-1, leading)
    if not draft.parents:
        return parts
    judging = shape_of(draft.parents, leading.device).rows
    column = draft.tokens.unsqueeze(-1)
    draft_raw = draft.probs if draft.logits is None else draft.logits.softmax(-1)
    drafters_own = () if draft_raw is None else (draft_raw.topk(TOP).indices,)
    ids = torch.cat([leading[judging], *drafters_own, column], dim=-1)
    parts |= {"ids": ids, "ids_raw": rows.raw[judging].gather(-1, ids)}
    if rows.probs is not None and rows.probs is not rows.raw:
        parts["ids_p"] = rows.probs[judging].gather(-1, ids)
    if draft_raw is not None:
        parts["ids_q_raw"] = draft_raw.gather(-1, ids)
    if draft.probs is not None and draft.probs is not draft_raw:
        parts["ids_q"] = draft.probs.gather(-1, ids)
    return parts


def _line_parts(decision: Decision, likeliest: Tensor) -> dict[str, Tensor]:
    """The next token and then the likeliest of the distribution it was drawn from, with that distribution's sums."""
    if decision.next_probs is None:
        return {}
    ids = torch.cat([decision.next_token.view(1), likeliest.view(-1)])
    return {
        "line": ids,
        "line_probs": decision.next_probs.index_select(0, ids),
        "line_ends": decision.next_sums.index_select(0, ids),
        "line_total": decision.next_sums[-1:],
    }


def _line(host: Host) -> tuple[float, tuple[tuple[int, float, float], ...]]:
    """Where the next token's piece begins, and the pieces of all listed tokens, as shares of the whole sum.

    u was scaled by that sum too, so it compares with these shares.
    """
    total = host["line_total"][0]
    pieces = {}
    for token, prob, end in zip(host["line"], host["line_probs"], host["line_ends"]):
        if prob > 0:
            pieces[int(token)] = (int(token), round(max(0.0, end - prob) / total, 6), round(end / total, 6))
    below = max(0.0, host["line_ends"][0] - host["line_probs"][0]) / total
    return below, tuple(sorted(pieces.values()))


def _fetch(parts: dict[str, Tensor]) -> Host:
    """All parts in one copy to the host: float64, as the uniforms are, which holds every id and float32 exactly."""
    flat = torch.cat([part.reshape(-1) for part in parts.values()]).tolist()
    host, start = {}, 0
    for name, part in parts.items():
        end = start + part.numel()
        host[name] = flat[start:end]
        start = end
    return host


def _drafted_token(
    index: int, host: Host, draft: Draft, outcome: Outcome, texts: TokenTexts, weighs_all: bool
) -> DraftedToken:
    token, parent, p = int(host["token"][index]), draft.parents[index], host["p"][index]
    # The token itself closes its row's list; greedy p is 0 or 1, and so is the chance to be kept.
    last = (index + 1) * (len(host["ids"]) // len(draft.parents)) - 1
    weighed = weighs_all or outcome != "discarded"
    p_left = host["p_left"][index] if "p_left" in host and weighed else p
    return DraftedToken(
        id=token,
        text=texts.chip(token),
        parent=parent,
        p=p,
        q=host["q"][index] if "q" in host else 1.0,
        p_raw=host["ids_raw"][last],
        q_raw=host["ids_q_raw"][last] if "ids_q_raw" in host else None,
        u=host["u"][index] if weighed and "u" in host else None,
        accept_prob=host.get("accept_prob", host["p"])[index] if weighed else None,
        outcome=outcome,
        draft_u=host["draw"][index] if "draw" in host else None,
        p_left=None if p_left == p else p_left,
        source=draft.sources[index] if draft.sources else None,
    )


def _candidates(host: Host, draft: Draft, recovered: NextToken | None) -> tuple[Candidates, ...]:
    """The lists of every row; `recovered` says that the row of the rejection has a residual."""
    n = len(draft.parents)
    children: dict[int, list[int]] = {}
    for token, parent in enumerate(draft.parents):
        children.setdefault(parent + 1, []).append(token)
    top = []
    for row in range(n + 1):
        residual: Listed = ()
        if recovered and row == int(host["row"][0]):
            residual = ((recovered.id, 1.0),) if "residual" not in host else _pairs(host, "residual_ids", "residual")
        if row in children:
            top.append(_with_drafter(host, draft, row, children[row], residual))
        else:
            top.append(_target_only(host, row, residual))
    return tuple(top)


def _with_drafter(host: Host, draft: Draft, row: int, siblings: list[int], residual: Listed) -> Candidates:
    """The lists of a row that draft tokens continue; the first of them speaks for the drafter."""
    width = len(host["ids"]) // len(draft.parents)
    cells = slice(siblings[0] * width, (siblings[0] + 1) * width)
    raw = _pairs(host, "ids", "ids_raw", cells)
    q_raw = _pairs(host, "ids", "ids_q_raw", cells) if "ids_q_raw" in host else ()
    if draft.probs is None:
        q = tuple((int(host["token"][token]), 1.0) for token in siblings)
    else:
        q = _pairs(host, "ids", "ids_q", cells) if "ids_q" in host else q_raw
    return Candidates(_warped(host, "ids", "ids_p", raw, row, cells), q, residual, raw, q_raw)


def _target_only(host: Host, row: int, residual: Listed) -> Candidates:
    cells = slice(row * TOP, (row + 1) * TOP)
    raw = _pairs(host, "leading", "leading_raw", cells)
    return Candidates(_warped(host, "leading", "leading_p", raw, row, cells), residual=residual, p_raw=raw)


def _warped(host: Host, ids: str, values: str, raw: Listed, row: int, cells: slice) -> Listed:
    """The target's list as sampled from: a point mass if greedy, its own if warped, else the raw one."""
    if "choice" in host:
        return ((int(host["choice"][row]), 1.0),)
    return _pairs(host, ids, values, cells) if values in host else raw


def _pairs(host: Host, ids: str, values: str, cells: slice = slice(None)) -> Listed:
    """(id, probability) pairs, likeliest first, without doubles and zeros."""
    pairs = {token: value for token, value in zip(host[ids][cells], host[values][cells]) if value > 0}
    ordered = sorted(pairs.items(), key=itemgetter(1), reverse=True)
    return tuple([(int(token), value) for token, value in ordered])
