"""Records: from what was fetched of a judged round to a `Round`; from rounds to a whole `Run`."""

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import torch
import transformers
from torch import Tensor

from specviz.decoding.fetched import Fetched
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
from specviz.records.trees import children_of, outcomes_of
from specviz.rules.draft import Draft, Rule, Verdict
from specviz.rules.sampling import require_numbers

#: How much memory rounds may take that wait for their records.
MOST_BYTES = 2**23

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
    fetch: Callable[[], Fetched] | None = None  # what the record is made of, where it is on the host already
    #: Of the seconds while it was asked for, those that other rounds took; negative if its own passed earlier.
    apart: float = 0.0

    @torch.inference_mode()
    def record(self) -> Round:
        verdict, draft = self.verdict, self.verdict.draft
        fetched = Fetched.of(verdict, self.reachable) if self.fetch is None else self.fetch()
        for leading in fetched.leading_raw:
            require_numbers(leading[0])
        for listed in fetched.ids_q_raw:
            require_numbers(sum(listed), drafted=True)  # a NaN among them makes their sum one
        drafted = [
            _drafted_token(place, fetched, draft, outcome, self.texts, self.rule)
            for place, outcome in enumerate(outcomes_of(draft.parents, fetched.accepted, fetched.weighed))
        ]
        recovered = verdict.ending == "recovered"
        following = _next_token(fetched, self.texts, "recovered" if recovered else "bonus")
        return Round(
            index=self.index,
            drafted=tuple(drafted),
            next=following,
            emitted=self.emitted,
            pieces=self.pieces,
            top=_candidates(fetched, draft, recovered),
            seconds=self.seconds,
            stop_reason=self.stop_reason,
            dropped=len(verdict.tokens) - len(self.emitted),
            confidence=draft.confidence,
            distance=fetched.distance,
            choice=self.choice,
            read_again=self.read_again,
        )


class Ledger:
    """Rounds in order, recorded only when they are asked for, as far as memory allows."""

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self._waiting: list[PendingRound] = []
        self._bytes = 0

    def add(self, pending: PendingRound) -> None:
        self._waiting.append(pending)
        self._bytes += pending.verdict.held_bytes
        if self._bytes > MOST_BYTES:
            self.rounds()

    def rounds(self) -> list[Round]:
        """All of them so far."""
        self._rounds += [pending.record() for pending in self._waiting]
        self._waiting, self._bytes = [], 0
        return self._rounds


def _next_token(fetched: Fetched, texts: TokenTexts, kind: NextKind) -> NextToken:
    """With where it and the likeliest others lie on the line that u fell on, as shares of the probabilities' total: u
    was scaled by that total too."""
    token, text = fetched.next_token, texts.chip(fetched.next_token)
    if not fetched.line:
        return NextToken(token, text, kind, u=None, prob=1.0)
    ids, probs, ends, total = fetched.line, fetched.line_probs, fetched.line_ends, fetched.line_total
    starts = [max(0.0, end - prob) / total for prob, end in zip(probs, ends)]
    line = {
        id: (id, round(start, 6), round(end / total, 6)) for id, start, end, p in zip(ids, starts, ends, probs) if p > 0
    }
    return NextToken(token, text, kind, fetched.next_u, probs[0], starts[0], tuple(sorted(line.values())))


def _drafted_token(
    index: int, fetched: Fetched, draft: Draft, outcome: Outcome, texts: TokenTexts, rule: Rule
) -> DraftedToken:
    token, p = fetched.token[index], fetched.p[index]
    weighed = fetched.weighed[index] if fetched.weighed else rule.weighs_all or outcome != "discarded"
    p_left = fetched.p_left[index] if fetched.p_left and weighed else p
    return DraftedToken(
        id=token,
        text=texts.chip(token),
        parent=draft.parents[index],
        p=p,
        q=fetched.q[index] if fetched.q else 1.0,
        # The token itself comes last in its row's list.
        p_raw=fetched.ids_raw[index][-1],
        q_raw=fetched.ids_q_raw[index][-1] if fetched.ids_q_raw else None,
        u=fetched.u[index] if weighed and fetched.u else None,
        # Greedy p is 0 or 1, and so is the acceptance probability.
        accept_prob=(fetched.accept_prob or fetched.p)[index] if weighed else None,
        outcome=outcome,
        draft_u=fetched.draw[index] if fetched.draw else None,
        p_left=None if p_left == p else p_left,
        source=draft.sources[index] if draft.sources else None,
    )


