"""What happened, as plain values: every token, probability, coin and second of a run.

No tensors here: records cross process borders and live in files. Field names are those of the trace file,
schema ``specviz.run/1``; floats are the exact float32 values the decision was made with.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from specviz.records.errors import SpecvizError
from specviz.records.settings import SamplingParams

SCHEMA = "specviz.run/1"

Outcome = Literal["accepted", "rejected", "discarded"]
NextKind = Literal["recovered", "bonus"]
StopReason = Literal["eos", "length", "context", "stop_string", "stopped"]

#: For pydantic: no NaN, no infinity, which Python's JSON reader lets in.
_FINITE = {"allow_inf_nan": False}


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """One draft token and its verdict.

    parent: index in `Round.drafted` of the token it continues; -1 is the committed text.
    p, q: probability as sampled from (after temperature and filters) under target and drafter.
    p_raw, q_raw: the models' own softmax at temperature 1. q_raw is None where the drafter has no model.
    u: the coin of the accept decision; None if never judged, or if greedy (no coin is flipped).
    accept_prob: the coin must fall below this; None if never judged. min(1, p/q) token by token; in a tree
        min(1, p_left/q); block verification's h, which also judges tokens after the first refused one.
    draft_u: the uniform draw with which the drafter sampled this token; None for an argmax or a copy.
    p_left: for a sibling tried after others: its probability in what those had left of the target; else None.
    source: what in the drafter proposed it, such as ``layer 2`` or ``head 3``; None where that goes without saying.
    """

    __pydantic_config__ = _FINITE
    id: int
    text: str
    parent: int
    p: float
    q: float
    p_raw: float
    q_raw: float | None
    u: float | None
    accept_prob: float | None
    outcome: Outcome
    draft_u: float | None = None
    p_left: float | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class NextToken:
    """The token the target itself supplied at the end of a round.

    kind: ``recovered`` (drawn from the residual after a rejection) or ``bonus`` (drawn from the target's last
    row when every draft token was accepted; also the token of a plain step, where nothing was drafted).
    u: the uniform draw; None when greedy. prob: its probability in the distribution it was drawn from.
    below: the probability, in that distribution, of all tokens with a smaller id. The draw goes through the ids in
        order (`specviz.rules.sampling.draw`), so u lies in [below, below + prob) up to rounding. None when greedy.
    line: where this token and the likeliest others lie on the line from 0 to 1 on which u fell, in the order of their
        ids: (token id, start, end), to six decimals. Both fields are missing from older traces.
    """

    __pydantic_config__ = _FINITE
    id: int
    text: str
    kind: NextKind
    u: float | None
    prob: float
    below: float | None = None
    line: tuple[tuple[int, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The likeliest tokens after one row of the target pass, as (token id, probability) pairs, likeliest first.

    Row 0 follows the committed text, row i + 1 follows draft token i; draft token i was judged by row parent + 1.
    All lists of a row cover the same ids, the likeliest of target and drafter, less those of probability 0; a point
    mass is a list of one. residual is set on the row whose token was rejected. p_raw and q_raw are the models' own
    softmax at temperature 1.
    """

    __pydantic_config__ = _FINITE
    p: tuple[tuple[int, float], ...]
    q: tuple[tuple[int, float], ...] = ()
    residual: tuple[tuple[int, float], ...] = ()
    p_raw: tuple[tuple[int, float], ...] = ()
    q_raw: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall seconds of one round, measured on finished work.

    draft + verify + accept = total. `models` is the part of the total spent inside forward passes (target and
    draft); the rest is the engine's own overhead. `prefill` is the time it took to read the prompt into the caches:
    set on the first round, and not part of its total.
    """

    __pydantic_config__ = _FINITE
    draft: float
    verify: float
    accept: float
    total: float
    models: float
    prefill: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """One draft phase, one target pass, one verdict.

    drafted: a chain or a tree; siblings stand in the order in which they are tried.
    emitted: the token ids this round added to the text, after truncation.
    pieces: their text, one piece a token; joined over all rounds they are the run's text exactly. A token that
        ends inside a character has an empty piece, and the token that completes it carries the whole character.
    stop_reason: set on the last round only. dropped: tokens decided but cut off by that stop.
    confidence: the drafter's probability for its last token where that ended drafting early; else None.
    distance: under a lossy rule, total variation between the law of this round's first token and the target's,
        given the text before it; None under a lossless rule, where it is 0.
    """

    index: int
    drafted: tuple[DraftedToken, ...]
    next: NextToken
    emitted: tuple[int, ...]
    pieces: tuple[str, ...]
    top: tuple[Candidates, ...]
    seconds: Seconds
    stop_reason: StopReason | None = None
    dropped: int = 0
    confidence: float | None = None
    distance: float | None = None

    @property
    def accepted(self) -> int:
        """Draft tokens kept by the verdict (before any truncation)."""
        return sum(token.outcome == "accepted" for token in self.drafted)

    @property
    def judged(self) -> int:
        """Draft tokens the verdict looked at: the accepted ones and the first rejected."""
        return sum(token.outcome != "discarded" for token in self.drafted)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the models read. message: what was put into the chat template to get `text`; None where nothing was."""

    text: str
    ids: tuple[int, ...]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class PairInfo:
    """Which models made a run: names, sizes in parameters, where and in what precision they ran.

    passes: what ran the target's passes: ``plain`` (transformers, operation by operation), ``compiled`` or ``graphs``.
    """

    name: str
    target: str
    target_parameters: int
    draft: str | None
    draft_parameters: int | None
    device: str
    dtype: str
    passes: str = "plain"


