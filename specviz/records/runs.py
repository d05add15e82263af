"""What happened, as plain values: every token, probability, coin and second of a run.

No tensors here: records cross process borders and live in files. Field names are those of the trace file,
schema ``specviz.run/1``; floats are the exact float32 values the decision was made with.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from specviz.records.errors import SpecvizError
from specviz.records.files import check_schema, path_named, read_json
from specviz.records.settings import MAX_SEED, PLAIN, SamplingParams, SetCoin, read_coins

SCHEMA = "specviz.run/1"

Outcome = Literal["accepted", "rejected", "discarded"]
NextKind = Literal["recovered", "bonus"]
StopReason = Literal["eos", "length", "context", "stop_string", "grammar", "stopped"]

#: A whole number that the page's JavaScript holds exactly.
Whole = Annotated[int, Field(ge=0, le=MAX_SEED)]
#: A token's id; None of another engine that does not say which token it was.
TokenId = Whole | None
#: A probability or a coin, where a sum of rounded ones may lie a little above 1.
Chance = Annotated[float, Field(ge=0, le=1 + 1e-4)]
#: Seconds whose sums stay numbers. A difference between two clocks, a GPU's and the processor's, may fall below 0.
Span = Annotated[float, Field(ge=-1e9, le=1e9)]

#: The least seconds of a round, by which a rate stays a number.
SHORTEST = 1e-9

#: For pydantic: no NaN and no infinity, both of which its JSON reader accepts.
_FINITE = {"allow_inf_nan": False}


def _readable(coins: str) -> str:
    read_coins(coins)
    return coins


#: Coins set by hand.
_Coins = Annotated[str, AfterValidator(_readable)]


@dataclass(frozen=True, slots=True)
class DraftedToken:
    """One draft token and its verdict. Of rounds of other engines p, q and p_raw are None where nobody knows them."""

    __pydantic_config__ = _FINITE
    id: TokenId
    text: str
    parent: int  # index in `Round.drafted` of the token it continues; -1 is the committed text
    p: Chance | None  # probability as sampled from (after temperature and filters), under the target
    q: Chance | None  # and under the drafter; on a path picked among several, the chance that the pick falls on it
    p_raw: Chance | None  # the target's own softmax at temperature 1
    q_raw: Chance | None  # the drafter's; None if it has no model
    u: Chance | None  # the coin of the accept decision; None if never judged, or if greedy (no coin is flipped)
    #: The coin must fall below this; None if never judged. Token by token min(1, p/q), in a tree min(1, p_left/q),
    #: under block verification h, which also judges tokens after the first rejected one of its chain or path.
    accept_prob: Chance | None
    outcome: Outcome
    draft_u: Chance | None = None  # the uniform with which the drafter drew this token; None for an argmax or a copy
    p_left: Chance | None = None  # of a sibling tried after others: its p once they were rejected
    source: str | None = None  # the part of the drafter that proposed it, such as ``layer 2``; None if obvious


@dataclass(frozen=True, slots=True)
class NextToken:
    """The token that the target itself supplied at the end of a round. Older traces lack `below` and `line`."""

    __pydantic_config__ = _FINITE
    id: TokenId
    text: str
    #: ``recovered``: drawn from the residual after a rejection. ``bonus``: drawn from the target's last row when every
    #: draft token was accepted; also the token of a plain step, where nothing was drafted.
    kind: NextKind
    u: Chance | None  # the uniform draw; None when greedy
    prob: Chance | None  # its probability in the distribution it was drawn from
    #: The probability there of all tokens with a smaller id; None when greedy. A draw goes through the ids in order
    #: (`specviz.rules.sampling.draw`), so u lies in [below, below + prob) up to rounding.
    below: Chance | None = None
    #: Where this token and the likeliest others lie on the line from 0 to 1 on which u fell, ordered by id:
    #: (token id, start, end), to six decimals.
    line: tuple[tuple[Whole, Chance, Chance], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The likeliest tokens after one row of the target pass, as (token id, probability) pairs, likeliest first.

    Row 0 follows the committed text, row i + 1 follows draft token i; draft token i was judged by row parent + 1. All
    lists of a row cover the same ids, the likeliest of target and drafter, without those of probability 0; a point mass
    is a list of one.
    """

    __pydantic_config__ = _FINITE
    p: tuple[tuple[Whole, Chance], ...]
    q: tuple[tuple[Whole, Chance], ...] = ()
    residual: tuple[tuple[Whole, Chance], ...] = ()  # on the row whose token was rejected
    p_raw: tuple[tuple[Whole, Chance], ...] = ()  # the models' own softmax at temperature 1
    q_raw: tuple[tuple[Whole, Chance], ...] = ()
    #: Where draft tokens were judged by a drafter's smaller vocabulary: the target's probability, as sampled from, of
    #: all tokens in it. On average a draft token is accepted no more often: Σ min(p, q) is at most that.
    reach: Chance | None = None
    #: Under a grammar, which masks all lists of the row: how many tokens may follow, and the probability that the
    #: target's own softmax gives them without the mask.
    allowed: Whole | None = None
    allowed_mass: Chance | None = None


