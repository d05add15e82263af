"""Greedy texts must be plain decoding's own: compared before any timing, and when a pair is checked.

In float32 the texts are the same, token by token. In half precision passes of different widths round differently, and
the target's best two tokens can be too close to tell apart. There a text may diverge, and from there on each of its
tokens must be the target's best, up to rounding, given that text.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from transformers import DynamicCache, PreTrainedModel

from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.contesting import new_tokens, plain_request, reason_of, refusal_of, request_of, shortened
from specviz.bench.two_texts import parting
from specviz.decoding.engine import rounds
from specviz.decoding.record import collect
from specviz.decoding.request import Request
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.models.placement import dtype_name
from specviz.passes.static_passes import ROOM_STEP, WIDEST
from specviz.records.errors import SpecvizError
from specviz.records.metrics import first_difference
from specviz.records.prompts import PRESETS
from specviz.records.runs import Run
from specviz.records.words import Sentence

#: Draft tokens a round, of every text that is checked.
GAMMA = 4

#: Branches of the trees among them.
BRANCHES = 3

#: The most tokens, and the least, of each greedy text that is checked.
TEXT_TOKENS, LEAST_TEXT = 48, 16

#: The share of a text's tokens that must have been compared for a verdict, and the near-ties after which it goes on.
FAIR, MOST_TIES = 0.5, 6

#: New tokens of a text across a length, and how many of them come before it.
NEW, BEFORE = 20, 8

#: Prompt tokens, at most, by which the time of reading is estimated.
TIMED = 192


@dataclass(frozen=True, slots=True)
class Agreement:
    """One contestant's greedy text compared with our plain one; a wrong text gets no verdict, see `agreement`."""

    title: str
    engine: str
    mode: str
    preset: str
    tokens: int  # how many were compared
    place: int | None = None  # the first that differs, counted from 0; None if none does
    margin: float | None = None  # there, log p of the target's best token less its second best
    #: From there on, the most by which a token of the contestant's lies below the target's best one in log probability,
    #: given the contestant's own text.
    largest_gap: float | None = None

    @property
    def identical(self) -> bool:
        return self.place is None


def plain_run(plain: Request) -> Run:
    """Our plain decoding, with which all others are compared."""
    return collect(plain, list(rounds(plain)))


def agreement(contestant: Contestant, tokens: Sequence[int], due: Run, plain: Request, preset: str) -> Agreement:
    """The verdict on a contestant's greedy text. due: plain decoding of the request `plain`, on the preset named.

    Raises SpecvizError (field ``only``), naming contestant and place, for a difference that is more than rounding; in
    float32 any is.
    """
    names = {"title": contestant.title, "preset": preset}
    start = plain.prompt.ids
    texts = [*start, *due.token_ids], [*start, *tokens]
    parted = parting(plain.pair, *texts, len(start), later=len(tokens), grammar=plain.grammar)
    compared = Agreement(contestant.title, contestant.engine, contestant.mode, preset, len(tokens))
    if parted is None:
        return compared
    side = parted.sides[1]
    if parted.dtype == "float32" or not all(side.token for side in parted.sides) or side.gap > parted.tolerance:
        got, expected = (repr(side.token) if side.token else "∅" for side in reversed(parted.sides))
        raise SpecvizError(
            "{title} is wrong on {preset}: greedy token {place} is {got}, but plain decoding's is {due}, and the "
            "target's best two are {margin} apart in log probability ({dtype}); nothing was timed there.",
            "only",
            **names,
            place=parted.place,
            got=got,
            due=expected,
            margin=f"{parted.margin:.2g}",
            dtype=parted.dtype,
        )
    if side.later is not None:
        raise SpecvizError(
            "{title} is wrong on {preset}: greedy token {place} lies {gap} below the target's best in log "
            "probability, more than rounding explains; nothing was timed there.",
            "only",
            **names,
            place=parted.place + side.later[0],
            gap=f"{side.later[1]:.2f}",
        )
    return replace(compared, place=parted.place - 1, margin=parted.margin, largest_gap=side.largest)


# Checking a pair


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    #: ``slow`` is right, but does not pay; ``skipped`` cannot be checked here.
    state: Literal["right", "wrong", "slow", "skipped"]
    what: Sentence
    seen: Sentence | SpecvizError
    advice: Sentence | None = None


def served_agreement(
    contestant: Contestant, tokens: Sequence[int], due: Run, plain: Request, preset: str
) -> Agreement | None:
    """The verdict on a server's greedy text, which may differ anywhere: its weights and its rounding are its own.

    None where the server does not name the pair's tokens.
    """
    if contestant.served is None or not contestant.served.same_tokens or -1 in tokens:
        return None
    place, own = first_difference(tokens, due.token_ids), due.token_ids
    # Some servers leave the token out that ends a text.
    whole = place == len(tokens) == len(own) - 1 and own[-1] in plain.pair.eos_ids
    shared = contestant.title, contestant.engine, contestant.mode, preset, len(tokens)
    return Agreement(*shared, place=None if whole else place)


