"""Speculative decoding: draft, verify in one pass, keep what the target agrees with, repeat.

`speculate` yields one Round per target pass; `run` collects them. Plain decoding, the baseline, is its own loop.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import transformers

from specviz.cache import CachedModel
from specviz.clock import Mark, Stopwatch
from specviz.drafters import DRAFTERS, Draft, Drafter, DraftModel, PromptLookup, Verdict
from specviz.errors import SpecvizError
from specviz.models import ModelPair
from specviz.recording import Report, TargetRows, Uniforms, report
from specviz.records import Prompt, Round, Run, Seconds, StopReason
from specviz.refusals import refusing_out_of_memory
from specviz.sampling import SamplingParams, Warper
from specviz.text import Detokenizer
from specviz.verify import Decision, follow_target, verify_by_match, verify_by_rejection

#: Longer drafts than this never pay and only fill memory.
MAX_DRAFT_TOKENS = 64


@dataclass(frozen=True)
class Request:
    """A checked order for one run; `prepare` makes it."""

    pair: ModelPair
    prompt: Prompt
    drafter: str | None
    num_draft_tokens: int
    sampling: SamplingParams
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()


def prepare(
    pair: ModelPair,
    prompt: str | Sequence[int],
    *,
    drafter: str | None = "draft_model",
    num_draft_tokens: int = 4,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    stop: Sequence[str] = (),
    chat: bool = False,
) -> Request:
    """Checks everything that can be checked before a model runs; see `speculate` for the arguments."""
    if drafter is not None and drafter not in DRAFTERS:
        raise SpecvizError(f"There is no drafter {drafter!r}; choose from {', '.join(DRAFTERS)}.", "drafter")
    if drafter == DraftModel.name and pair.draft is None:
        raise SpecvizError(
            "This pair has no draft model: name one when loading it, or draft with prompt_lookup.", "drafter"
        )
    _check_count("max_new_tokens", max_new_tokens, "at least one new token")
    if drafter is not None:
        _check_count("num_draft_tokens", num_draft_tokens, "at least one draft token a round (drafter=None is plain)")
        if num_draft_tokens > MAX_DRAFT_TOKENS:
            raise SpecvizError(
                f"{num_draft_tokens} draft tokens a round are too many: at most {MAX_DRAFT_TOKENS}.", "num_draft_tokens"
            )
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise SpecvizError("The seed must be a whole number from 0 to 2^63 − 1.", "seed")
    if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
        raise SpecvizError("Stop strings must be a list of non-empty texts.", "stop")
    return Request(
        pair=pair,
        prompt=pair.encode(prompt, chat=chat),
        drafter=drafter,
        num_draft_tokens=num_draft_tokens if drafter else 0,
        sampling=sampling or SamplingParams(),
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=tuple(stop),
    )


def _check_count(field: str, value: int, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecvizError(f"Ask for {wanted}, as a whole number; got {value!r}.", field)


def speculate(
    pair: ModelPair,
    prompt: str | Sequence[int],
    *,
    drafter: str | None = "draft_model",
    num_draft_tokens: int = 4,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    stop: Sequence[str] = (),
    chat: bool = False,
) -> Iterator[Round]:
    """Continues `prompt`, one Round per target pass.

    prompt: text, or token ids. drafter: a name from `DRAFTERS`, or None for plain decoding. num_draft_tokens: γ.
    sampling: default is temperature 1. stop: texts that end the run. chat: wrap the prompt in the chat template.

    Whatever the drafter, the output has the target's law: Leviathan et al. 2023, arXiv 2211.17192, Alg. 1. The same
    seed gives the same run on the same device. Raises SpecvizError, with `field` set, before the first round for
    what is wrong with the arguments. Closing the generator stops the run at the end of its round.
    """
    request = prepare(
        pair,
        prompt,
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        chat=chat,
    )
    return rounds(request)


def run(
    pair: ModelPair,
    prompt: str | Sequence[int],
    *,
    drafter: str | None = "draft_model",
    num_draft_tokens: int = 4,
    sampling: SamplingParams | None = None,
    max_new_tokens: int = 128,
    seed: int = 0,
    stop: Sequence[str] = (),
    chat: bool = False,
) -> Run:
    """The rounds of `speculate`, collected; the same arguments."""
    request = prepare(
        pair,
        prompt,
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop,
        chat=chat,
    )
    return collect(request, list(rounds(request)))


def rounds(request: Request) -> Iterator[Round]:
    """The rounds of a checked request. Raises SpecvizError (field ``max_new_tokens``) where memory runs out."""
    tokens = len(request.prompt.ids)

    def too_long() -> str:
        return (
            f"The device ran out of memory at {tokens:,} tokens: ask for fewer new tokens, shorten the prompt or load "
            "smaller models."
        )

    with refusing_out_of_memory(too_long, "max_new_tokens"):
        for one in autoregress(request) if request.drafter is None else _speculate(request):
            tokens += len(one.emitted)
            yield one


@torch.inference_mode()
def _speculate(request: Request) -> Iterator[Round]:
    pair, stopwatch = request.pair, Stopwatch(request.pair.device)
    warper, coins = Warper(request.sampling), Coins(request.seed, request.num_draft_tokens, pair.device)
    target = CachedModel(pair.target, stopwatch)
    drafter = _make_drafter(request, warper, stopwatch)
    text = Continuation(request)

    start = stopwatch.mark()
    target.prefill(text.committed)
    drafter.prefill(text.committed)
    prefill = _finish_prefill(stopwatch, start)

    while text.stop_reason is None:
        began = time.perf_counter()
        start = stopwatch.mark()
        committed, budget = len(text.committed), text.draft_budget(request.num_draft_tokens)
        uniforms = coins.flip()
        draft = drafter.propose(text.committed, budget, uniforms.draft) if budget else Draft.copied((), pair.device)

        drafted = stopwatch.mark()
        logits = target.verify(text.committed, draft.tokens, draft.parents)

        verified = stopwatch.mark()
        rows = TargetRows.of(logits, warper)
        decision = _judge(draft, rows, uniforms)
        outcome = report(draft, decision, rows, uniforms, pair.texts)
        target.keep(committed, outcome.path)
        if budget:
            drafter.observe(Verdict(committed, outcome.path, outcome.next.id))

        emitted, pieces = text.extend(outcome)
        seconds = _seconds(stopwatch, began, (start, drafted, verified), prefill)
        yield text.round(outcome, emitted, pieces, seconds)
        prefill = 0.0


@torch.inference_mode()
def autoregress(request: Request) -> Iterator[Round]:
    """Plain decoding of the target, one token a pass: the baseline, with the same records."""
    pair, stopwatch = request.pair, Stopwatch(request.pair.device)
    warper, coins = Warper(request.sampling), Coins(request.seed, request.num_draft_tokens, pair.device)
    target = CachedModel(pair.target, stopwatch)
    text, draft = Continuation(request), Draft.copied((), pair.device)

    start = stopwatch.mark()
    target.prefill(text.committed)
    prefill = _finish_prefill(stopwatch, start)

    while text.stop_reason is None:
        began = time.perf_counter()
        start = stopwatch.mark()
        logits = target.forward(target.unread(text.committed), keep=1)

        verified = stopwatch.mark()
        rows, uniforms = TargetRows.of(logits, warper), coins.flip()
        decision = _judge(draft, rows, uniforms)
        outcome = report(draft, decision, rows, uniforms, pair.texts)
        target.keep(len(text.committed), outcome.path)

        emitted, pieces = text.extend(outcome)
        seconds = _seconds(stopwatch, began, (start, start, verified), prefill)
        yield text.round(outcome, emitted, pieces, seconds)
        prefill = 0.0


def collect(request: Request, done: Sequence[Round]) -> Run:
    """A Run from the rounds that were made; one that did not come to its end counts as stopped."""
    pair = request.pair
    settings = {}
    if request.drafter is not None:
        settings = _make_drafter(request, Warper(request.sampling), Stopwatch(pair.device)).settings
    return Run(
        pair=pair.info(),
        drafter=request.drafter,
        settings=settings,
        num_draft_tokens=request.num_draft_tokens,
        sampling=request.sampling,
        seed=request.seed,
        max_new_tokens=request.max_new_tokens,
        prompt=request.prompt,
        rounds=tuple(done),
        stop_reason=(done[-1].stop_reason if done else None) or "stopped",
        text="".join(piece for one in done for piece in one.pieces),
        token_ids=tuple(token for one in done for token in one.emitted),
        vocabulary=vocabulary(pair, done),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    )


def vocabulary(pair: ModelPair, done: Iterable[Round]) -> dict[int, str]:
    """The text of every token id that the rounds mention."""
    ids = set()
    for one in done:
        ids.update(token.id for token in one.drafted)
        ids.add(one.next.id)
        for row in one.top:
            for listed in (row.p_raw, row.q_raw, row.p, row.q, row.residual):
                ids.update(token for token, _ in listed)
    return {token: pair.texts.chip(token) for token in sorted(ids)}


def _make_drafter(request: Request, warper: Warper, stopwatch: Stopwatch) -> Drafter:
    pair = request.pair
    if request.drafter == DraftModel.name:
        return DraftModel(CachedModel(pair.draft, stopwatch), warper, pair.vocab_size)
    return PromptLookup(pair.device)


def _judge(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """The acceptance rule that fits: greedy drafts are matched, sampled ones put to the coin."""
    if not draft.parents:
        return follow_target(rows.choices, rows.probs, uniforms.next)
    if rows.choices is not None:
        return verify_by_match(draft.tokens, draft.parents, rows.choices)
    if not draft.is_chain:
        raise ValueError("Rejection sampling judges chains; this draft is a tree.")
    coins = uniforms.accept[: len(draft.parents)]
    return verify_by_rejection(draft.tokens, draft.probs, rows.probs, coins, uniforms.next)


def _finish_prefill(stopwatch: Stopwatch, start: Mark) -> float:
    end = stopwatch.mark()
    stopwatch.synchronize()
    stopwatch.take_spans()
    return stopwatch.between(start, end)


def _seconds(stopwatch: Stopwatch, began: float, marks: tuple[Mark, Mark, Mark], prefill: float) -> Seconds:
    """A round's times; its one transfer to the host has made every mark readable."""
    start, drafted, verified = marks
    total = time.perf_counter() - began
    draft, verify = stopwatch.between(start, drafted), stopwatch.between(drafted, verified)
    return Seconds(draft, verify, total - draft - verify, total, stopwatch.take_spans(), prefill)