@dataclass(frozen=True, slots=True)
class Seconds:
    """Wall seconds of one round, measured on finished work: draft + verify + accept = total."""

    __pydantic_config__ = _FINITE
    draft: Span
    verify: Span
    accept: Span
    total: Annotated[Span, Field(ge=SHORTEST)]
    models: Span  # the part of the total inside forward passes, target and draft; the rest is the engine's overhead
    prefill: Span = 0.0  # reading the prompt into the caches: on the first round, and not part of its total


@dataclass(frozen=True, slots=True)
class LengthChoice:
    """The depth chosen for a round, and why (`specviz.theory.draft_length`)."""

    __pydantic_config__ = _FINITE
    depth: Whole  # where the drafter finds less, or the text ends, less is drafted
    speed: float | None = None  # the tokens expected in the time of a plain step; None if nothing was chosen
    kept: Chance | None = None  # the chance that one more level would be accepted; None where there can be none
    cost: float | None = None  # and how many plain steps it would take
    behind: bool = False  # drafting has cost more than it brought: a plain step instead


@dataclass(frozen=True, slots=True)
class Round:
    """One draft phase, one target pass, one verdict."""

    __pydantic_config__ = _FINITE
    index: Whole
    drafted: tuple[DraftedToken, ...]  # a chain or a tree; siblings in the order in which they are tried
    next: NextToken
    emitted: tuple[TokenId, ...]  # the token ids this round added to the text, after truncation
    #: Their text, one piece per token; joined over all rounds, exactly the run's text. A token that ends inside a
    #: character has an empty piece, and the token that completes the character carries all of it.
    pieces: tuple[str, ...]
    top: tuple[Candidates, ...]  # one row more than draft tokens
    seconds: Seconds | None  # None of another engine that did not time it
    stop_reason: StopReason | None = None  # on the last round only
    dropped: Whole = 0  # tokens decided but cut off by that stop
    confidence: Chance | None = None  # the drafter's probability for its last token, if that ended drafting early
    #: Under a lossy rule, the total variation between the distribution of this round's first token and the target's,
    #: given the text before it; None under a lossless rule, where it is 0.
    distance: Chance | None = None
    choice: LengthChoice | None = None  # where γ was chosen for this round
    #: Tokens that the target read in this round and had read before: a running state was put back after a rejection.
    read_again: Whole = 0

    @property
    def known_ids(self) -> tuple[int, ...]:
        """The emitted tokens' ids, without those that another engine did not name."""
        return tuple(id for id in self.emitted if id is not None)

    @property
    def accepted(self) -> int:
        """Draft tokens that the verdict accepted, before any truncation."""
        return sum(token.outcome == "accepted" for token in self.drafted)

    @property
    def judged(self) -> int:
        """Draft tokens the verdict looked at: accepted and rejected ones, in a tree each sibling that was tried."""
        return sum(token.outcome != "discarded" for token in self.drafted)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as the models read it."""

    text: str
    ids: tuple[Whole, ...]
    message: str | None = None  # filled into the chat template to get `text`; None without a template


@dataclass(frozen=True, slots=True)
class PairInfo:
    """Which models made a run, and where and in what precision they ran."""

    name: str
    target: str
    target_parameters: Whole  # how many
    draft: str | None
    draft_parameters: Whole | None
    device: str
    dtype: str
    passes: str = "plain"  # how the target ran: ``plain``, or by our ``kernels``, ``compiled``, as CUDA ``graphs``
    vocab_size: Whole = 0  # the tokens that the target chooses from; 0 in files of earlier versions


@dataclass(frozen=True, slots=True)
class Speedup:
    """How much faster a run was than plain decoding of the same, both timed while nothing was shown, and where."""

    __pydantic_config__ = _FINITE
    ratio: float
    machine: str  # the name that its processor or GPU reports
    low: float | None = None  # where it lies, 90 %; None in files of earlier versions
    high: float | None = None
    busy: bool = False  # other programs used the processor at the same time
    tokens_per_second: float | None = None  # of this run, in the same turns; None in files of earlier versions


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """One finished (or stopped) generation, with everything needed to show it again without a model."""

    __pydantic_config__ = _FINITE
    pair: PairInfo
    drafter: str | None  # its name; None is plain decoding
    settings: dict[str, int | float | str | bool]  # the drafter's own
    num_draft_tokens: Whole | Literal["auto"]
    sampling: SamplingParams
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)]  # torch takes no other
    max_new_tokens: Whole
    prompt: Prompt
    rounds: tuple[Round, ...]
    stop_reason: StopReason
    text: str
    token_ids: tuple[Whole, ...]  # without those that another engine did not name
    vocabulary: dict[Whole, str] = field(default_factory=dict)  # the text of every token id in `rounds`
    versions: dict[str, str] = field(default_factory=dict)
    rule: str = "token"  # the acceptance rule's name; a plain run has one too, though it judges nothing
    #: The coins set by hand, which make it a branch of the run with the same seed (`read_coins`).
    coins: _Coins = ""
    grammar: str = ""  # that the text follows
    measured: Speedup | None = None  # None where it was not
    schema: str = SCHEMA
    #: The engine whose rounds these are (`specviz.foreign.rounds`); empty for our own. Of another's, only what its
    #: rounds say is known: neither seed nor sampling.
    engine: str = ""

    #: How a run is shown, in a file and in a notebook: `specviz.views.pages`, above the records, hands these in.
    as_page: ClassVar[Callable[[Run], str]]
    as_frame: ClassVar[Callable[[Run], str]]

    @property
    def unflipped(self) -> list[str]:
        """The coins set by hand that decided nothing, as they are written without their values: see `unflipped`."""
        return unflipped(self.coins, self.rounds)

    @property
    def prefill_seconds(self) -> float:
        """Time to read the prompt into the caches, before the first round."""
        return self.rounds[0].seconds.prefill if self.rounds and self.rounds[0].seconds else 0.0

    @property
    def seconds(self) -> float:
        """Time for the whole text: reading the prompt, and every round."""
        return self.prefill_seconds + sum(round_.seconds.total for round_ in self.rounds if round_.seconds)

    def to_dict(self) -> dict[str, Any]:
        """The run as JSON-ready values (tuples stay tuples; `json` writes them as arrays)."""
        # JSON keys are strings, and stricter writers than `json` refuse anything else.
        return dataclasses.asdict(self) | {"vocabulary": {str(id): text for id, text in self.vocabulary.items()}}

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """The inverse of `to_dict`. Raises SpecvizError (field ``trace``) if `data` is not a valid run."""
        schema = data.get("schema") if isinstance(data, dict) else None
        check_schema(schema, SCHEMA)
        try:
            run = _RUN.validate_python(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "top level"
            reason = str(first.get("ctx", {}).get("error", first["msg"])).rstrip(".")  # our own sentence, if it is one
            raise SpecvizError(
                "The trace is damaged at {place}: {reason}.", "trace", place=place, reason=reason
            ) from error
        for index, round_ in enumerate(run.rounds):
            if flaw := _flaw(round_, index, not run.sampling.greedy and round_.distance is None, not run.engine):
                raise flaw
        return run

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the run as a JSON trace file; if the path ends in ``.html``, as a page that shows it offline.

        Raises SpecvizError (field ``path``) for what is not the name of a file, and OSError where it cannot be written.
        """
        file = path_named(path)
        if file.suffix.lower() == ".html":
            text = self.as_page()
        else:
            text = json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        file.write_text(text, encoding="utf-8")

    def __repr__(self) -> str:
        """Short: a notebook keeps this text along with the page that it shows."""
        return f"<Run {self.drafter or PLAIN}, {len(self.rounds)} rounds, {len(self.token_ids)} tokens>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return self.as_frame()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Run:
        """Reads a trace file. Raises SpecvizError (field ``trace`` or ``path``) with the reason if it cannot."""
        return cls.from_dict(read_json(path))


