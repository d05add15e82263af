"""From tensors on the device to the plain values of a round, in one transfer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.drafters.base import Draft
from specviz.records import Candidates, DraftedToken, NextToken, Outcome
from specviz.sampling import Warper
from specviz.text import TokenTexts
from specviz.verify import Decision

#: How many of the likeliest tokens a row lists: this many of the target's and as many of the drafter's.
TOP = 5

Host = dict[str, list[float]]
Listed = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TargetRows:
    """The target's [n + 1, vocab] float32 rows: `probs` as sampled from, `raw` its softmax at temperature 1."""

    probs: Tensor
    raw: Tensor

    @classmethod
    def of(cls, logits: Tensor, warper: Warper) -> TargetRows:
        probs = warper.probabilities(logits)
        return cls(probs, logits.float().softmax(-1) if warper.changes_logits else probs)


@dataclass(frozen=True, slots=True)
class Report:
    """A round's decision in host values; see `Round` for the fields. path: indices of the kept draft tokens."""

    drafted: tuple[DraftedToken, ...]
    next: NextToken
    top: tuple[Candidates, ...]
    path: tuple[int, ...]


def report(draft: Draft, decision: Decision, rows: TargetRows, coins: Tensor | None, texts: TokenTexts) -> Report:
    """Fetches what a record needs and builds it.

    coins: [n + 1] float32, the uniforms of the accept decisions and of the next token; None if greedy.
    """
    # A draft token's listed rivals are those of the row that judged it; of siblings, the first speaks for the drafter.
    child_of_row = {parent + 1: token for token, parent in reversed(list(enumerate(draft.parents)))}
    parts = _decision_parts(draft, decision, coins) | _raw_parts(draft, rows) | _listed_parts(draft, rows, child_of_row)
    parts["residual_ids"] = decision.next_probs.topk(TOP).indices
    parts["residual"] = decision.next_probs[parts["residual_ids"]]
    host = _fetch(parts)

    drafted = tuple(_drafted_token(index, host, draft.parents[index], texts) for index in range(len(draft.parents)))
    rejected = any(token.outcome == "rejected" for token in drafted)
    next_id = int(host["next_token"][0])
    following = NextToken(
        id=next_id,
        text=texts.chip(next_id),
        kind="recovered" if rejected else "bonus",
        u=host["coins"][-1] if coins is not None else None,
        prob=host["next_prob"][0],
    )
    top = _candidates(host, draft, child_of_row, residual_row=int(host["row"][0]) if rejected else None)
    return Report(drafted, following, top, tuple(index for index, kept in enumerate(host["kept"]) if kept))


def _decision_parts(draft: Draft, decision: Decision, coins: Tensor | None) -> dict[str, Tensor]:
    parts = {
        "token": draft.tokens,
        "kept": decision.kept,
        "judged": decision.judged,
        "p": decision.p,
        "q": decision.q,
        "accept_prob": decision.accept_prob,
        "next_token": decision.next_token,
        "next_prob": decision.next_probs[decision.next_token],
        "row": decision.row,
    }
    if coins is not None:
        parts["coins"] = coins
    if draft.draws is not None:
        parts["draws"] = draft.draws
    return parts


def _raw_parts(draft: Draft, rows: TargetRows) -> dict[str, Tensor]:
    """The models' own probability of each draft token."""
    if not draft.parents:
        return {}
    judging = torch.tensor(draft.parents, device=draft.tokens.device) + 1
    parts = {"p_raw": rows.raw[judging, draft.tokens]}
    if draft.logits is not None:
        column = draft.tokens.unsqueeze(-1)
        parts["q_raw"] = draft.logits.gather(-1, column).squeeze(-1).sub(draft.logits.logsumexp(-1)).exp()
    return parts


def _listed_parts(draft: Draft, rows: TargetRows, child_of_row: dict[int, int]) -> dict[str, Tensor]:
    """Which ids each row lists, [n + 1, ids], and what target and drafter give them.

    Filters and temperature keep the order of tokens, so the likeliest before warping are the likeliest after it.
    """
    ids = rows.raw.topk(TOP).indices
    parts = {}
    if draft.logits is not None and draft.parents:
        children = torch.tensor([child_of_row.get(row, -1) for row in range(len(rows.raw))], device=ids.device)
        drafter_ids = draft.logits.topk(TOP).indices[children]
        # Rows that nothing was drafted after list the target's ids twice; the record drops doubles.
        ids = torch.cat([ids, torch.where(children.unsqueeze(-1) < 0, ids, drafter_ids)], dim=-1)
        parts["listed_q_raw"] = draft.logits.softmax(-1)[children].gather(-1, ids)
        if draft.probs is not None:
            parts["listed_q"] = draft.probs[children].gather(-1, ids)
    parts |= {"ids": ids, "listed_p": rows.probs.gather(-1, ids), "listed_p_raw": rows.raw.gather(-1, ids)}
    return parts


def _fetch(parts: dict[str, Tensor]) -> Host:
    """All parts in one copy to the host. float64 holds every token id and every float32 exactly."""
    flat = torch.cat([part.reshape(-1).double() for part in parts.values()]).tolist()
    host, start = {}, 0
    for name, part in parts.items():
        host[name] = flat[start : start + part.numel()]
        start += part.numel()
    return host


def _drafted_token(index: int, host: Host, parent: int, texts: TokenTexts) -> DraftedToken:
    token, judged = int(host["token"][index]), bool(host["judged"][index])
    outcome: Outcome = "accepted" if host["kept"][index] else "rejected" if judged else "discarded"
    return DraftedToken(
        id=token,
        text=texts.chip(token),
        parent=parent,
        p=host["p"][index],
        q=host["q"][index],
        p_raw=host["p_raw"][index],
        q_raw=host["q_raw"][index] if "q_raw" in host else None,
        u=host["coins"][index] if judged and "coins" in host else None,
        accept_prob=host["accept_prob"][index] if judged else None,
        outcome=outcome,
        draft_u=host["draws"][index] if "draws" in host else None,
    )


def _candidates(
    host: Host, draft: Draft, child_of_row: dict[int, int], residual_row: int | None
) -> tuple[Candidates, ...]:
    count = len(draft.parents) + 1
    width = len(host["ids"]) // count
    top = []
    for row in range(count):
        cells = slice(row * width, (row + 1) * width)
        ids = [int(token) for token in host["ids"][cells]]
        q: Listed = ()
        q_raw: Listed = ()
        if row in child_of_row:
            q_raw = _listed(ids, host["listed_q_raw"][cells]) if "listed_q_raw" in host else ()
            if "listed_q" in host:
                q = _listed(ids, host["listed_q"][cells])
            else:
                copies = [token for token, parent in enumerate(draft.parents) if parent + 1 == row]
                q = tuple((int(host["token"][token]), 1.0) for token in copies)
        residual: Listed = ()
        if row == residual_row:
            residual = _listed([int(token) for token in host["residual_ids"]], host["residual"])
        p, p_raw = _listed(ids, host["listed_p"][cells]), _listed(ids, host["listed_p_raw"][cells])
        top.append(Candidates(p, q, residual, p_raw, q_raw))
    return tuple(top)


def _listed(ids: Iterable[int], values: Iterable[float]) -> Listed:
    """(id, probability) pairs, likeliest first, without doubles and zeros."""
    pairs = {token: value for token, value in zip(ids, values) if value > 0}
    return tuple(sorted(pairs.items(), key=lambda pair: -pair[1]))
