"""Speculative decoding: draft, verify in one pass, keep what the target agrees with, repeat.

`speculate` yields one Round per target pass; `run` collects them. Plain decoding, the baseline, is its own loop.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import transformers
from torch import Tensor

from specviz.decoding.round_record import Report, TargetRows, Uniforms, report
from specviz.drafters import DRAFTERS, Chooser, Draft, Drafter, Draws, Setting, TopChoices, Verdict, drafter_class
from specviz.models.pair import ModelPair
from specviz.models.refusals import refusing_out_of_memory
from specviz.models.token_texts import Detokenizer
from specviz.passes.cached_model import CachedModel, has_sliding_windows, reader
from specviz.passes.clock import Mark, Stopwatch
from specviz.passes.static_passes import FastPasses
from specviz.records.errors import SpecvizError
from specviz.records.runs import DraftParams, Prompt, Round, Run, Seconds, StopReason, is_count
from specviz.rules.choice import choose_rule, rule_named
from specviz.rules.sampling import SamplingParams, Warper
from specviz.rules.verify import (
    Decision,
    follow_target,
    verify_by_block,
    verify_by_match,
    verify_by_rejection,
    verify_by_tree,
    verify_by_typical,
)

#: Longer drafts than this never pay and only fill memory.
MAX_DRAFT_TOKENS = 64

#: A tree larger than this costs more in the target pass than its last branches can bring.
MAX_TREE_TOKENS = 256


@dataclass(frozen=True)
class Request:
    """A checked order for one run; `prepare` makes it. passes: the pair's fast ones as they were then."""

    pair: ModelPair
    prompt: Prompt
    drafter: str | None
    num_draft_tokens: int
    sampling: SamplingParams
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()
    drafting: DraftParams = field(default_factory=DraftParams)
    rule: str = "token"
    passes: Mapping[str, FastPasses] = field(default_factory=dict)


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
    drafting: DraftParams | None = None,
    rule: str = "auto",
) -> Request:
    """Checks everything that can be checked before a model runs; see `speculate` for the arguments."""
    if drafter is not None and drafter not in DRAFTERS:
        raise SpecvizError(
            "There is no drafter {name}; choose from {names}.",
            "drafter",
            name=repr(drafter),
            names=", ".join(DRAFTERS),
        )
    drafting = drafting or DraftParams()
    if not is_count(max_new_tokens):
        raise SpecvizError(
            "Ask for at least one new token, as a whole number; got {value}.",
            "max_new_tokens",
            value=repr(max_new_tokens),
        )
    if drafter is not None:
        check_gamma(num_draft_tokens)
        rule = _check_drafting(pair, drafter, num_draft_tokens, drafting, rule)
        if sampling is not None and sampling.greedy:
            # At temperature 0 every rule comes to one comparison with the target's choice.
            rule = _check_drafting(pair, drafter, num_draft_tokens, drafting, "auto")
    elif rule != "auto":
        rule_named(rule)
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
        drafting=drafting,
        rule="token" if drafter is None else rule,
        passes=dict(pair.passes.fast),
    )


def _check_drafting(pair: ModelPair, name: str, num_draft_tokens: int, drafting: DraftParams, rule: str) -> str:
    """Checks what drafter, pair and rule make of each other; returns the rule, ``auto`` resolved."""
    drafter = drafter_class(pair, name)
    drafter.check(pair, drafting)
    branches = drafter.branches(pair, drafting)
    size = drafter.most_tokens(num_draft_tokens, branches)
    if branches > 1 and size > MAX_TREE_TOKENS:
        raise SpecvizError(
            "A tree of {depth} × {branches} = {size} draft tokens is too large for one target pass: at most {most}.",
            "branches",
            depth=num_draft_tokens,
            branches=branches,
            size=size,
            most=MAX_TREE_TOKENS,
        )
    if branches > 1 and has_sliding_windows(pair.target):
        raise SpecvizError(
            "{name} has sliding-window attention and reads chains only: set branches to 1, or choose a drafter that "
            "makes chains.",
            "branches",
            name=pair.target_name,
        )
    return choose_rule(rule, name, makes_trees=branches > 1)


