"""Speculative decoding: draft, verify in one pass, keep what the rule accepts, repeat. `_decode` is the loop."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from specviz.decoding.continuation import Continuation
from specviz.decoding.decoder import BuildDrafter, Decoder, Judge, decoder_of
from specviz.decoding.device_rounds import DeviceRounds
from specviz.decoding.host_rounds import HostRounds
from specviz.decoding.lengths import depth_policy, learn
from specviz.decoding.one_call import OneCallDecoder
from specviz.decoding.record import PendingRound, collect
from specviz.decoding.request import Request, prepare
from specviz.decoding.rounds_ahead import RoundsAhead
from specviz.models.pair import ModelPair
from specviz.models.refusals import refusing_out_of_memory
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import OneThread, passing_time
from specviz.records.errors import SpecvizError, quoted
from specviz.records.runs import Round, Run, Seconds
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules import choose_rule
from specviz.rules.draft import Rule
from specviz.theory.draft_length import DepthPolicy

AnyRound = TypeVar("AnyRound", Round, PendingRound)


def speculate(pair: ModelPair, prompt: str | Sequence[int], **settings: Any) -> Generator[Round, None, None]:
    """Continues `prompt` (text or token ids), yielding one Round per target pass.

    settings: fields of `RunSettings` by name. None means the default, except for the drafter: ``drafter=None`` is plain
    decoding.

    Whatever the drafter, the output follows the target's distribution (Leviathan et al. 2023, arXiv 2211.17192,
    Alg. 1), unless the rule is ``typical``, which is lossy. The same seed gives the same run on the same device, by the
    same passes: those that the pair has when the run begins (`ModelPair.prepare`). Raises SpecvizError, with `field`
    set, before the first round if the settings are invalid. Closing the generator stops the run at the end of its
    round.
    """
    return rounds(_request(pair, prompt, settings))


def run(pair: ModelPair, prompt: str | Sequence[int], **settings: Any) -> Run:
    """The rounds of `speculate`, collected into a Run; takes the same arguments."""
    request = _request(pair, prompt, settings)
    return collect(request, list(rounds(request)))


def _request(pair: ModelPair, prompt: str | Sequence[int], settings: dict[str, Any]) -> Request:
    for name in settings:
        _require_known(name)
    named = {name: value for name, value in settings.items() if value is not None or name == "drafter"}
    return prepare(pair, RunSettings(prompt, **named))


def _require_known(name: str) -> None:
    """Raises SpecvizError for a name that is none of a run's settings, or that of a setting within another."""
    known = [row.name for row in fields(RunSettings) if row.name != "prompt"]
    for part, kind in (("sampling", SamplingParams), ("drafting", DraftParams)):
        if name in {row.name for row in fields(kind)}:
            raise SpecvizError(
                "{name} belongs to {part}: write {part}=specviz.{kind}({name}=…).",
                name,
                name=name,
                part=part,
                kind=kind.__name__,
            )
    if name not in known:
        raise SpecvizError(
            "There is no setting {name}; choose from {known}.", name, name=quoted(name), known=", ".join(known)
        )


def rounds(request: Request, build: BuildDrafter | None = None) -> Generator[Round, None, None]:
    """The rounds of a checked request. Raises SpecvizError (field ``max_new_tokens``) if memory runs out.

    build: makes the caller's own drafter, which must draft no deeper than the request's, whose size was checked.
    """
    return _refusing_long_texts(request, _recorded(request, _decode(request, build)))


def pending_rounds(
    request: Request, build: BuildDrafter | None = None, details: bool = False
) -> Generator[PendingRound, None, None]:
    """The same rounds before their records are made, so that this can wait until no time is measured.

    details: their verdicts hold what they came from, for judging a draft once more.
    """
    return _refusing_long_texts(request, _decode(request, build, details))


def _recorded(request: Request, pending: Iterator[PendingRound]) -> Iterator[Round]:
    one_thread = OneThread(request.passes)
    for round_ in pending:
        with one_thread:
            record = round_.record()
        yield record


