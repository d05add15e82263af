"""Which way to draft pays on some prompts, and how servers do the same. Loads no torch."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specviz.bench.contest import ALL, Contest, Row
from specviz.theory.roofline import BatchTimes, pass_seconds
from specviz.theory.statistics import Ratio, alike

if TYPE_CHECKING:
    from specviz.drafters.base import Servers


#: A speedup below this is none that anybody would notice; the page's verdict.js has the same.
ALIKE = 1.1


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to draft, and its figures against plain decoding."""

    row: Row  # on all prompts
    plain: float  # tokens a second of plain decoding, in the turns that it took with this one
    draft: str | None = None  # the draft model that it needs, as it was named
    translated: bool = False  # whether that has another tokenizer
    servers: Servers | None = None  # see `servers_of`; None: those of the drafter's own class
    stored: str | None = None  # how the target's file stores weights that were unpacked, as ``Q4_K_M``

    @property
    def mode(self) -> str:
        """The drafter's name."""
        return self.row.mode

    @property
    def num_draft_tokens(self) -> int:
        gamma = self.row.num_draft_tokens
        assert isinstance(gamma, int), "advice is about chains of fixed lengths"
        return gamma

    @property
    def ratio(self) -> Ratio:
        """Its measured speedup."""
        assert self.row.ratio is not None, "it was measured, see `offers_of`"
        return self.row.ratio

    @property
    def only_here(self) -> bool:
        """True if a server gains nothing: running the file as it is, it reads no fewer bits to draft than to verify."""
        bits = re.search(r"\d+", self.stored or "")
        return bits is not None and self.row.bits is not None and int(bits[0]) <= self.row.bits

    @property
    def outcome(self) -> str:
        """``pays`` where its whole interval is faster than plain decoding, ``plain`` where none of it is by more than
        `ALIKE`, else ``unclear``."""
        if (self.ratio.low or 0.0) > 1:
            return "pays"
        most = self.ratio.value if self.ratio.high is None else self.ratio.high
        return "plain" if most <= (1 if self.ratio.high is None else ALIKE) else "unclear"


def ranked(offers: Sequence[Offer]) -> list[Offer]:
    """The fastest first, as far as can be counted on: by the lower ends of their intervals."""
    return sorted(offers, key=lambda offer: -(offer.ratio.low or 0.0))


def winner(offers: Sequence[Offer]) -> Offer:
    """The first of them all that may pay; of others, the first."""
    order = ranked(offers)
    return next((offer for offer in order if offer.outcome != "plain"), order[0])


def on_a_server(offers: Sequence[Offer]) -> Offer | None:
    """The winner, if it may pay; where it does so only here, that of the others that servers have."""
    best = winner(offers)
    if best.only_here:
        rest = [offer for offer in offers if not offer.only_here and any(row.flags for row in server_flags(offer))]
        best = winner(rest or offers)
    return None if best.only_here or best.outcome == "plain" else best


def may_be_best(offers: Sequence[Offer], best: Offer) -> list[Offer]:
    """Those of other drafters that measured faster than the best offer, though less of it can be counted on: of each
    the length that ranks first, by which it stands in the table."""
    first = {(best.mode, best.draft): best}
    for offer in ranked(offers):
        first.setdefault((offer.mode, offer.draft), offer)
    faster = [one for one in first.values() if one.ratio.value > best.ratio.value and one.outcome != "plain"]
    return sorted(faster, key=lambda offer: -offer.ratio.value)


@dataclass(frozen=True, slots=True)
class Load:
    """How many requests at once still pay."""

    most: int | None  # None: not even the fewest
    beyond: int | None  # of those that were timed, the fewest with which it no longer does; None: with all it does


def load_of(offer: Offer, times: BatchTimes) -> Load | None:
    """By the theory of batches, with the tokens a pass that were measured on single requests. None where too few passes
    were timed."""
    most = None
    for requests in times.batches:
        if requests == 1:
            continue  # measured, and not by theory
        speedup = _batched_speedup(offer, times, requests)
        if speedup is None:
            break
        if speedup < 1:
            return Load(most, requests)
        most = requests
    return None if most is None else Load(most, None)


def _batched_speedup(offer: Offer, times: BatchTimes, requests: int) -> float | None:
    """Tokens a pass / (γ c + T(B, γ + 1) / T(B, 1)); None where these were not timed."""
    timed = {(point.role, point.width): point.seconds for point in times.points if point.requests == requests}
    target = {width: seconds for (role, width), seconds in timed.items() if role == "target"}
    gamma, tokens = offer.num_draft_tokens, offer.row.acceptance_length
    assert tokens is not None, "it was measured, see `offers_of`"
    if 1 not in target or max(target) < gamma + 1:
        return None
    one, verify = pass_seconds(target, [1, gamma + 1])
    cost = offer.row.cost_coefficient or 0.0
    if offer.mode == "draft_model" and ("draft", 1) in timed:
        cost = timed["draft", 1] / one
    return tokens / (gamma * cost + verify / one)


