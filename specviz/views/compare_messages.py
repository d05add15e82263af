"""The JSON messages of the Compare tab: each holds all that its part of the tab shows, so losing one does no harm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specviz.bench.contestants import Contestant, Standing
from specviz.records.runs import Round
from specviz.records.words import Said
from specviz.views.run_messages import message


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A contestant of the table."""

    drafter: Said
    contestant: Contestant  # branches and rule resolved
    rule: Said
    lossless: bool
    standing: Standing | None = None  # the figures of its finished repeats; None before the first
    repeats: int = 0  # how many are finished
    own_branches: bool = False  # whether their number is the drafter's own
    reason: Said = ""  # why it does not run, where it does not


def contest_message(
    rows: Sequence[ComparedRow],
    *,
    phase: str,
    text: Said,
    fraction: float,
    repeats: int = 1,
    texts: dict[str, Any] | None = None,
    domains: Sequence[Sequence[Said]] = (),
) -> str:
    """The whole table. phase: ``running``, ``finished`` or ``stopped``. text: what is happening, in a sentence.

    domains: on prompts of one's own, a second table with its head, by domain; see `advice_text.work_table`.

    texts: at temperature 0, how the lossless texts compare with plain decoding's: ``{"of": how many, "partings":
    [{"name": …, and the parting of specviz.records.comparison}]}``.
    """
    best = fastest(rows)
    return message(
        "contest",
        phase=phase,
        text=text,
        fraction=fraction,
        repeats=repeats,
        rows=[_row(row, best=row is best) for row in rows],
        texts=texts,
        domains=domains,
    )


def fastest(rows: Iterable[ComparedRow]) -> ComparedRow | None:
    """The lossless drafter with the highest measured speedup; a lossy one does not run on the same terms."""
    measured = [row for row in rows if row.lossless and row.standing and row.standing.speedup_measured is not None]
    return max(measured, key=lambda row: row.standing.speedup_measured, default=None)


def _row(row: ComparedRow, best: bool) -> dict[str, Any]:
    contestant = row.contestant
    return {
        "drafter": row.drafter,
        "num_draft_tokens": contestant.num_draft_tokens,
        "branches": contestant.branches,
        "own_branches": row.own_branches,
        "rule": row.rule,
        "lossless": row.lossless,
        "repeats": row.repeats,
        "best": best,
        "reason": row.reason,
        "figures": asdict(row.standing) if row.standing else None,
    }


@dataclass(slots=True)
class Replayed:
    """Two rules judging the same drafts and coins, counted round by round."""

    rounds: int = 0
    drafted: int = 0
    kept: tuple[int, int] = (0, 0)  # draft tokens kept by the token rule and by the block rule
    ahead: int = 0  # rounds in which the block rule kept more
    behind: int = 0  # and fewer
    #: Those rounds as the page shows them: each draft token with its coin u, the token rule's bound min(1, p/q) and
    #: the block rule's h; and the token that each rule appends to those it kept.
    differing: list[dict[str, Any]] = field(default_factory=list)

    def add(self, token: Round, block: Round) -> None:
        self.rounds += 1
        self.drafted += len(token.drafted)
        self.kept = (self.kept[0] + token.accepted, self.kept[1] + block.accepted)
        self.ahead += block.accepted > token.accepted
        self.behind += block.accepted < token.accepted
        if block.accepted != token.accepted:
            self.differing.append(_differing(token, block))


def replay_message(counts: Replayed, *, phase: str, text: Said, fraction: float) -> str:
    """The rules' totals; the rounds in which they differ are sent once it is over."""
    return message(
        "replay",
        phase=phase,
        text=text,
        fraction=fraction,
        rounds=counts.rounds,
        drafted=counts.drafted,
        kept=counts.kept,
        ahead=counts.ahead,
        behind=counts.behind,
        differing=[] if phase == "running" else counts.differing,
    )


def _differing(token: Round, block: Round) -> dict[str, Any]:
    return {
        "index": token.index,
        "drafted": [
            {"text": one.text, "u": one.u, "ratio": min(1.0, one.p / one.q), "h": one.accept_prob}
            for one in block.drafted
        ],
        "kept": [token.accepted, block.accepted],
        "next": [{"text": one.next.text, "kind": one.next.kind} for one in (token, block)],
    }
