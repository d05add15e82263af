"""Does the output follow the target? Many short speculative runs of one prompt against the exact distribution."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from specviz.decoding.decoder import Coins, Decoder, Judge, context_of, judge_of
from specviz.decoding.engine_rules import (
    Cut,
    CutShort,
    accept_by_thresholds,
    accept_relaxed,
    defer_rejections,
    probability_cut,
    product_cut,
)
from specviz.decoding.exact_distribution import (
    COMPARED,
    RUN_TOKENS,
    ExactDistribution,
    FirstTokens,
    Start,
    exact_distribution,
)
from specviz.decoding.one_call import OneCallDecoder
from specviz.decoding.request import Request
from specviz.decoding.shipped_rules import (
    RoughDraws,
    all_or_nothing_cut,
    judge_by_mixed_rows,
    recover_with_the_drafts_noise,
)
from specviz.drafters.base import Drafter
from specviz.drafters.choosers import Children, Draws, TopChoices
from specviz.drafters.stepwise import Stepwise
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.passes.fast_passes import passing_time
from specviz.passes.readers import StatefulModel
from specviz.passes.states import crop_rows, keeps_state
from specviz.records import rules
from specviz.records.errors import SpecvizError
from specviz.records.rules import LIKELIEST, UNUSUAL
from specviz.rules.draft import Decision, Draft, Ending, Rule, TargetRows, Uniforms
from specviz.rules.sampling import draw_with_sums

#: Where an emitted token came from.
Origin = Literal["accepted"] | Ending


@dataclass(frozen=True, slots=True)
class LabRule:
    """A rule under test."""

    engine_rule: str = "auto"  # the rule that the request names
    lossless: bool = False  # True if it claims to follow the target
    wrong: Rule | None = None  # judges instead of the engine's rule
    argmax: bool = False  # drafts are the drafter's likeliest tokens, point masses
    drawn: bool = False  # drafts must be drawn, each token with its q
    draws: type[Draws] | None = None  # how, if wrongly
    cut: Cut | None = None  # how many tokens of a chain are proposed
    stale_state: bool = False  # a running state keeps rejected tokens


# Rules that are wrong on purpose: only the lab knows them, and it must catch them


def accept_everything(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """WRONG: accepts every draft token (in a tree, the first branch). The output follows the drafter."""
    return _accept_passing(torch.ones_like(draft.tokens, dtype=torch.bool), draft, rows, uniforms)


def accept_likeliest(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """WRONG: accepts tokens among the target's `LIKELIEST` likeliest, without a coin; otherwise draws from the target.

    Tokens that are easy to guess come too often: once as the drafter's, once more as the target's.
    """
    judging = rows.raw[draft.shape.rows]
    least = judging.topk(LIKELIEST).values[:, -1:]
    return _accept_passing((judging.gather(-1, draft.tokens.unsqueeze(-1)) >= least).squeeze(-1), draft, rows, uniforms)


def _accept_passing(passed: Tensor, draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """Accepts tokens while they pass, then continues from the target's own row: no residual, no coin."""
    shape = draft.shape
    accepted = shape.path(passed)
    row = shape.row_after(accepted)
    p = rows.raw[shape.rows, draft.tokens]
    if rows.choices is not None:
        next_token, next_probs, next_sums = rows.choices.index_select(0, row)[0], None, None
    else:
        next_probs = rows.drawn_from.index_select(0, row)[0]
        next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(accepted, p, torch.ones_like(p), passed.float(), row, next_token, next_probs, next_sums)