class Coins:
    """All chance in a run: one stream of float32 uniforms from one seed, the same on every device.

    Drawn for many rounds at once: a small tensor costs as much to make as a large one.
    """

    BLOCK = 64

    def __init__(self, seed: int, gamma: int, device: torch.device):
        self.generator = torch.Generator().manual_seed(seed)
        self.gamma = gamma
        self.device = device
        self.block: Iterator[Uniforms] = iter(())

    def flip(self) -> Uniforms:
        """The next round's share."""
        uniforms = next(self.block, None)
        if uniforms is None:
            flat = torch.rand(self.BLOCK, 2 * self.gamma + 1, generator=self.generator).double().to(self.device)
            columns = flat.split([self.gamma, self.gamma, 1], dim=-1)
            self.block = map(Uniforms, columns[0].unbind(), columns[1].unbind(), columns[2].flatten().unbind())
            uniforms = next(self.block)
        return uniforms


class Continuation:
    """The text as it grows, and why it ends.

    Acceptance has been decided before anything is cut off here, so truncation cannot bias a count.
    """

    def __init__(self, request: Request):
        self.request = request
        self.committed = list(request.prompt.ids)
        self.detokenizer = Detokenizer(request.pair.texts, request.prompt.ids)
        self.tail = ""
        self.rounds = 0
        self.stop_reason: StopReason | None = None

    @property
    def new_tokens(self) -> int:
        return len(self.committed) - len(self.request.prompt.ids)

    def draft_budget(self, gamma: int) -> int:
        """How many tokens are worth drafting: the round adds one more, and nothing beyond the end is kept."""
        left = self.request.max_new_tokens - self.new_tokens
        context = self.request.pair.context_length
        if context is not None:
            left = min(left, context - len(self.committed))
        return min(gamma, left - 1)

    def extend(self, outcome: Report) -> tuple[list[int], list[str]]:
        """Commits the kept draft tokens and the next one, up to the end of the run; returns them and their pieces."""
        emitted, pieces = [], []
        for token in [*(outcome.drafted[index].id for index in outcome.path), outcome.next.id]:
            self.committed.append(token)
            emitted.append(token)
            pieces.append(self.detokenizer.push(token))
            self.stop_reason = self._reason_to_stop(token, pieces[-1])
            if self.stop_reason:
                pieces[-1] += self.detokenizer.flush()
                break
        return emitted, pieces

    def _reason_to_stop(self, token: int, piece: str) -> StopReason | None:
        if token in self.request.pair.eos_ids:
            return "eos"
        if self.request.stop:
            window = max(map(len, self.request.stop)) - 1
            text = self.tail + piece
            if any(stop in text for stop in self.request.stop):
                return "stop_string"
            self.tail = text[-window:] if window else ""
        if self.new_tokens >= self.request.max_new_tokens:
            return "length"
        if self.request.pair.context_length is not None and len(self.committed) >= self.request.pair.context_length:
            return "context"
        return None

    def round(self, outcome: Report, emitted: list[int], pieces: list[str], seconds: Seconds) -> Round:
        self.rounds += 1
        return Round(
            index=self.rounds - 1,
            drafted=outcome.drafted,
            next=outcome.next,
            emitted=tuple(emitted),
            pieces=tuple(pieces),
            top=outcome.top,
            seconds=seconds,
            stop_reason=self.stop_reason,
            dropped=len(outcome.path) + 1 - len(emitted),
        )
