"""From tensors on the device to a round's plain values, in one transfer.

The cost is in many small operations, not in arithmetic, so each part is fetched for all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

import torch
from torch import Tensor

from specviz.models.token_texts import TokenTexts
from specviz.records.runs import Candidates, DraftedToken, NextKind, NextToken, Outcome
from specviz.rules.base import Rule
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.sampling import at_hand
from specviz.rules.tree_shape import tree_shape

#: How many of the likeliest tokens a row lists, each for target and drafter.
TOP = 5

#: A record's parts by name: a value or list of values for each row or token, as from `Tensor.tolist`.
Host = dict[str, list]
Listed = tuple[tuple[int, float], ...]

#: Where an emitted token came from; ``plain``: the target's own, with nothing drafted.
Origin = Literal["accepted", "recovered", "bonus", "plain"]

_VALUE = itemgetter(1)


@dataclass(frozen=True, slots=True)
class Settled:
    """A round's decision as host values, ready for its record; see `Round` for the fields."""

    drafted: tuple[DraftedToken, ...]
    next: NextToken
    top: tuple[Candidates, ...]
    path: tuple[int, ...]  # indices of the kept draft tokens
    choices: tuple[int, ...]  # [n + 1] the target's likeliest token of each row
    confidence: float | None = None
    distance: float | None = None

    @property
    def next_id(self) -> int:
        return self.next.id


@dataclass(frozen=True, slots=True)
class Outline:
    """The same where no record is kept: only what decoding needs to continue."""

    path: tuple[int, ...]
    next_id: int
    origin: Origin  # of the next token
    tokens: tuple[int, ...]  # the kept draft tokens, then the next one
    choices: tuple[int, ...]


def outline(draft: Draft, decision: Decision, rows: TargetRows, uniforms: Uniforms) -> Outline:
    """Fetches what decoding needs to continue, in one transfer."""
    n = len(draft.parents)
    choices = rows.raw.argmax(-1) if rows.choices is None else rows.choices
    parts = [draft.tokens, decision.kept[:n].long(), decision.row.long(), decision.next_token.reshape(1), choices]
    host = torch.cat(parts).tolist()
    path = tuple(index for index in range(n) if host[n + index])
    row, next_id, *choices = host[2 * n :]
    refused = any(parent + 1 == row for parent in draft.parents)
    origin: Origin = "plain" if not draft.parents else "recovered" if refused else "bonus"
    return Outline(path, next_id, origin, (*(host[index] for index in path), next_id), tuple(choices))


def settle(
    draft: Draft, decision: Decision, rows: TargetRows, uniforms: Uniforms, texts: TokenTexts, rule: Rule
) -> Settled:
    """Fetches what a record needs and builds it."""
    drawn_from = draft.probs if decision.drawn_from is None else decision.drawn_from
    parts = _decision_parts(draft, decision, uniforms) | _listed_parts(draft, rows, drawn_from)
    host = _fetch(parts | _line_parts(decision, parts.get("residual_ids", parts["leading"])))
    kept = host.get("kept", ())
    outcomes = _outcomes(draft.parents, kept, host.get("weighed"))
    drafted = tuple(
        [_drafted_token(index, host, draft, outcome, texts, rule.weighs_all) for index, outcome in enumerate(outcomes)]
    )
    # Refused siblings of an accepted token leave nothing to recover from: only the last row decides.
    last = host["row"][0] - 1
    rejected = ("rejected", last) in zip(outcomes, draft.parents)
    following = _next_token(host, texts, "recovered" if rejected else "bonus")
    return Settled(
        drafted=drafted,
        next=following,
        top=_candidates(host, draft, following if rejected else None),
        path=tuple([index for index, taken in enumerate(kept) if taken]),
        choices=tuple(host["choice"] if "choice" in host else [leading[0] for leading in host["leading"]]),
        confidence=draft.confidence,
        distance=host.get("distance"),
    )


def _outcomes(parents: tuple[int, ...], kept: Sequence[float], weighed: Sequence[bool] | None) -> list[Outcome]:
    """Rejected means tried and refused: it continues what was kept, and no earlier sibling was accepted.

    weighed: the tokens of the path that the rule picked; None where it walks through all.
    """
    outcomes: list[Outcome] = []
    continued: set[int] = set()
    for index, parent in enumerate(parents):
        if kept[index]:
            outcomes.append("accepted")
            continued.add(parent)
        else:
            tried = (parent < 0 or bool(kept[parent])) and parent not in continued
            tried = tried and (weighed is None or weighed[index])
            outcomes.append("rejected" if tried else "discarded")
    return outcomes


