"""Speculative decoding: draft, verify in one pass, keep what the rule accepts, repeat. `_decoded` is the loop."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from specviz.decoding.decoder import BuildDrafter, Decoder, Judge, decoder_of
from specviz.decoding.lengths import learn, length_of
from specviz.decoding.record import PendingRound, collect
from specviz.decoding.request import Request, prepare
from specviz.models.pair import ModelPair
from specviz.models.refusals import refusing_out_of_memory
from specviz.models.token_texts import Detokenizer
from specviz.passes.devices import Stopwatch
from specviz.passes.static_passes import between_rounds
from specviz.records.errors import SpecvizError
from specviz.records.runs import Round, Run, Seconds, StopReason
from specviz.records.settings import RunSettings
from specviz.rules import choose_rule
from specviz.rules.draft import Rule

Made = TypeVar("Made", Round, PendingRound)


def speculate(pair: ModelPair, prompt: str | Sequence[int], **settings: Any) -> Iterator[Round]:
    """Continues `prompt` (text or token ids), yielding one Round per target pass.

    settings: fields of `RunSettings` by name. None means the default, except for the drafter: ``drafter=None`` is plain
    decoding.

    Whatever the drafter, the output follows the target's distribution (Leviathan et al. 2023, arXiv 2211.17192,
    Alg. 1), unless the rule is ``typical``, which is lossy. The same seed gives the same run on the same device. Raises
    SpecvizError, with `field` set, before the first round if the settings are invalid. Closing the generator stops the
    run at the end of its round.
    """
    return rounds(_ordered(pair, prompt, settings))


def run(pair: ModelPair, prompt: str | Sequence[int], **settings: Any) -> Run:
    """The rounds of `speculate`, collected into a Run; takes the same arguments."""
    request = _ordered(pair, prompt, settings)
    return collect(request, list(rounds(request)))


def _ordered(pair: ModelPair, prompt: str | Sequence[int], settings: dict[str, Any]) -> Request:
    named = {name: value for name, value in settings.items() if value is not None or name == "drafter"}
    return prepare(pair, RunSettings(prompt, **named))


def rounds(request: Request, build: BuildDrafter | None = None) -> Iterator[Round]:
    """The rounds of a checked request. Raises SpecvizError (field ``max_new_tokens``) if memory runs out.

    build: makes the caller's own drafter, which must draft no deeper than the request's, whose size was checked.
    """
    return _refusing_long_texts(request, (one.record() for one in _decoded(request, build)))


def pending_rounds(request: Request, build: BuildDrafter | None = None) -> Iterator[PendingRound]:
    """The same rounds before their records are made, so that this can wait until no time is measured."""
    return _refusing_long_texts(request, _decoded(request, build))


@torch.inference_mode()
def _decoded(request: Request, build: BuildDrafter | None) -> Iterator[PendingRound]:
    """The loop: clock and text around the decoder's rounds."""
    decoder, length, text = decoder_of(request, build), length_of(request), Continuation(request)
    clock = decoder.target.stopwatch
    prefill, index = _timed(clock, lambda: decoder.prefill(text.committed)), 0

    while text.stop_reason is None:
        between_rounds(request.passes)
        began = time.perf_counter()
        # 1–4. Draft, verify, judge, keep.
        choice = length.choose()
        decoder.drafter.narrow(1 if length.as_chain else request.branches)
        verdict = decoder.round(text.committed, min(choice.depth, text.room))
        # 5. Yield.
        emitted, pieces = text.extend(verdict.tokens)
        seconds = _seconds(decoder, began, prefill)
        learn(length, request, verdict, seconds)
        yield PendingRound(
            verdict,
            request.pair.texts,
            request.rule,
            index,
            tuple(emitted),
            tuple(pieces),
            seconds,
            text.stop_reason,
            None if choice.speed is None else choice,
            decoder.drafter.reachable,
            decoder.target.read_again,
        )
        prefill, index = 0.0, index + 1