def check_gamma(num_draft_tokens: int) -> None:
    """Refuses what is no number of draft tokens. Raises SpecvizError (field ``num_draft_tokens``)."""
    if not is_count(num_draft_tokens):
        raise SpecvizError(
            "Ask for at least one draft token a round (drafter=None is plain), as a whole number; got {value}.",
            "num_draft_tokens",
            value=repr(num_draft_tokens),
        )
    if num_draft_tokens > MAX_DRAFT_TOKENS:
        raise SpecvizError(
            "{value} draft tokens a round are too many: at most {most}.",
            "num_draft_tokens",
            value=num_draft_tokens,
            most=MAX_DRAFT_TOKENS,
        )


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
    drafting: DraftParams | None = None,
    rule: str = "auto",
) -> Iterator[Round]:
    """Continues `prompt`, one Round per target pass.

    prompt: text, or token ids. drafter: a name from `DRAFTERS`, or None for plain decoding. num_draft_tokens: γ.
    sampling: default is temperature 1. stop: texts that end the run. chat: wrap the prompt in the chat template.
    drafting: trees, early exits and the like; see `DraftParams`. rule: how drafts are judged, a name from `RULES`;
    ``auto`` is token by token for chains and sibling by sibling for trees.

    Whatever the drafter, the output has the target's law (Leviathan et al. 2023, arXiv 2211.17192, Alg. 1), unless the
    rule is ``typical``, which is lossy. The same seed gives the same run on the same device. Raises SpecvizError, with
    `field` set, before the first round for what is wrong with the arguments. Closing the generator stops the run at the
    end of its round.
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
        drafting=drafting,
        rule=rule,
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
    drafting: DraftParams | None = None,
    rule: str = "auto",
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
        drafting=drafting,
        rule=rule,
    )
    return collect(request, list(rounds(request)))


def rounds(request: Request, build: Callable[[Setting], Drafter] | None = None) -> Iterator[Round]:
    """The rounds of a checked request. Raises SpecvizError (field ``max_new_tokens``) where memory runs out.

    build: makes a drafter of the caller's own for this run, in the place of the one that the request names and checked;
    it drafts no deeper than that one. Plain decoding has none.
    """
    made = autoregress(request) if request.drafter is None else _speculate(request, build=build)
    return _within_memory(request, made)


def _within_memory(request: Request, made: Iterator[Round]) -> Iterator[Round]:
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


def replay(request: Request, rule: str) -> Iterator[tuple[Round, Round]]:
    """Two rules on the same drafts and the same coins: each round of the request, and what `rule` makes of it.

    The text goes on as the request's own rule decides, so both always judge the same draft. The other rule's round
    has nothing in `pieces` and no times. Raises SpecvizError at once, with field ``rule`` where that rule does not fit
    the drafts.
    """
    if request.drafter is None:
        raise SpecvizError("Plain decoding drafts nothing that two rules could judge: choose a drafter.", "drafter")
    name = _check_drafting(request.pair, request.drafter, request.num_draft_tokens, request.drafting, rule)
    if rule_named(name).lossless != rule_named(request.rule).lossless:
        raise SpecvizError("A lossy rule is given top choices, the others draws: these are not the same draft.", "rule")
    return _replay(request, name)


def _replay(request: Request, rule: str) -> Iterator[tuple[Round, Round]]:
    others: list[Round] = []
    made = _speculate(request, lambda *judged: others.append(_other_round(request, rule, *judged)))
    for one in _within_memory(request, made):
        yield one, others.pop()


def _other_round(request: Request, rule: str, index: int, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Round:
    decision = judge(rule, draft, rows, uniforms)
    outcome = report(draft, decision, rows, uniforms, request.pair.texts, weighs_all=rule == "block")
    kept = tuple(outcome.drafted[place].id for place in outcome.path)
    return Round(
        index=index,
        drafted=outcome.drafted,
        next=outcome.next,
        emitted=(*kept, outcome.next.id),
        pieces=(),
        top=outcome.top,
        seconds=Seconds(0.0, 0.0, 0.0, 0.0, 0.0),
        distance=outcome.distance,
    )


@torch.inference_mode()
def _speculate(
    request: Request,
    overhear: Callable[..., None] | None = None,
    build: Callable[[Setting], Drafter] | None = None,
) -> Iterator[Round]:
    """overhear: told of every draft before its verdict: the round's index, the draft, the target's rows, the coins.
    build: see `rounds`."""
    pair, stopwatch, warper = request.pair, Stopwatch(request.pair.device), Warper(request.sampling)
    target = reader(pair.target, stopwatch, request.passes.get("target"))
    drafter = make_drafter(request, warper, target, build=build)
    target.feature_layers = drafter.feature_layers
    coins = Coins(request.seed, most_draft_tokens(request), pair.device)
    text = Continuation(request)

    start = stopwatch.mark()
    target.prefill(text.committed)
    drafter.prefill(text.committed, target.features)
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
        if overhear:
            overhear(text.rounds, draft, rows, uniforms)
        decision = judge(request.rule, draft, rows, uniforms)
        outcome = report(draft, decision, rows, uniforms, pair.texts, weighs_all=request.rule == "block")
        target.keep(committed, outcome.path)
        if budget:
            features = kept_rows(target.features, len(draft.parents), outcome.path)
            drafter.observe(Verdict(committed, outcome.path, outcome.next.id, outcome.choices, features))

        emitted, pieces = text.extend(outcome)
        seconds = _seconds(stopwatch, began, (start, drafted, verified), prefill)
        yield text.round(outcome, emitted, pieces, seconds)
        prefill = 0.0


@torch.inference_mode()
def autoregress(request: Request) -> Iterator[Round]:
    """Plain decoding of the target, one token a pass: the baseline, with the same records."""
    pair, stopwatch = request.pair, Stopwatch(request.pair.device)
    warper, coins = Warper(request.sampling), Coins(request.seed, 0, pair.device)
    target = reader(pair.target, stopwatch, request.passes.get("target"))
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
        decision = judge(request.rule, draft, rows, uniforms)
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
        target = CachedModel(pair.target, Stopwatch(pair.device))
        settings = make_drafter(request, Warper(request.sampling), target).settings
    return Run(
        pair=pair.info(request.passes),
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
        rule=request.rule,
    )


def vocabulary(pair: ModelPair, done: Iterable[Round]) -> dict[int, str]:
    """The text of every token id that the rounds mention."""
    ids = set()
    for one in done:
        ids.update(token.id for token in one.drafted)
        ids.add(one.next.id)
        ids.update(token for token, _, _ in one.next.line)
        for row in one.top:
            for listed in (row.p_raw, row.q_raw, row.p, row.q, row.residual):
                ids.update(token for token, _ in listed)
    return {token: pair.texts.chip(token) for token in sorted(ids)}


def make_drafter(
    request: Request,
    warper: Warper,
    target: CachedModel,
    chooser: Chooser | None = None,
    build: Callable[[Setting], Drafter] | None = None,
) -> Drafter:
    """The request's drafter. Greedy decoding and a lossy rule want its top choices, all else wants draws.

    chooser: another way to choose tokens, where the rule is not the engine's own either (`specviz.decoding.lossless`).
    build: see `rounds`.
    """
    drafter = drafter_class(request.pair, request.drafter)
    drawn = not request.sampling.greedy and rule_named(request.rule).lossless
    return (build or drafter.build)(
        Setting(
            pair=request.pair,
            params=request.drafting,
            branches=drafter.branches(request.pair, request.drafting),
            chooser=chooser or (Draws(warper) if drawn else TopChoices()),
            target=target,
            stopwatch=target.stopwatch,
            seed=request.seed,
            passes=request.passes,
        )
    )


def most_draft_tokens(request: Request) -> int:
    """The size of the largest draft that the request's drafter can make: the coins that a round needs."""
    drafter = drafter_class(request.pair, request.drafter)
    return drafter.most_tokens(request.num_draft_tokens, drafter.branches(request.pair, request.drafting))