def _decision_parts(draft: Draft, decision: Decision, uniforms: Uniforms) -> dict[str, Tensor]:
    parts = {"next_token": decision.next_token, "next_u": uniforms.next, "row": decision.row}
    if not draft.parents:
        return parts
    parts |= {"token": draft.tokens, "kept": decision.kept, "p": decision.p}
    if decision.next_probs is not None:
        parts |= {"q": decision.q, "accept_prob": decision.accept_prob}
        if decision.distance is None:  # a lossy rule flips no coins
            parts["u"] = uniforms.accept[: len(draft.parents)]
        parts["residual"], parts["residual_ids"] = decision.next_probs.topk(TOP)
    if decision.p_left is not None:
        parts["p_left"] = decision.p_left
    if decision.weighed is not None:
        parts["weighed"] = decision.weighed
    if decision.distance is not None:
        parts["distance"] = decision.distance
    if draft.draws is not None:
        parts["draw"] = draft.draws
    return parts


def _listed_parts(draft: Draft, rows: TargetRows, drawn_from: Tensor | None) -> dict[str, Tensor]:
    """Which ids each row lists, and their probabilities under target and drafter.

    Filters and temperature preserve the order of tokens, so the likeliest before warping are the likeliest after it.
    The rows' own lists are [n + 1, TOP]. The draft tokens' lists, [n, 2 · TOP + 1], cover the rows that judged them:
    the target's likeliest, the drafter's, and the token itself.
    """
    leading_raw, leading = rows.raw.topk(TOP)
    parts = {"leading": leading, "leading_raw": leading_raw}
    warped = rows.probs is not None and rows.probs is not rows.raw
    if rows.choices is not None:
        parts["choice"] = rows.choices
    if warped:
        parts["leading_p"] = rows.probs.gather(-1, leading)
    if not draft.parents:
        return parts
    shape = tree_shape(draft.parents, leading.device)
    lists = [shape.judging(leading), draft.tokens.unsqueeze(-1)]
    draft_raw = drawn_from if draft.logits is None else draft.logits.softmax(-1)
    if draft_raw is not None:
        drafters_own = draft_raw.topk(TOP).indices
        # Siblings were drafted from the same row.
        lists.insert(1, drafters_own if shape.is_chain else drafters_own.index_select(0, shape.families))
    ids = torch.cat(lists, dim=-1)
    parts |= {"ids": ids, "ids_raw": shape.judging_cells(rows.raw, ids)}
    if warped:
        parts["ids_p"] = shape.judging_cells(rows.probs, ids)
    if draft_raw is not None:
        own = draft_raw.gather(-1, ids) if shape.is_chain else draft_raw[shape.families.unsqueeze(-1), ids]
        parts["ids_q_raw"] = own
    if drawn_from is not None and drawn_from is not draft_raw:
        parts["ids_q"] = drawn_from.gather(-1, ids)
    return parts


def _line_parts(decision: Decision, likeliest: Tensor) -> dict[str, Tensor]:
    """The next token, then the likeliest of the distribution it was drawn from, with that distribution's sums."""
    if decision.next_probs is None:
        return {}
    ids = torch.cat([decision.next_token.view(1), likeliest.view(-1)])
    return {
        "line": ids,
        "line_probs": decision.next_probs.index_select(0, ids),
        "line_ends": decision.next_sums.index_select(0, ids),
        "line_total": decision.next_sums[-1],
    }


def _fetch(parts: dict[str, Tensor]) -> Host:
    """All parts as lists. From another device they come in one copy, as float64, which holds every id and float32
    exactly; on a CPU each is read in place."""
    if not at_hand(parts["leading"]):
        flat = torch.cat([part.reshape(-1) for part in parts.values()]).cpu()
        cells = flat.split([part.numel() for part in parts.values()])
        parts = {name: cell.view(part.shape).to(part.dtype) for cell, (name, part) in zip(cells, parts.items())}
    return {name: part.tolist() for name, part in parts.items()}


