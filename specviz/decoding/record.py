"""Records: from a judged round's tensors on the device to plain values in one transfer; from rounds to a whole run.

The cost is in many small operations, not in arithmetic, so each part is fetched for all rows at once.
"""

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
import transformers
from torch import Tensor

from specviz.decoding.request import Request
from specviz.models.pair import ModelPair
from specviz.models.token_texts import TokenTexts
from specviz.records.runs import (
    Candidates,
    DraftedToken,
    LengthChoice,
    NextKind,
    NextToken,
    Outcome,
    Round,
    Run,
    Seconds,
    StopReason,
)
from specviz.records.settings import AUTO
from specviz.rules.draft import Decision, Draft, Rule, TargetRows, Uniforms, Verdict
from specviz.rules.sampling import require_numbers
from specviz.rules.transfer import to_host

#: How many of the likeliest tokens a row lists, each for target and drafter.
TOP = 5

#: How much memory rounds may take that wait for their records.
MOST_BYTES = 2**25

#: A record's parts by name: a value or list of values for each row or token, as from `Tensor.tolist`.
Host = dict[str, list]
Listed = tuple[tuple[int, float], ...]

_VALUE = itemgetter(1)


@dataclass(frozen=True, slots=True)
class PendingRound:
    """A round whose record is yet to be made. That takes a tenth of the round's time, and decoding does not need it."""

    verdict: Verdict
    texts: TokenTexts
    rule: Rule
    index: int
    emitted: tuple[int, ...]
    pieces: tuple[str, ...]
    seconds: Seconds
    stop_reason: StopReason | None = None
    choice: LengthChoice | None = None
    reachable: Tensor | None = None  # see `Drafter`
    read_again: int = 0  # see `Round`
    fetched: Callable[[], Host] | None = None  # what the record is made of, where it is on the host already

    @torch.inference_mode()
    def record(self) -> Round:
        verdict, draft = self.verdict, self.verdict.draft
        host = self.fetched() if self.fetched is not None else _host(verdict, self.reachable)
        for leading in host["leading_raw"]:
            require_numbers(leading[0])
        for listed in host.get("ids_q_raw", ()):
            require_numbers(sum(listed), drafted=True)  # a NaN among them makes their sum one
        outcomes = _outcomes(draft.parents, host.get("kept", ()), host.get("weighed"))
        drafted = [
            _drafted_token(place, host, draft, outcome, self.texts, self.rule) for place, outcome in enumerate(outcomes)
        ]
        recovered = verdict.ending == "recovered"
        following = _next_token(host, self.texts, "recovered" if recovered else "bonus")
        return Round(
            index=self.index,
            drafted=tuple(drafted),
            next=following,
            emitted=self.emitted,
            pieces=self.pieces,
            top=_candidates(host, draft, following if recovered else None),
            seconds=self.seconds,
            stop_reason=self.stop_reason,
            dropped=len(verdict.tokens) - len(self.emitted),
            confidence=draft.confidence,
            distance=host.get("distance"),
            choice=self.choice,
            read_again=self.read_again,
        )


class Ledger:
    """Rounds in order, recorded only when they are asked for, as far as memory allows."""

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self._waiting: list[PendingRound] = []
        self._bytes = 0

    def add(self, one: PendingRound) -> None:
        self._waiting.append(one)
        self._bytes += one.verdict.held_bytes
        if self._bytes > MOST_BYTES:
            self.rounds()

    def rounds(self) -> list[Round]:
        """All of them so far."""
        self._rounds += [one.record() for one in self._waiting]
        self._waiting, self._bytes = [], 0
        return self._rounds


def _host(verdict: Verdict, reachable: Tensor | None) -> Host:
    """Everything that the record is made of, in one transfer."""
    return to_host(parts_of(verdict.draft, *verdict.details(), verdict.uniforms, reachable))


def parts_of(
    draft: Draft, rows: TargetRows, decision: Decision, uniforms: Uniforms, reachable: Tensor | None
) -> dict[str, Tensor]:
    """Everything that the record of a round is made of, on the device. reachable: see `Drafter`."""
    drawn_from = draft.probs if decision.drawn_from is None else decision.drawn_from
    parts = _decision_parts(draft, decision, uniforms) | _listed_parts(draft, rows, drawn_from)
    if reachable is not None:
        parts["reach"] = (rows.probs * reachable).sum(-1) if rows.choices is None else reachable[rows.choices].float()
    return parts | _line_parts(decision, parts.get("residual_ids", parts["leading"]))


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
        parts["residual"], parts["residual_ids"] = _leading(decision.next_probs)
    optional = {"p_left": decision.p_left, "weighed": decision.weighed, "distance": decision.distance}
    return parts | {name: part for name, part in (optional | {"draw": draft.draws}).items() if part is not None}