def judge(rule: str, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Greedy drafts are matched, whatever the rule; sampled ones are judged by it."""
    tokens, parents, coins = draft.tokens, draft.parents, uniforms.accept[: len(draft.parents)]
    if not parents:
        return follow_target(rows.choices, rows.probs, uniforms.next)
    if rows.choices is not None:
        return verify_by_match(tokens, parents, rows.choices)
    if rule == "typical":
        return verify_by_typical(tokens, parents, rows.probs, uniforms.next)
    if rule == "tree":
        return verify_by_tree(tokens, parents, draft.probs, rows.probs, coins, uniforms.next)
    if rule == "block":
        return verify_by_block(tokens, draft.probs, rows.probs, coins, uniforms.next)
    return verify_by_rejection(tokens, draft.probs, rows.probs, coins, uniforms.next)


def kept_rows(features: Tensor | None, drafted: int, path: Sequence[int]) -> Tensor | None:
    """Of a target pass over unread text and `drafted` tokens: the rows of the text and of the kept tokens."""
    if features is None:
        return None
    unread = features.shape[0] - drafted
    if list(path) == list(range(len(path))):
        return features[: unread + len(path)]
    rows = torch.tensor([*range(unread), *(unread + index for index in path)], device=features.device)
    return features.index_select(0, rows)


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

    def __init__(self, seed: int, most_tokens: int, device: torch.device):
        self.generator = torch.Generator().manual_seed(seed)
        self.most_tokens = most_tokens
        self.device = device
        self.block: Iterator[Uniforms] = iter(())

    def flip(self) -> Uniforms:
        """The next round's share."""
        uniforms = next(self.block, None)
        if uniforms is None:
            widths = [self.most_tokens, self.most_tokens, 1]
            flat = torch.rand(self.BLOCK, sum(widths), generator=self.generator).double().to(self.device)
            columns = flat.split(widths, dim=-1)
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
            confidence=outcome.confidence,
            distance=outcome.distance,
        )