class Mislabelled(Draws):
    """WRONG: takes the likeliest tokens, whose q is 1, but reports the softmax as if they were drawn from it."""

    def choose(self, row: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return row.argmax(-1), self.warper.probabilities(row)

    def children(self, rows: Tensor, weights: Sequence[float], branches: int, uniforms: Tensor) -> Children:
        chosen = TopChoices().children(rows, weights, branches, uniforms)
        return replace(chosen, probs=self.warper.probabilities(rows)[chosen.places])


class Forgetful(StatefulModel):
    """WRONG: crops keys and values after a rejection but leaves the running state as the rejected tokens left it."""

    def rewind(self, length: int) -> None:
        crop_rows(self.cache, self.length - length)
        self.length = length
        self._saved.clear()


#: Those that only the lab has, the drafter's usual one first among them.
_RULES = {
    "auto": LabRule(lossless=True),
    "greedy_drafts": LabRule(lossless=True, argmax=True),
    "everything": LabRule(wrong=Rule("everything", accept_everything, lossless=False)),
    "likeliest": LabRule(wrong=Rule("likeliest", accept_likeliest, lossless=False)),
    "mislabelled": LabRule(drawn=True, draws=Mislabelled),
    "stale_state": LabRule(stale_state=True),
    "sglang": LabRule(wrong=Rule("sglang", accept_by_thresholds, lossless=False), argmax=True),
    "trtllm": LabRule("token", wrong=Rule("trtllm", accept_relaxed, lossless=False), argmax=True),
    "fly": LabRule("token", wrong=Rule("fly", defer_rejections, lossless=False), argmax=True),
    "p_min": LabRule("token", drawn=True, cut=probability_cut),
    "confidence_cut": LabRule("token", drawn=True, cut=product_cut),
    "shared_noise": LabRule("token", wrong=Rule("shared_noise", recover_with_the_drafts_noise, False), drawn=True),
    "two_precisions": LabRule("token", drawn=True, draws=RoughDraws),
    "mixed_rows": LabRule("token", wrong=Rule("mixed_rows", judge_by_mixed_rows, False), drawn=True),
    "n_min": LabRule("token", drawn=True, cut=all_or_nothing_cut),
}
_RULES |= {name: LabRule(name, lossless=rules.RULES[name].lossless) for name in UNUSUAL}

#: The rules that can be tested, by name.
LAB_RULES = {name: _RULES[name] for name in rules.LAB_RULES}


@dataclass(frozen=True, slots=True)
class Sample:
    """The first tokens of one run, and where each came from."""

    tokens: FirstTokens
    origins: tuple[Origin, ...]


@dataclass(frozen=True, slots=True)
class GreedyToken:
    """A token of one of two greedy texts."""

    plain: bool  # from plain decoding, whose text comes first
    id: int
    text: str
    margin: float | None = (
        None  # in plain decoding: log-probability gap between the target's two best, if there are two
    )
    gap: float | None = None  # where the other text parts from it: how far it lies below the target's best, if judged


def check_lossless(request: Request, rule: LabRule) -> None:
    """Raises SpecvizError if this request cannot be tested."""
    if request.settings.drafter is None:
        raise SpecvizError("Plain decoding drafts nothing for a rule to judge: choose a drafter.", "drafter")
    if rule.drawn and not issubclass(request.drafter, Stepwise):
        raise SpecvizError(
            "This drafter draws no tokens, but this rule needs the q of drawn tokens: choose a drafter with a model.",
            "rule",
        )
    if rule.stale_state and not keeps_state(request.pair.target):
        raise SpecvizError(
            "This target keeps no running state that rejected tokens could stay in: load a hybrid model, such as "
            "Qwen3.5.",
            "rule",
        )
    room = request.pair.context_length
    if room is not None and len(request.prompt.ids) + RUN_TOKENS > room:
        raise SpecvizError("The prompt leaves no room for {n} new tokens: shorten it.", "prompt", n=RUN_TOKENS)


def examine(
    request: Request, rule: LabRule, runs: int
) -> Generator[ExactDistribution | Sample | GreedyToken, None, None]:
    """The exact distribution, then the sample of each of `runs` runs; at temperature 0, both texts' tokens instead.

    Closing it stops even within a run.
    """
    if request.settings.sampling.greedy:
        yield from greedy_texts(request, rule)
        return
    yield exact_distribution(request)
    sampler = Sampler(request, rule)
    for _ in range(runs):
        yield sampler.sample()


class Sampler:
    """Makes short runs of one prompt, each with its own coins and a fresh drafter that knows only the prompt."""

    def __init__(self, request: Request, rule: LabRule):
        self.request, self.rule = request, rule
        # A wrong rule stays wrong at temperature 0, too.
        self.judge = Judge(rule.wrong, request.warper) if rule.wrong else judge_of(request)
        self.coins = Coins(request.settings.seed, request.largest_draft, request.pair.device)
        layers = self._drafter(CachedModel(request.pair.target, Stopwatch(request.pair.device)), 0).feature_layers
        with torch.inference_mode():
            self.start = Start(request, layers, Forgetful if rule.stale_state else None)
        self.runs = 0

    def sample(self) -> Sample:
        """The first two tokens of the next run, or one if it ends the text."""
        tokens, origins = zip(*self.run(RUN_TOKENS, COMPARED))
        return Sample(tokens, origins)

    def run(self, length: int, wanted: int) -> Generator[tuple[int, Origin], None, None]:
        """The first `wanted` tokens of a run of `length`, as the rounds emit them, with their origins."""
        with torch.inference_mode():
            target = self.start.target()
            drafter = self._drafter(target, self.runs)
            drafter.prefill(self.start.ids, self.start.features)
            decoder = Decoder(target, drafter, self.coins, self.judge, self.request.grammar)
            decoder = OneCallDecoder.of(decoder, self.request)
            decoder.begin(self.start.ids)
        self.runs += 1
        pass_time = passing_time(self.request.passes)
        text, emitted = list(self.start.ids), 0
        while emitted < wanted:
            pass_time()
            with torch.inference_mode():
                # Runs of a sample must not depend on those before, so each round drafts as deep as it may.
                verdict = decoder.round(text, min(self.request.num_draft_tokens, length - emitted - 1))
            accepted: list[Origin] = ["accepted"] * len(verdict.path)
            for token, origin in list(zip(verdict.tokens, [*accepted, verdict.ending]))[: wanted - emitted]:
                text.append(token)
                emitted += 1
                yield token, origin
                if token in self.request.pair.eos_ids:
                    return

    def _drafter(self, target: CachedModel, run: int) -> Drafter:
        rule, chooser = self.rule, None
        if not self.request.settings.sampling.greedy:
            chooser = rule.draws(self.request.warper) if rule.draws else TopChoices() if rule.argmax else None
        context = context_of(self.request, target, chooser)
        drafter = self.request.drafter(replace(context, seed=context.seed + run))
        return drafter if rule.cut is None else CutShort(drafter, rule.cut)


def greedy_texts(request: Request, rule: LabRule) -> Generator[GreedyToken, None, None]:
    """At temperature 0 there is only one text: yields plain decoding's tokens, then those under the rule."""
    length, room = request.settings.max_new_tokens, request.pair.context_length
    if room is not None:
        length = min(length, room - len(request.prompt.ids))
    texts = request.pair.texts
    for token, margin in _plain_text(request, length):
        yield GreedyToken(True, token, texts.chip(token), margin)
    for token, _ in Sampler(request, rule).run(length, length):
        yield GreedyToken(False, token, texts.chip(token))


def _plain_text(request: Request, length: int) -> Generator[tuple[int, float | None], None, None]:
    """Greedy tokens from one-token passes, each with the log-probability gap between the best two."""
    with torch.inference_mode():
        target = Start(request).target()
    text = list(request.prompt.ids)
    for _ in range(length):
        with torch.inference_mode():
            logits = target.forward(target.unread(text), rows_wanted=1)
            if request.grammar:
                logits = request.grammar.masked(logits, [request.grammar.text_of(text)])
            target.rewind(len(text))
            best = logits[0].float().topk(2).values
            token, margin = logits.argmax().item(), (best[0] - best[1]).item()
        text.append(token)
        yield token, margin if math.isfinite(margin) else None
        if token in request.pair.eos_ids:
            return