def _candidates(fetched: Fetched, draft: Draft, recovered: bool) -> tuple[Candidates, ...]:
    """The lists of every row. recovered: true if a token was rejected, whose row then has a residual."""
    residual: Listed = ()
    if recovered:
        drawn = _pairs(fetched.residual_ids, fetched.residual)
        residual = drawn if fetched.residual else ((fetched.next_token, 1.0),)
    return tuple(
        _row_lists(fetched, draft, row, siblings, residual if row == fetched.row[0] else ())
        for row, siblings in enumerate(children_of(draft.parents))
    )


def _row_lists(fetched: Fetched, draft: Draft, row: int, siblings: list[int], residual: Listed) -> Candidates:
    """The lists of one row. The first token that continues it stands for the drafter; of several paths, the picked."""
    choice: Listed = ((fetched.choice[row], 1.0),) if fetched.choice else ()
    masked = bool(fetched.allowed and fetched.allowed[row])
    allowed = (fetched.allowed[row], fetched.allowed_mass[row]) if masked else (None, None)
    if not siblings:
        p_raw = _pairs(fetched.leading[row], fetched.leading_raw[row])
        p = _pairs(fetched.leading[row], fetched.leading_p[row]) if fetched.leading_p else p_raw
        return Candidates(choice or p, (), residual, p_raw, (), None, *allowed)
    picked = [token for token in siblings if fetched.weighed and fetched.weighed[token]]
    place = (picked or siblings)[0]

    def listed(part: Sequence[Sequence[float]], otherwise: Listed = ()) -> Listed:
        return _pairs(fetched.ids[place], part[place]) if part else otherwise

    p_raw, q_raw = listed(fetched.ids_raw), listed(fetched.ids_q_raw)
    p = choice or listed(fetched.ids_p, p_raw)
    if draft.probs is None:
        q: Listed = tuple([(fetched.token[token], 1.0) for token in siblings])
    else:
        q = listed(fetched.ids_q, q_raw)
    return Candidates(p, q, residual, p_raw, q_raw, fetched.reach[row] if fetched.reach else None, *allowed)


def _pairs(ids: Sequence[int], values: Sequence[float]) -> Listed:
    """(id, probability) pairs, likeliest first, without duplicates and zeros."""
    pairs = sorted(dict(zip(ids, values)).items(), key=_VALUE, reverse=True)
    while pairs and not pairs[-1][1] > 0:
        pairs.pop()
    return tuple(pairs)


# Whole runs


def collect(request: Request, rounds: Sequence[Round]) -> Run:
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
        rounds=tuple(rounds),
        stop_reason=(rounds[-1].stop_reason if rounds else None) or "stopped",
        text="".join(piece for round_ in rounds for piece in round_.pieces),
        token_ids=tuple(token for round_ in rounds for token in round_.known_ids),
        vocabulary=vocabulary(pair, rounds),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        rule=request.rule.name,
        coins=settings.coins,
        grammar=settings.grammar,
    )


def vocabulary(pair: ModelPair, rounds: Iterable[Round]) -> dict[int, str]:
    """The text of every token id that the rounds mention."""
    ids: set[int | None] = set()
    for round_ in rounds:
        ids.update(token.id for token in round_.drafted)
        ids.add(round_.next.id)
        ids.update(token for token, _, _ in round_.next.line)
        for row in round_.top:
            for listed in (row.p_raw, row.q_raw, row.p, row.q, row.residual):
                ids.update(token for token, _ in listed)
    return {token: pair.texts.chip(token) for token in sorted(id for id in ids if id is not None)}
