"""Are the target's trained parts wired right? Each is read as its files say and in neighbouring ways, on one text.

A part that gets other hidden states than it was trained on raises no error: fewer of its tokens are accepted, at times
only a few percent fewer. To tell that within seconds, nothing is left to coins that need not be: all readings draft at
the same places of a text that the target itself drew, and how many tokens it would accept there is computed.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy
import torch
from torch import Tensor

from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.contesting import new_tokens, plain_request, request_of
from specviz.bench.equal_texts import GAMMA, Finding, left_out
from specviz.decoding.decoder import context_of
from specviz.decoding.request import Request
from specviz.drafters.base import Drafter
from specviz.drafters.choosers import TopChoices
from specviz.models.pair import ModelPair
from specviz.parts.reading import TrainedPart
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.passes.readers import new_cached_model
from specviz.records.prompts import PRESETS
from specviz.records.words import Sentence
from specviz.rules.draft import Draft, Uniforms, Verdict
from specviz.theory.statistics import Ratio, over_prompts

#: Places of each text at which is drafted, and how many neighbouring ones count as one: they share most of a draft.
PLACES, STRETCH = 24, 2 * GAMMA

#: The fewest stretches that make an interval, and the least certainty of a verdict: of parts that draft equally well
#: in every reading, a few in a hundred are called misread (simulated, with up to four neighbours).
LEAST, SURE = 8, 0.98


@dataclass(frozen=True, eq=False)
class TriedReading:
    """A way to read a part, and how many of its draft tokens are accepted on average, at each place of each text."""

    drafter: str
    part: TrainedPart
    name: Sentence | None = None  # None: as its files say
    accepted: list[list[float]] = field(default_factory=list)

    def request(self, plain: Request) -> Request:
        """To draft with it on the text of `plain`. No prepared passes: those of a part are of its usual reading."""
        pair = replace(plain.pair, parts=plain.pair.parts | {self.drafter: self.part})
        return request_of(Contestant.of(self.drafter, GAMMA, branches=1), replace(plain, pair=pair, passes={}))


def wiring(pair: ModelPair, seconds: float) -> Iterator[Finding]:
    """A finding for each trained part. Looks at as many texts as there is time for."""
    until = time.perf_counter() + seconds
    readings = {name: readings_of(pair, name) for name in pair.parts}
    for preset in PRESETS if readings else ():
        if time.perf_counter() < until:
            plain = plain_request(pair, preset, 1.0, PLACES + GAMMA - 1)
            listen(plain, list(itertools.chain(*readings.values())), until)
    for name, of_part in readings.items():
        layers = ", ".join(map(str, pair.parts[name].feature_layers))
        yield verdict(Sentence("how {part} is read, hidden states {layers}", part=name, layers=layers), of_part)


def readings_of(pair: ModelPair, name: str) -> list[TriedReading]:
    """Of the pair's part of this name: as its files say, then the neighbours whose hidden states the target has."""
    part, last = pair.parts[name], pair.target.config.get_text_config().num_hidden_layers
    possible = [TriedReading(name, neighbour, key) for key, neighbour in part.variants().items()]
    possible = [reading for reading in possible if all(0 <= layer <= last for layer in reading.part.feature_layers)]
    return [TriedReading(name, part), *possible]


class Dictated(TopChoices):
    """Has a drafter draft the tokens of a text, so that each of its rows follows that text."""

    temperature = None  # no draft in one call

    def __init__(self) -> None:
        self.coming: Iterator[Tensor] = iter(())

    def choose(self, row: Tensor, u: Tensor) -> tuple[Tensor, None]:
        return next(self.coming), None


@torch.inference_mode()
def listen(plain: Request, readings: Sequence[TriedReading], until: float) -> None:
    """Has every reading draft at the places of a text that `plain` writes, and adds what the target would accept."""
    pair, prompt = plain.pair, list(plain.prompt.ids)
    new = new_tokens(Contestant.of(PLAIN), plain)
    text, tokens = [*prompt, *new], torch.tensor(new, device=pair.device)
    layers = sorted({layer for reading in readings for layer in reading.part.feature_layers})
    # By the reader that a run has: a running state wants a reader of its own.
    target_of = partial(new_cached_model, pair.target, Stopwatch(pair.device), None)
    plain_target, read = target_of(), torch.tensor(text[:-1], device=pair.device)
    probs = plain_target.forward(read, rows_wanted=len(new)).float().softmax(-1)
    target, chooser = target_of(tuple(layers)), Dictated()
    requests = [reading.request(plain) for reading in readings]
    drafters = [request.drafter(context_of(request, target, chooser)) for request in requests]
    for reading in readings:
        reading.accepted.append([])
    target.prefill(prompt)
    for drafter in drafters:
        drafter.prefill(prompt, _features_of(drafter, target, layers))
    draws, judgements = torch.zeros(2, GAMMA, dtype=torch.double, device=pair.device)
    coins = Uniforms(draws, judgements, next=tokens.new_zeros(()))
    for place in range(len(new) - GAMMA + 1):
        if time.perf_counter() > until:
            break
        committed, drafts = text[: len(prompt) + place], []
        for reading, drafter in zip(readings, drafters):
            chooser.coming = iter(tokens[place:].split(1))
            drafts.append(drafter.propose(committed, GAMMA, coins.draft))
            reading.accepted[-1].append(expected(drafts[-1].logits, probs[place:], tokens[place:]))
        target.forward(target.unread(committed), rows_wanted=1)
        target.rewind(len(committed))
        for draft, drafter in zip(drafts, drafters):
            # As if all were rejected: at each place the target has read what comes before it, and no more.
            features = _features_of(drafter, target, layers)
            drafter.observe_draft(len(committed), _rejected(draft, new[place]), features)