@dataclass(frozen=True, slots=True)
class Run:
    """One finished (or stopped) generation with everything needed to show it again without a model.

    drafter: its name; None is plain decoding. settings: the drafter's own settings.
    rule: the acceptance rule's name; ``typical`` is lossy. A plain run has a rule too: nothing is drafted for it.
    vocabulary: text of every token id that appears in `rounds`, so that a trace is readable on its own.
    """

    pair: PairInfo
    drafter: str | None
    settings: dict[str, int | float | str | bool]
    num_draft_tokens: int
    sampling: SamplingParams
    seed: int
    max_new_tokens: int
    prompt: Prompt
    rounds: tuple[Round, ...]
    stop_reason: StopReason
    text: str
    token_ids: tuple[int, ...]
    vocabulary: dict[int, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    rule: str = "token"
    schema: str = SCHEMA

    @property
    def prefill_seconds(self) -> float:
        """Time to read the prompt into the caches, before the first round."""
        return self.rounds[0].seconds.prefill if self.rounds else 0.0

    @property
    def seconds(self) -> float:
        """Time to make the whole text: the prompt's reading and every round."""
        return self.prefill_seconds + sum(one.seconds.total for one in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON-ready values (tuples stay tuples; `json` writes them as arrays)."""
        # Keys of a JSON object are strings, and stricter writers than `json` refuse any other.
        return dataclasses.asdict(self) | {"vocabulary": {str(id): text for id, text in self.vocabulary.items()}}

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """The inverse of `to_dict`. Raises SpecvizError (field ``trace``) if `data` is not such a run."""
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != SCHEMA:
            if not schema:
                raise SpecvizError(
                    "This is not a specviz trace: it names no schema, and {expected} is expected.",
                    "trace",
                    expected=repr(SCHEMA),
                )
            raise SpecvizError(
                "This is not a specviz trace: its schema is {found}, and {expected} is expected.",
                "trace",
                found=repr(schema),
                expected=repr(SCHEMA),
            )
        try:
            run = _RUN.validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "top level"
            raise SpecvizError(
                "The trace is damaged at {place}: {reason}.", "trace", place=place, reason=first["msg"]
            ) from error
        for index, one in enumerate(run.rounds):
            if flaw := _flaw(one, index, coins=not run.sampling.greedy and one.distance is None):
                raise flaw
        return run

    def save(self, path: str | pathlib.Path) -> None:
        """Write the run as a JSON trace file."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        pathlib.Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Run:
        """Read a trace file. Raises SpecvizError (field ``trace``) with the reason if it is none."""
        try:
            data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SpecvizError("The trace cannot be read: {reason}.", "trace", reason=error.strerror) from error
        except (ValueError, RecursionError) as error:
            raise SpecvizError("The trace is not a JSON file: {reason}.", "trace", reason=str(error)) from error
        return cls.from_dict(data)


def _flaw(one: Round, index: int, coins: bool) -> SpecvizError | None:
    """What contradicts itself in a round whose fields are well-formed. coins: its rule flips some; a lossy one none."""
    if one.index != index:
        return SpecvizError(
            "The trace is damaged at rounds.{index}: its index is {own}.", "trace", index=index, own=one.index
        )
    if not all(-1 <= token.parent < place for place, token in enumerate(one.drafted)):
        return SpecvizError(
            "The trace is damaged at rounds.{index}: a draft token continues one that does not come before it.",
            "trace",
            index=index,
        )
    judged = [token for token in one.drafted if token.outcome != "discarded"]
    if any(token.accept_prob is None or (token.u is None and coins) for token in judged):
        return SpecvizError(
            "The trace is damaged at rounds.{index}: a judged draft token has no coin.", "trace", index=index
        )
    if len(one.top) != len(one.drafted) + 1:
        return SpecvizError(
            "The trace is damaged at rounds.{index}: it does not list one row of candidates more than draft tokens.",
            "trace",
            index=index,
        )
    if len(one.pieces) != len(one.emitted):
        return SpecvizError(
            "The trace is damaged at rounds.{index}: its text has not one piece a token.", "trace", index=index
        )
    return None


_RUN = TypeAdapter(Run)