def offers_of(
    contest: Contest, draft: str | None, translated: bool, servers: Mapping[str, Servers], stored: str | None = None
) -> list[Offer]:
    """The ways measured on all prompts. draft: the pair's draft model, as it was named; translated, servers, stored:
    see `Offer`; servers by the drafters' names."""
    models = {"draft_model": (draft, translated)}
    return [
        Offer(row, contest.plain_beside(row), *models.get(row.mode, (None, False)), servers.get(row.mode), stored)
        for row in contest.by_domain()
        if row.domain == ALL and row.ratio is not None
    ]


def good_lengths(offers: Sequence[Offer], best: Offer) -> list[int]:
    """The γ of the best offer's drafter that cannot be told apart from its own, in ascending order."""
    same = [offer for offer in offers if (offer.mode, offer.draft) == (best.mode, best.draft)]
    equal = [offer for offer in same if offer is best or (offer.ratio.interval and alike(offer.ratio, best.ratio))]
    return sorted(offer.num_draft_tokens for offer in equal)


#: The ways whose draft tokens a server draws if it is told to, as they are drawn here above temperature 0; without a
#: flag it takes the likeliest. vLLM: `draft_sample_method` of vllm/config/speculative.py. SGLang: pull request 26312,
#: see `Servers.sglang_draws`. llama.cpp: pull request 27694, in builds from b11368 on (not in b10434); its p-min, 0
#: unless it is set, cuts by the likeliest token, not by the drawn one.
_DRAWN_BY_VLLM = frozenset({"draft_model", "mtp", "eagle", "eagle3", "dflash", "dspark"})
_DRAWN_BY_LLAMA_CPP = frozenset({"draft-simple", "draft-mtp"})


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """How to make a server draft in this way."""

    server: str
    flags: str | None  # None where it has no such way
    notes: tuple[str, ...] = ()  # anything else that it needs; the keys of sentences


def server_flags(offer: Offer) -> tuple[ServerFlags, ...]:
    """The flags of each server for chains of this drafter and length, drawn where the measured ones were."""
    from specviz.drafters.registry import class_named  # here, so that this module can be imported without torch

    names, gamma = offer.servers or class_named(offer.mode).servers, offer.num_draft_tokens
    drawn = offer.row.temperature > 0
    model = offer.draft or names.model
    rows = (flags(names, gamma, model, drawn) for flags in (_vllm, _sglang, _llama_cpp))
    return tuple(
        replace(row, notes=("tokenizers", *row.notes)) if offer.translated and row.flags else row for row in rows
    )


def _vllm(names: Servers, gamma: int, model: str | None, drawn: bool) -> ServerFlags:
    if names.vllm is None:
        return ServerFlags("vLLM", None)
    config = {"method": names.vllm} | ({"model": model} if model else {}) | {"num_speculative_tokens": gamma}
    if names.in_parallel:
        config |= {"parallel_drafting": True}
    if drawn and names.vllm in _DRAWN_BY_VLLM:
        config |= {"draft_sample_method": "probabilistic"}
    if names.vllm == "ngram":
        config |= {"prompt_lookup_max": names.ngram[1], "prompt_lookup_min": names.ngram[0]}
    return ServerFlags("vLLM", f"--speculative-config {shlex.quote(json.dumps(config))}", _notes(names.note))


def _sglang(names: Servers, gamma: int, model: str | None, drawn: bool) -> ServerFlags:
    if names.sglang is None:
        return ServerFlags("SGLang", None)
    flags, ngram = ["--speculative-algorithm", names.sglang], names.sglang == "NGRAM"
    block = names.sglang in ("DFLASH", "DSPARK")  # drafted in one step: it refuses, or overrides, any number of them
    if model:
        flags += ["--speculative-draft-model-path", model]
    if not ngram and not block:
        flags += ["--speculative-num-steps", str(gamma), "--speculative-eagle-topk", "1"]
    if names.sglang != "DSPARK":  # whose checkpoint says how many
        # One more than are drafted: the pass reads the last token of the text too.
        flags += ["--speculative-num-draft-tokens", str(gamma + 1)]
    if drawn and names.sglang_draws:
        flags += ["--speculative-use-rejection-sampling"]
    return ServerFlags("SGLang", shlex.join(flags), _notes("trie" if ngram else names.note))


def _llama_cpp(names: Servers, gamma: int, model: str | None, drawn: bool) -> ServerFlags:
    if names.llama_cpp is None:
        return ServerFlags("llama.cpp", None)
    if names.llama_cpp == "ngram-simple":
        sizes = f"--spec-ngram-simple-size-n {names.ngram[1]} --spec-ngram-simple-size-m {gamma}"
        return ServerFlags("llama.cpp", f"--spec-type ngram-simple {sizes}", ("lookup",))
    flags = ["--spec-type", names.llama_cpp, "--spec-draft-n-max", str(gamma)]
    draws = drawn and names.llama_cpp in _DRAWN_BY_LLAMA_CPP
    if draws:
        flags += ["--spec-draft-sampling", "probabilistic"]
    if model:
        flags = ["--model-draft", f"{model}.gguf", *flags]
    return ServerFlags("llama.cpp", shlex.join(flags), _notes("gguf" if model else "", "drawn" if draws else ""))


def _notes(*keys: str) -> tuple[str, ...]:
    return tuple(filter(None, keys))