def unflipped(coins: str, rounds: Sequence[Round]) -> list[str]:
    """Of the coins set by hand those that decided nothing, such as ``9.2`` or ``9.next``: the run has no such round, or
    none of its tokens there was judged by a coin."""

    def flipped(coin: SetCoin) -> bool:
        if coin.round >= len(rounds):
            return False
        drafted, following = rounds[coin.round].drafted, rounds[coin.round].next
        if coin.token is None:
            return following.u is not None
        return coin.token < len(drafted) and drafted[coin.token].u is not None

    places = (word.partition("=")[0] for word in coins.split())
    return [place for place, coin in zip(places, read_coins(coins), strict=True) if not flipped(coin)]


def _flaw(round_: Round, index: int, coins: bool, own_engine: bool) -> SpecvizError | None:
    """The first inconsistency in a round whose fields are well-formed. coins: True if its rule flips any.
    own_engine: False for rounds of another engine, which need not say why a token was accepted."""

    def complaint(template: str, **values: object) -> SpecvizError:
        return SpecvizError(template, "trace", index=index, **values)

    if round_.index != index:
        return complaint("The trace is damaged at rounds.{index}: the round's index is {own}.", own=round_.index)
    if not all(-1 <= token.parent < place for place, token in enumerate(round_.drafted)):
        return complaint(
            "The trace is damaged at rounds.{index}: a draft token continues a token that does not come before it."
        )
    judged = [token for token in round_.drafted if token.outcome != "discarded"]
    if own_engine and any(token.accept_prob is None or (token.u is None and coins) for token in judged):
        return complaint("The trace is damaged at rounds.{index}: a judged draft token has no coin.")
    if len(round_.top) != len(round_.drafted) + 1:
        return complaint(
            "The trace is damaged at rounds.{index}: it must list exactly one more row of candidates than draft tokens."
        )
    if len(round_.pieces) != len(round_.emitted):
        return complaint("The trace is damaged at rounds.{index}: its text must have one piece per token.")
    return None


_RUN = TypeAdapter(Run)