def _rejected(draft: Draft, token: int) -> Verdict:
    """As much of a verdict on it as a drafter looks at; the token was drawn instead."""
    return Verdict((), (token,), (), draft.parents, lambda: draft, None, 0)


def expected(logits: Tensor | None, probs: Tensor, tokens: Tensor) -> float:
    """How many tokens of a chain the target accepts at temperature 1, where it goes on with these `tokens` itself.

    logits: [m, vocab] of the drafter, row i after the first i tokens; None if it drafts nothing. probs: [≥ m, vocab],
    the target's there. Token i is reached and accepted with the probability Σ ∏ min(p, q) over all chains of i + 1
    tokens (Leviathan et al. 2023, arXiv 2211.17192, Thm 3.5), which is the mean of ∏ min(1, q / p) over the target's
    own texts; of the last factor the whole sum is known.
    """
    if logits is None:
        return 0.0
    q = logits.float().softmax(-1)
    p = probs[: len(q)]
    ids = tokens[: len(q), None]
    reached = (q.gather(-1, ids) / p.gather(-1, ids)).clamp_max(1).squeeze(-1).cumprod(0).roll(1)
    reached[0] = 1
    return float((reached * torch.minimum(p, q).sum(-1)).sum())


def _features_of(drafter: Drafter, target: CachedModel, layers: list[int]) -> Tensor | None:
    """Of the hidden states of the target's last pass, those that the drafter reads."""
    if target.features is None:
        return None
    places = [layers.index(layer) for layer in drafter.feature_layers]
    return target.features.unflatten(-1, (len(layers), -1))[:, places].flatten(-2)


def verdict(what: Sentence, readings: Sequence[TriedReading]) -> Finding:
    """The verdict on the first reading, the part's own, by how many tokens of each were accepted."""
    sums, neighbours = _stretches(readings), readings[1:]
    if len(sums) < LEAST:
        return left_out(what)
    tokens = [over_prompts(sums, partial(_kept, reading=place)) for place in range(len(readings))]
    figures = reduce(
        lambda first, then: Sentence("{first}, and {then}", first=first, then=then), map(_figure, readings, tokens)
    )
    if not neighbours:
        return Finding("skipped", what, figures)
    level = 1 - (1 - SURE) / len(neighbours)  # so that all of them hold at once
    gains = [over_prompts(sums, partial(_gain, reading=place), level=level) for place in range(1, len(readings))]
    best, reading = max(zip(gains, neighbours), key=lambda pair: pair[0].value)
    if best.low is not None and best.low > 0:
        seen = Sentence(
            "{reading} would give {gain} more tokens a pass ({low} to {high}, 98 %): {figures}",
            reading=reading.name,
            figures=figures,
            **_rounded(best, "gain"),
        )
        advice = Sentence("Its configuration does not say how it was trained: correct it, or download it again.")
        return Finding("slow", what, seen, advice)
    if all(gain.high is not None and gain.high < 0 for gain in gains):
        return Finding("right", what, figures)
    return Finding("skipped", what, Sentence("no other reading is better beyond chance: {figures}", figures=figures))


def _stretches(readings: Sequence[TriedReading]) -> list[tuple[float, ...]]:
    """Of each stretch of text, how many places it has, and how many tokens of each reading were accepted there."""
    sums: list[tuple[float, ...]] = []
    for text in zip(*(reading.accepted for reading in readings)):
        for first in range(0, len(text[0]), STRETCH):
            parts = [accepted[first : first + STRETCH] for accepted in text]
            sums.append((len(parts[0]), *map(sum, parts)))
    return sums


def _kept(sums: numpy.ndarray, reading: int) -> numpy.ndarray:
    """Tokens a target pass, of sums [n, 1 + readings]: those of the draft, and the one that the pass adds."""
    return 1 + sums[:, 1 + reading] / sums[:, 0]


def _gain(sums: numpy.ndarray, reading: int) -> numpy.ndarray:
    """The same, beyond those of the part's own reading."""
    return _kept(sums, reading) - _kept(sums, 0)


def _rounded(ratio: Ratio, name: str) -> dict[str, float | None]:
    values = {name: ratio.value, "low": ratio.low, "high": ratio.high}
    return {key: None if value is None else round(value, 2) for key, value in values.items()}


def _figure(reading: TriedReading, tokens: Ratio) -> Sentence:
    values = _rounded(tokens, "kept")
    if reading.name is None:
        return Sentence("{kept} tokens a pass ({low} to {high}, 90 %) as it is read now", **values)
    return Sentence("{kept} with {reading} ({low} to {high})", reading=reading.name, **values)