def finding_of(what: Sentence, check: Callable[[], Finding]) -> Finding:
    """The finding of a check; one that fails, however it does, is a finding too."""
    try:
        return check()
    except Exception as error:
        advice = Sentence("Report this with the JSON file; meanwhile choose another drafter or float32.")
        return Finding("wrong", what, reason_of(error), advice)


def left_out(what: Sentence, why: Sentence | None = None) -> Finding:
    """A check for which there was no time."""
    advice = Sentence("python -m specviz check --minutes 5 checks more.")
    return Finding("skipped", what, why or Sentence("no time left for this check"), advice)


def texts(pair: ModelPair, seconds: float) -> Iterator[Finding]:
    """Greedy texts: transformers' `generate` and every drafter, each compared with our plain decoding."""
    began, preset = time.perf_counter(), PRESETS[0]
    plain = plain_request(pair, preset, 0.0, TEXT_TOKENS)
    token_seconds, eager_seconds = _token_seconds(plain)
    writers = sum(refusal_of(contestant, plain) is None for contestant, _ in _writers(plain))
    tokens = max(LEAST_TEXT, int(min(TEXT_TOKENS, seconds / (writers * token_seconds + eager_seconds))))
    plain = shortened(plain, tokens)
    due = plain_run(plain)
    for contestant, what in _writers(plain):
        if isinstance(refusal := refusal_of(contestant, plain), SpecvizError):
            yield Finding("skipped", what, refusal)
        elif time.perf_counter() - began > seconds:
            yield left_out(what)
        else:
            yield finding_of(what, functools.partial(_compared, contestant, what, due, plain, preset.name))


def _compared(contestant: Contestant, what: Sentence, due: Run, plain: Request, preset: str) -> Finding:
    same, margins = equal_tokens(contestant, due, plain, preset)
    if not margins:
        return Finding("right", what, Sentence("the same {n} tokens", n=same))
    if same < FAIR * len(due.token_ids):
        return Finding("skipped", what, too_few(same, len(due.token_ids), plain))
    seen = Sentence(
        "the same {n} tokens; near-ties, which rounding in {dtype} decides: {ties} (at most {margin} apart)",
        n=same,
        ties=len(margins),
        dtype=dtype_name(plain.pair.dtype),
        margin=float(f"{max(margins):.2g}"),
    )
    return Finding("right", what, seen)


def equal_tokens(contestant: Contestant, due: Run, plain: Request, preset: str) -> tuple[int, list[float]]:
    """How many tokens are the same, and the margin of each near-tie between them, at which the texts may part.

    Past a near-tie both go on from the same text, until a fair share of it has been compared. Arguments and errors: see
    `agreement`.
    """
    whole, same, margins = due, 0, list[float]()
    while True:
        tokens = new_tokens(contestant, plain)
        compared = agreement(contestant, tokens, due, plain, preset)
        if compared.place is None or compared.margin is None:
            return same + compared.tokens, margins
        same += compared.place
        margins.append(compared.margin)
        # One of the two tokens may end the text.
        texts = [text[: compared.place + 1] for text in (due.token_ids, tokens)]
        begun = next((text for text in texts if text[-1] not in plain.pair.eos_ids), None)
        left = plain.settings.max_new_tokens - compared.place - 1
        if same >= FAIR * len(whole.token_ids) or len(margins) > MOST_TIES or not left or begun is None:
            return same, margins
        plain = plain.but(replace(plain.settings, prompt=(*plain.prompt.ids, *begun), max_new_tokens=left))
        due = plain_run(plain)


def too_few(same: int, tokens: int, plain: Request) -> Sentence:
    """Why a comparison of so few tokens is none."""
    return Sentence(
        "only {same} of {n} tokens could be compared: at the others rounding in {dtype} decides between two tokens",
        same=same,
        n=tokens,
        dtype=dtype_name(plain.pair.dtype),
    )


def _writers(plain: Request) -> Iterator[tuple[Contestant, Sentence]]:
    """Every way to write plain decoding's text; each drafter with its defaults, and as a tree too where it can."""
    yield Contestant.of(PLAIN, engine="transformers"), Sentence("greedy text of transformers' generate")
    for name in DRAFTERS:
        chain = Contestant.of(name, GAMMA)
        yield chain, Sentence("greedy text, {drafter}", drafter=name)
        tree = Contestant.of(name, GAMMA, branches=BRANCHES)
        # Not every drafter makes trees, and not every model reads them.
        if refusal_of(chain, plain) is None and refusal_of(tree, plain) is None:
            request = request_of(chain, plain)
            if "branches" in request.drafter.parameters and request.branches == 1:
                yield tree, Sentence("greedy text, {drafter} with {n} branches", drafter=name, n=BRANCHES)