def _listed_parts(draft: Draft, rows: TargetRows, drawn_from: Tensor | None) -> dict[str, Tensor]:
    """Which ids each row lists, and their probabilities under target and drafter.

    Filters and temperature preserve the order of tokens, so the likeliest before warping are the likeliest after it.
    The rows' own lists are [n + 1, TOP]. The draft tokens' lists, [n, 2 · TOP + 1], cover the rows that judged them:
    the target's likeliest, the drafter's, and the token itself.
    """
    raw = rows.raw
    leading_raw, leading = _leading(raw)
    parts = {"leading": leading, "leading_raw": leading_raw}
    warped = rows.probs is not None and rows.warped
    if rows.choices is not None:
        parts["choice"] = rows.choices
    if warped:
        parts["leading_p"] = rows.probs.gather(-1, leading)
    if not draft.parents:
        return parts
    shape = draft.shape
    lists = [shape.judging(leading), draft.tokens.unsqueeze(-1)]
    draft_raw = drawn_from if draft.logits is None else draft.logits.softmax(-1)
    if draft_raw is not None:
        drafters_own = _leading(draft_raw)[1]
        # Siblings were drafted from the same row.
        lists.insert(1, drafters_own if shape.is_chain else drafters_own.index_select(0, shape.families))
    ids = torch.cat(lists, dim=-1)
    parts |= {"ids": ids, "ids_raw": shape.judging_cells(raw, ids)}
    if warped:
        parts["ids_p"] = shape.judging_cells(rows.probs, ids)
    if draft_raw is not None:
        own = draft_raw.gather(-1, ids) if shape.is_chain else draft_raw[shape.families.unsqueeze(-1), ids]
        parts["ids_q_raw"] = own
    if drawn_from is not None and drawn_from is not draft_raw:
        parts["ids_q"] = drawn_from.gather(-1, ids)
    return parts


def _leading(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest of each row, [..., TOP], fewer if there are no more tokens, and their ids."""
    return rows.topk(min(TOP, rows.shape[-1]))


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


def _next_token(host: Host, texts: TokenTexts, kind: NextKind) -> NextToken:
    """With where it and the likeliest others lie on the line that u fell on, as shares of the probabilities' total: u
    was scaled by that total too."""
    token, text = host["next_token"], texts.chip(host["next_token"])
    if "line" not in host:
        return NextToken(token, text, kind, u=None, prob=1.0)
    ids, probs, ends, total = host["line"], host["line_probs"], host["line_ends"], host["line_total"]
    starts = [max(0.0, end - prob) / total for prob, end in zip(probs, ends)]
    line = {
        id: (id, round(start, 6), round(end / total, 6)) for id, start, end, p in zip(ids, starts, ends, probs) if p > 0
    }
    return NextToken(token, text, kind, host["next_u"], probs[0], starts[0], tuple(sorted(line.values())))


def _drafted_token(
    index: int, host: Host, draft: Draft, outcome: Outcome, texts: TokenTexts, rule: Rule
) -> DraftedToken:
    token, p = host["token"][index], host["p"][index]
    weighed = host["weighed"][index] if "weighed" in host else rule.weighs_all or outcome != "discarded"
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
    residual: Listed = ()
    if recovered:
        drawn = "residual" in host
        residual = _pairs(host["residual_ids"], host["residual"]) if drawn else ((recovered.id, 1.0),)
    return tuple(
        _row_lists(host, draft, row, siblings, residual if row == host["row"][0] else ())
        for row, siblings in enumerate(children)
    )


def _row_lists(host: Host, draft: Draft, row: int, siblings: list[int], residual: Listed) -> Candidates:
    """The lists of one row. The first token that continues it stands for the drafter; of several paths, the picked."""
    picked = [token for token in siblings if "weighed" in host and host["weighed"][token]]
    name, place = ("ids", (picked or siblings)[0]) if siblings else ("leading", row)

    def listed(part: str) -> Listed:
        return _pairs(host[name][place], host[part][place])

    p_raw = listed(f"{name}_raw")
    q_raw = listed("ids_q_raw") if siblings and "ids_q_raw" in host else ()
    if "choice" in host:
        p: Listed = ((host["choice"][row], 1.0),)
    else:
        p = listed(f"{name}_p") if f"{name}_p" in host else p_raw
    if draft.probs is None:
        q: Listed = tuple([(host["token"][token], 1.0) for token in siblings])
    else:
        q = listed("ids_q") if siblings and "ids_q" in host else q_raw
    return Candidates(p, q, residual, p_raw, q_raw, host["reach"][row] if siblings and "reach" in host else None)


def _pairs(ids: list[int], values: list[float]) -> Listed:
    """(id, probability) pairs, likeliest first, without duplicates and zeros."""
    pairs = sorted(dict(zip(ids, values)).items(), key=_VALUE, reverse=True)
    while pairs and not pairs[-1][1] > 0:
        pairs.pop()
    return tuple(pairs)


# Whole runs


def collect(request: Request, done: Sequence[Round]) -> Run:
    """A Run from its rounds; one that did not reach its end counts as stopped."""
    pair, settings = request.pair, request.settings
    return Run(
        pair=pair.info(request.passes),
        drafter=settings.drafter,
        settings=request.drafter.settings(pair, settings.drafting),
        num_draft_tokens=AUTO if request.chooses_length else request.num_draft_tokens,
        sampling=settings.sampling,
        seed=settings.seed,
        max_new_tokens=settings.max_new_tokens,
        prompt=request.prompt,
        rounds=tuple(done),
        stop_reason=(done[-1].stop_reason if done else None) or "stopped",
        text="".join(piece for one in done for piece in one.pieces),
        token_ids=tuple(token for one in done for token in one.emitted),
        vocabulary=vocabulary(pair, done),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        rule=request.rule.name,
        coins=settings.coins,
    )


def vocabulary(pair: ModelPair, done: Iterable[Round]) -> dict[int, str]:
    """The text of every token id that the rounds mention."""
    ids = set()
    for one in done:
        ids.update(token.id for token in one.drafted)
        ids.add(one.next.id)
        ids.update(token for token, _, _ in one.next.line)
        for row in one.top:
            for listed in (row.p_raw, row.q_raw, row.p, row.q, row.residual):
                ids.update(token for token, _ in listed)
    return {token: pair.texts.chip(token) for token in sorted(ids)}
