"""Rounds and runs written by hand: what the tests of records, figures, charts and the page are fed with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specviz.records import (
    Candidates,
    DraftedToken,
    NextToken,
    PairInfo,
    Prompt,
    Round,
    Run,
    SamplingParams,
    Seconds,
)

OUTCOMES = {"a": "accepted", "r": "rejected", "d": "discarded"}

PAIR = PairInfo("by hand", "a target", 40_000_000, "a draft", 4_000_000, "cpu", "float32")


def drafted(outcome: str, *, id: int = 1, text: str | None = None, parent: int = -1) -> DraftedToken:
    """A sampled draft token with that outcome ("a", "r" or "d")."""
    judged = outcome != "d"
    return DraftedToken(
        id=id,
        text=f" w{id}" if text is None else text,
        parent=parent,
        p=0.25,
        q=0.5,
        p_raw=0.3,
        q_raw=0.45,
        u={"a": 0.125, "r": 0.75, "d": None}[outcome],
        accept_prob=0.5 if judged else None,
        outcome=OUTCOMES[outcome],
        draft_u=0.6,
    )


def a_round(
    outcomes: str = "",
    index: int = 0,
    *,
    texts: tuple[str, ...] = (),
    ids: tuple[int, ...] = (),
    emit: int | None = None,
    stop_reason: str | None = None,
    seconds: Seconds | None = None,
) -> Round:
    """A round of a chain: "aard" is two accepted, one rejected, one discarded; "" is a plain step.

    texts, ids: of the draft tokens and then the next token. emit: how many of the decided tokens survive the stop.
    """
    count = len(outcomes)
    ids = ids or tuple(range(1, count + 2))
    texts = texts or tuple(f" w{id}" for id in ids)
    tokens = tuple(
        drafted(outcome, id=ids[i], text=texts[i], parent=i - 1 if i else -1) for i, outcome in enumerate(outcomes)
    )
    kept = outcomes.count("a")
    clean = kept == count
    decided = [*range(kept), count]
    emitted = decided[:emit]
    last = Candidates(
        p=((ids[-1], 0.4), (99, 0.35)),
        residual=() if clean else ((ids[-1], 0.6), (99, 0.4)),
        p_raw=((ids[-1], 0.4), (99, 0.35)),
    )
    rows = [
        Candidates(
            p=((99, 0.5), (id, 0.25)), q=((id, 0.5), (99, 0.2)), p_raw=((99, 0.4), (id, 0.3)), q_raw=((id, 0.45),)
        )
        for id in ids[:-1]
    ]
    top = (
        (*rows, last) if clean else (*rows[:kept], replace(rows[kept], residual=last.residual), *rows[kept + 1 :], last)
    )
    return Round(
        index=index,
        drafted=tokens,
        next=NextToken(ids[-1], texts[-1], "bonus" if clean else "recovered", 0.375, 0.4 if clean else 0.6),
        emitted=tuple(ids[i] for i in emitted),
        pieces=tuple(texts[i] for i in emitted),
        top=top,
        seconds=seconds or Seconds(0.002, 0.004, 0.0005, 0.0065, 0.0055, 0.01 if index == 0 else 0.0),
        stop_reason=stop_reason,
        dropped=len(decided) - len(emitted),
    )


def rounds_of(*outcomes: str, **settings: Any) -> tuple[Round, ...]:
    """One chain a word, numbered from 0."""
    return tuple(a_round(word, index, **settings) for index, word in enumerate(outcomes))


def a_run(rounds: tuple[Round, ...], *, prompt: str = "Once upon a time", **settings: Any) -> Run:
    """A finished run of these rounds; `settings` replace fields of Run."""
    vocabulary = {99: " other"}
    for one in rounds:
        vocabulary |= {token.id: token.text for token in one.drafted} | {one.next.id: one.next.text}
    fields: dict[str, Any] = {
        "pair": PAIR,
        "drafter": "draft_model" if any(one.drafted for one in rounds) else None,
        "settings": {},
        "num_draft_tokens": max((len(one.drafted) for one in rounds), default=0),
        "sampling": SamplingParams(temperature=1.0),
        "seed": 0,
        "max_new_tokens": 100_000,
        "prompt": Prompt(prompt, (7, 8, 9)),
        "rounds": rounds,
        "stop_reason": (rounds[-1].stop_reason if rounds else None) or "stopped",
        "text": "".join(piece for one in rounds for piece in one.pieces),
        "token_ids": tuple(id for one in rounds for id in one.emitted),
        "vocabulary": vocabulary,
        "versions": {"python": "3.12"},
    }
    return Run(**(fields | settings))