def _token_seconds(plain: Request) -> tuple[float, float]:
    """Seconds that a token takes in plain decoding, and in transformers' `generate`, which has passes of its own."""
    short, seconds = shortened(plain, 4), []
    for engine in ("specviz", "transformers"):
        began = time.perf_counter()
        with contextlib.suppress(Exception):  # the comparison of its text will report it
            new_tokens(Contestant.of(PLAIN, engine=engine), short)
        seconds.append((time.perf_counter() - began) / short.settings.max_new_tokens)
    return seconds[0], seconds[1]


# Texts across the lengths at which something changes: windows, chunks, buffers, the context's end. A short text never
# meets them, and a fault there affects everybody who writes longer ones.


def switches(pair: ModelPair, prompt_length: int = 0) -> list[tuple[int, Sentence]]:
    """The lengths, in tokens, and what changes there: of target and draft, as far as the context reaches.

    prompt_length: of the usual prompt, after which buffers grow first.
    """
    lengths: dict[int, Sentence] = {}
    for model in filter(None, (pair.target, pair.draft)):
        config = model.config.get_text_config()
        for length in _windows(model):
            lengths[length] = Sentence("texts across {n} tokens, an attention window", n=length)
        for switch in filter(None, (getattr(config, name, None) for name in ("floor_scale", "index_topk"))):
            lengths[switch] = Sentence("texts across {n} tokens, where attention changes", n=switch)
        rope = getattr(config, "rope_parameters", None) or {}
        for kind in (rope, *(kind for kind in rope.values() if isinstance(kind, dict))):
            if original := kind.get("original_max_position_embeddings"):
                lengths[original] = Sentence("texts across {n} tokens, the context before it was extended", n=original)
    if pair.passes.fast:
        length = (prompt_length // ROOM_STEP + 1) * ROOM_STEP
        lengths[length] = Sentence("texts across {n} tokens, where buffers grow", n=length)
        lengths[WIDEST] = Sentence("texts across {n} tokens, the most that a prepared pass reads", n=WIDEST)
    if (end := pair.context_length) is not None:
        lengths = {length: what for length, what in lengths.items() if length < end}
        lengths[end] = Sentence("texts up to {n} tokens, where the context ends", n=end)
    return sorted(lengths.items())


def _windows(model: PreTrainedModel) -> set[int]:
    layers = DynamicCache(config=model.config).layers
    windows = {layer.sliding_window for layer in layers if getattr(layer, "is_sliding", False)}
    window = getattr(model.config, "window_size", None)  # GPT-Neo's, which its cache ignores
    return windows | ({window} if isinstance(window, int) else set())


def lengths(pair: ModelPair, seconds: float) -> Iterator[Finding]:
    """One finding for each of the `switches` that can be read in this time, the nearest first."""
    until = time.perf_counter() + seconds
    # No end token: nothing ends before it has crossed the length.
    plain = plain_request(replace(pair, eos_ids=frozenset()), PRESETS[0], 0.0, NEW)
    ways = [
        Contestant.of(PLAIN),
        Contestant.of(PLAIN, engine="transformers"),
        *(Contestant.of(name, GAMMA) for name in DRAFTERS),
    ]
    ways = [way for way in ways if refusal_of(way, plain) is None]
    timed = min(TIMED, (pair.context_length or TIMED * 2) // 2)
    began = time.perf_counter()
    new_tokens(ways[0], _ending_at(plain, timed, 1))
    token_seconds = (time.perf_counter() - began) / timed
    for length, what in switches(pair, len(plain.prompt.ids)):
        needed, left = len(ways) * (length + NEW) * token_seconds, until - time.perf_counter()
        if length <= BEFORE:
            continue  # the other texts have crossed it
        if needed > left:
            yield left_out(what, Sentence("reading that much would take about {s} s", s=round(needed)))
        else:
            yield finding_of(what, functools.partial(_crossing, what, ways, _ending_at(plain, length - BEFORE, NEW)))


def _ending_at(plain: Request, length: int, tokens: int) -> Request:
    """The usual prompt over and over, up to this length; and new tokens as far as the context reaches."""
    ids, end = plain.prompt.ids, plain.pair.context_length
    prompt = (ids * -(-length // len(ids)))[-length:]
    room = tokens if end is None else min(tokens, end - length)
    return plain.but(replace(plain.settings, prompt=prompt, max_new_tokens=room))


def _crossing(what: Sentence, ways: list[Contestant], plain: Request) -> Finding:
    _, *drafting = ways
    due = plain_run(plain)
    compared = [equal_tokens(way, due, plain, PRESETS[0].name) for way in drafting]
    least, tokens = min(same for same, _ in compared), len(due.token_ids)
    if least < FAIR * tokens:
        return Finding("skipped", what, too_few(least, tokens, plain))
    same = Sentence("the same {n} tokens in {ways} ways", n=tokens, ways=len(ways))
    rounded = Sentence("the same {n} tokens in {ways} ways, up to rounding", n=least, ways=len(ways))
    return Finding("right", what, rounded if any(margins for _, margins in compared) else same)