@torch.inference_mode()
def _decode(request: Request, build: BuildDrafter | None, details: bool = False) -> Generator[PendingRound, None, None]:
    """The loop: clock and text around the decoder's rounds."""
    decoder = OneCallDecoder.of(decoder_of(request, build), request)
    policy, text = depth_policy(request), Continuation(request)
    prefill, index = _seconds_of(decoder.target.stopwatch, lambda: decoder.prefill(text.committed)), 0
    maker = _maker(request, decoder, policy, on_host=details or build is not None)
    pass_time, one_thread = passing_time(request.passes), OneThread(request.passes)

    while text.stop_reason is None:
        pass_time()
        # 1–4. Draft, verify, judge, keep.
        with one_thread:
            round_ = maker.next(text)
        # 5. Yield.
        emitted, pieces = text.extend(round_.verdict.tokens)
        seconds = round_.seconds(prefill)
        learn(policy, request, round_.verdict, seconds)
        yield PendingRound(
            round_.verdict,
            request.pair.texts,
            request.rule,
            index,
            tuple(emitted),
            tuple(pieces),
            seconds,
            text.stop_reason,
            None if round_.choice.speed is None else round_.choice,
            decoder.drafter.reachable,
            decoder.target.read_again,
            round_.fetch,
            round_.apart,
        )
        prefill, index = 0.0, index + 1


def _maker(request: Request, decoder: Decoder, policy: DepthPolicy, on_host: bool) -> HostRounds:
    if isinstance(decoder, OneCallDecoder) and not decoder.asks:
        return RoundsAhead(request, decoder, policy)
    return HostRounds(request, decoder, policy) if on_host else DeviceRounds.of(request, decoder, policy)


def _seconds_of(clock: Stopwatch, work: Callable[[], None]) -> float:
    """Seconds of finished work that does not count as time in models."""
    start = clock.mark()
    work()
    end = clock.mark()
    clock.synchronize()
    clock.forget_spans()
    return clock.between(start, end)


def _refusing_long_texts(request: Request, rounds_: Iterator[AnyRound]) -> Generator[AnyRound, None, None]:
    tokens = len(request.prompt.ids)

    def too_long() -> SpecvizError:
        return SpecvizError(
            "The device ran out of memory at {tokens} tokens: ask for fewer new tokens, shorten the prompt or load "
            "smaller models.",
            "max_new_tokens",
            tokens=f"{tokens:,}",
        )

    with refusing_out_of_memory(too_long):
        for round_ in rounds_:
            tokens += len(round_.emitted)
            yield round_


# Two rules on the same drafts


def replay(request: Request, rule: str) -> Generator[tuple[Round, Round], None, None]:
    """Each round of the request, and the round in which `rule` judges the same draft with the same coins.

    The text continues as the request's own rule decides, so both always judge the same draft. The other rule's round
    has no `pieces` and no times. Raises SpecvizError at once, with field ``rule``, if that rule does not fit the
    drafts.
    """
    drafter = request.settings.drafter
    if drafter is None:
        raise SpecvizError("Plain decoding drafts nothing for two rules to judge: choose a drafter.", "drafter")
    other_rule = choose_rule(rule, drafter, request.branches > 1, request.drafter.draws_paths)
    if other_rule.lossless != request.rule.lossless:
        raise SpecvizError(
            "The two rules need different drafts: a lossy rule judges top choices, a lossless rule judges drawn "
            "tokens.",
            "rule",
        )
    if request.branches > 1 and other_rule.paths != request.rule.paths:
        raise SpecvizError(
            "The two rules need different drafts of a tree: one draws siblings, the other whole paths.", "rule"
        )
    return _replay(request, other_rule)


def _replay(request: Request, other_rule: Rule) -> Generator[tuple[Round, Round], None, None]:
    judge = Judge(replace(request, rule=other_rule).deciding_rule, request.warper)
    for pending in pending_rounds(request, details=True):
        yield pending.record(), _judge_again(pending, other_rule, judge).record()


@torch.inference_mode()
def _judge_again(pending: PendingRound, rule: Rule, judge: Judge) -> PendingRound:
    rows, _, uniforms = pending.verdict.details()
    verdict = judge.verdict_by_rows(pending.verdict.draft, rows, uniforms)
    verdict = replace(verdict, unmasked=pending.verdict.unmasked)
    judged = replace(pending, verdict=verdict, rule=rule, emitted=verdict.tokens, pieces=())
    return replace(judged, seconds=Seconds(0.0, 0.0, 0.0, 0.0, 0.0), stop_reason=None, choice=None, read_again=0)