def _next_token(host: Host, texts: TokenTexts, kind: NextKind) -> NextToken:
    token = host["next_token"]
    if "line" not in host:
        return NextToken(id=token, text=texts.chip(token), kind=kind, u=None, prob=1.0)
    below, line = _line(host)
    return NextToken(
        id=token,
        text=texts.chip(token),
        kind=kind,
        u=host["next_u"],
        prob=host["line_probs"][0],
        below=below,
        line=line,
    )


def _line(host: Host) -> tuple[float, tuple[tuple[int, float, float], ...]]:
    """Where the next token's interval begins, and the intervals of all listed tokens, as shares of the total.

    u was scaled by that total too, so it compares with these shares.
    """
    total = host["line_total"]
    pieces = {}
    for token, prob, end in zip(host["line"], host["line_probs"], host["line_ends"]):
        if prob > 0:
            pieces[token] = (token, round(max(0.0, end - prob) / total, 6), round(end / total, 6))
    below = max(0.0, host["line_ends"][0] - host["line_probs"][0]) / total
    return below, tuple(sorted(pieces.values()))


def _drafted_token(
    index: int, host: Host, draft: Draft, outcome: Outcome, texts: TokenTexts, weighs_all: bool
) -> DraftedToken:
    token, p = host["token"][index], host["p"][index]
    weighed = host["weighed"][index] if "weighed" in host else weighs_all or outcome != "discarded"
    p_left = host["p_left"][index] if "p_left" in host and weighed else p
    return DraftedToken(
        id=token,
        text=texts.chip(token),
        parent=draft.parents[index],
        p=p,
        q=host["q"][index] if "q" in host else 1.0,
        # The token itself comes last in its row's list.
        p_raw=host["ids_raw"][index][-1],
        q_raw=host["ids_q_raw"][index][-1] if "ids_q_raw" in host else None,
        u=host["u"][index] if weighed and "u" in host else None,
        # Greedy p is 0 or 1, and so is the acceptance probability.
        accept_prob=host.get("accept_prob", host["p"])[index] if weighed else None,
        outcome=outcome,
        draft_u=host["draw"][index] if "draw" in host else None,
        p_left=None if p_left == p else p_left,
        source=draft.sources[index] if draft.sources else None,
    )


def _candidates(host: Host, draft: Draft, recovered: NextToken | None) -> tuple[Candidates, ...]:
    """The lists of every row. recovered: given if a token was rejected, whose row then has a residual."""
    children: list[list[int]] = [[] for _ in range(len(draft.parents) + 1)]
    for token, parent in enumerate(draft.parents):
        children[parent + 1].append(token)
    top = []
    for row, siblings in enumerate(children):
        residual: Listed = ()
        if recovered and row == host["row"][0]:
            whole = ((recovered.id, 1.0),)
            residual = _pairs(host["residual_ids"], host["residual"]) if "residual" in host else whole
        top.append(_row_lists(host, draft, row, siblings, residual))
    return tuple(top)


def _row_lists(host: Host, draft: Draft, row: int, siblings: list[int], residual: Listed) -> Candidates:
    """The lists of one row. The first token that continues it stands for the drafter; of several paths, the picked."""
    picked = [token for token in siblings if "weighed" in host and host["weighed"][token]]
    name, place = ("ids", (picked or siblings)[0]) if siblings else ("leading", row)
    ids = host[name][place]
    p = p_raw = _pairs(ids, host[f"{name}_raw"][place])
    q = q_raw = _pairs(ids, host["ids_q_raw"][place]) if siblings and "ids_q_raw" in host else ()
    if "choice" in host:
        p = ((host["choice"][row], 1.0),)
    elif f"{name}_p" in host:
        p = _pairs(ids, host[f"{name}_p"][place])
    if draft.probs is None:
        q = tuple([(host["token"][token], 1.0) for token in siblings])
    elif siblings and "ids_q" in host:
        q = _pairs(ids, host["ids_q"][place])
    return Candidates(p, q, residual, p_raw, q_raw)


def _pairs(ids: list[int], values: list[float]) -> Listed:
    """(id, probability) pairs, likeliest first, without duplicates and zeros."""
    pairs = sorted(dict(zip(ids, values)).items(), key=_VALUE, reverse=True)
    while pairs and not pairs[-1][1] > 0:
        pairs.pop()
    return tuple(pairs)