class Continuation:
    """A run's committed tokens and their text.

    Acceptance is decided before anything is truncated here, so truncation cannot bias a count.
    """

    def __init__(self, request: Request):
        self.settings, self.pair = request.settings, request.pair
        self.prompt_length = len(request.prompt.ids)
        self.committed = list(request.prompt.ids)
        self.detokenizer = Detokenizer(request.pair.texts, request.prompt.ids)
        self.tail = ""
        self.stop_reason: StopReason | None = None

    @property
    def left(self) -> float:
        """How many tokens can still be added."""
        left = self.settings.max_new_tokens + self.prompt_length - len(self.committed)
        if self.pair.context_length is not None:
            left = min(left, self.pair.context_length - len(self.committed))
        return left

    @property
    def room(self) -> int:
        """How many draft tokens could be kept: the round adds one more, and nothing past the end is."""
        return self.left - 1

    def extend(self, tokens: Sequence[int]) -> tuple[list[int], list[str]]:
        """Commits a round's tokens, up to the run's end; returns those committed and their texts."""
        emitted, pieces = [], []
        for token in tokens:
            self.committed.append(token)
            emitted.append(token)
            pieces.append(self.detokenizer.push(token))
            self.stop_reason = self._reason_to_stop(token, pieces[-1])
            if self.stop_reason:
                pieces[-1] += self.detokenizer.flush()
                break
        return emitted, pieces

    def _reason_to_stop(self, token: int, piece: str) -> StopReason | None:
        if token in self.pair.eos_ids:
            return "eos"
        if self.settings.stop:
            window = max(map(len, self.settings.stop)) - 1
            text = self.tail + piece
            # Bytes are held back that may be whole characters already: a line's end is one in some vocabularies.
            if any(stop in text + self.detokenizer.held for stop in self.settings.stop):
                return "stop_string"
            self.tail = text[-window:] if window else ""
        if len(self.committed) - self.prompt_length >= self.settings.max_new_tokens:
            return "length"
        return "context" if self.left <= 0 else None


def _timed(clock: Stopwatch, work: Callable[[], None]) -> float:
    """Seconds of finished work that does not count as time in models."""
    start = clock.mark()
    work()
    end = clock.mark()
    clock.synchronize()
    clock.forget_spans()
    return clock.between(start, end)


def _seconds(decoder: Decoder, began: float, prefill: float) -> Seconds:
    """The times of the last round; its one transfer to the host has made all marks readable."""
    clock, (start, drafted, verified) = decoder.target.stopwatch, decoder.marks
    total = time.perf_counter() - began
    draft, verify = clock.between(start, drafted), clock.between(drafted, verified)
    return Seconds(draft, verify, total - draft - verify, total, clock.take_spans(), prefill)


def _refusing_long_texts(request: Request, made: Iterator[Made]) -> Iterator[Made]:
    tokens = len(request.prompt.ids)

    def too_long() -> SpecvizError:
        return SpecvizError(
            "The device ran out of memory at {tokens} tokens: ask for fewer new tokens, shorten the prompt or load "
            "smaller models.",
            "max_new_tokens",
            tokens=f"{tokens:,}",
        )

    with refusing_out_of_memory(too_long):
        for one in made:
            tokens += len(one.emitted)
            yield one


# Two rules on the same drafts


def replay(request: Request, rule: str) -> Iterator[tuple[Round, Round]]:
    """Each round of the request, and the round in which `rule` judges the same draft with the same coins.

    The text continues as the request's own rule decides, so both always judge the same draft. The other rule's round
    has no `pieces` and no times. Raises SpecvizError at once, with field ``rule``, if that rule does not fit the
    drafts.
    """
    drafter = request.settings.drafter
    if drafter is None:
        raise SpecvizError("Plain decoding drafts nothing that two rules could judge: choose a drafter.", "drafter")
    other = choose_rule(rule, drafter, request.branches > 1, request.drafter.draws_paths)
    if other.lossless != request.rule.lossless:
        raise SpecvizError("A lossy rule judges top choices, a lossless one draws: these are different drafts.", "rule")
    if request.branches > 1 and other.paths != request.rule.paths:
        raise SpecvizError(
            "Siblings and whole paths are drawn differently: these are different drafts of a tree.", "rule"
        )
    return _replayed(request, other)


def _replayed(request: Request, other: Rule) -> Iterator[tuple[Round, Round]]:
    judge = Judge(replace(request, rule=other).deciding_rule, request.warper)
    for one in pending_rounds(request):
        yield one.record(), _judged_again(one, other, judge).record()


@torch.inference_mode()
def _judged_again(one: PendingRound, rule: Rule, judge: Judge) -> PendingRound:
    rows, _ = one.verdict.details()
    verdict = judge.verdict_by_rows(one.verdict.draft, rows, one.verdict.uniforms)
    nothing = Seconds(0.0, 0.0, 0.0, 0.0, 0.0)
    judged = {"verdict": verdict, "rule": rule, "emitted": verdict.tokens, "pieces": ()}
    return replace(one, **judged, seconds=nothing, stop_reason=None, choice=None, read_again=0)
