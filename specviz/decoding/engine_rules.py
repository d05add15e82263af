"""Rules that engines offer as flags and that change the output: the Lossless lab measures by how much.

Each is written from the engine's source, with the values that its documentation or its users give, and says if the
engine's own default is exact or off.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specviz.drafters.base import Drafter
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms, Verdict, chain, require_shapes
from specviz.rules.exact import points_at, residual, verify_match, verify_token_by_token
from specviz.rules.sampling import draw_with_sums

#: SGLang's `speculative_accept_threshold_single` and `…_acc`, as published command lines set them; 1 is off, and exact.
SINGLE, ACCUMULATED = 0.3, 0.3

#: TensorRT-LLM's `relaxed_topk` and `relaxed_delta`, as its guide for DeepSeek-R1 sets them; 1 and 0 allow no other.
RELAXED_TOP, RELAXED_DELTA = 10, 0.6

#: vLLM's `fly_window_size` (or γ − 1, if less), `fly_entropy_threshold` in nats, and how many tokens the entropy is of.
FLY_WINDOW, FLY_ENTROPY, FLY_TOP = 6, 0.3, 3

#: llama.cpp's `--draft-p-min` as it was until it became 0, which is off.
P_MIN = 0.75

#: What the product of a draft's own probabilities has to stay at, or the rest is dropped.
LEAST_PRODUCT = 0.4


def accept_by_thresholds(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """SGLang, LOSSY below 1: accepts a token if p ≥ `SINGLE`, or if the siblings' coin is below their p so far, its own
    included, over `ACCUMULATED`. The p of rejected tokens is removed, and the next token drawn from the rest.

    With both at 1 that is exact for chosen tokens, q = 1. TreeSpeculativeSamplingTargetOnly in sgl-kernel's
    speculative_sampling.cuh; at temperature 0 SGLang compares tokens and reads no threshold.
    """
    if rows.choices is not None:
        return verify_match(draft, rows, uniforms)
    _, target_probs = require_shapes(draft, rows, uniforms)
    shape = draft.shape
    p = shape.judging_cells(target_probs, draft.tokens.unsqueeze(-1)).squeeze(-1)
    bound = ((p + (shape.elders * p).sum(-1)) / ACCUMULATED).clamp_max_(1)
    passed = (uniforms.accept.index_select(0, shape.families) < bound) | (p >= SINGLE)
    accepted = shape.path(passed)
    row = shape.row_after(accepted)
    rejected = points_at(row, draft.tokens, shape.rows, target_probs)
    next_probs = residual(target_probs.index_select(0, row)[0], rejected)
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return Decision(accepted, p, torch.ones_like(p), passed.float(), row, next_token, next_probs, next_sums)


def accept_relaxed(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """TensorRT-LLM, LOSSY: accepts a token of a chain if it is among the target's `RELAXED_TOP` likeliest and its p_raw
    at most `RELAXED_DELTA` below the largest. The next token is the target's likeliest: nothing is ever drawn.

    `use_relaxed_acceptance_for_thinking`: there only between <think> and </think>, here everywhere.
    mtpRelaxedAcceptanceKernel in mtpKernels.cu, fed with the softmax of unchanged logits.
    """
    n = len(draft.parents)
    p = rows.raw[:n].gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    top = rows.raw[:n].topk(min(RELAXED_TOP, rows.logits.shape[-1])).values
    passed = (p >= top[:, -1]) & (p >= top[:, 0] - RELAXED_DELTA)
    accepted = passed.cumprod(0)
    row = accepted.sum(0, keepdim=True)
    return Decision(
        accepted, p, torch.ones_like(p), passed.float(), row, rows.likeliest.index_select(0, row)[0], None, None
    )


def defer_rejections(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """vLLM's ``fly``, LOSSY: judges a chain token by token, but accepts a rejected token where the target is unsure
    (the entropy of its `FLY_TOP` likeliest tokens is at least `FLY_ENTROPY`) and the next `FLY_WINDOW` tokens would
    pass.

    Training-free loosely speculative decoding, arXiv 2511.22972; apply_fly_random_acceptance_kernel and its greedy
    sister in vllm/v1/spec_decode/fly.py (vLLM #53987), where a window has to end within the draft.
    """
    n = len(draft.parents)
    window = min(FLY_WINDOW, n - 1)
    probs = (rows.raw if rows.probs is None else rows.probs)[:n]
    p = probs.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
    if rows.choices is not None:
        passed = draft.tokens == rows.choices[:n]
    else:
        q = 1 if draft.probs is None else draft.probs.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)
        passed = uniforms.accept[:n] < p / q
    deferred = torch.zeros_like(passed)
    if window:
        unsure = torch.special.entr(probs.topk(FLY_TOP).values).sum(-1) >= FLY_ENTROPY
        followed = passed[1:].unfold(0, window, 1).all(-1)
        deferred[: n - window] = (~passed & unsure & (p > 0))[: n - window] & followed
    if rows.choices is not None:
        choices = torch.cat([torch.where(deferred, draft.tokens, rows.choices[:n]), rows.choices[n:]])
        return verify_match(draft, replace(rows, choices=choices), uniforms)
    coins = uniforms.accept[:n].masked_fill(deferred, 0.0)
    return verify_token_by_token(draft, rows, replace(uniforms, accept=coins))


# What cuts a draft before the target sees it: exact as long as it does not look at the token that it drops

#: How many tokens of a chain stay.
Cut = Callable[[Draft], int]


def probability_cut(draft: Draft) -> int:
    """LOSSY: drops the first token whose own q is below `P_MIN`, and all after it.

    llama.cpp's p-min does that too, and is exact while its drafts are the likeliest tokens: then nothing depends on a
    draw.
    """
    return leading(_drawn_probs(draft) >= P_MIN)


def product_cut(draft: Draft) -> int:
    """LOSSY: drops the first token at which the product of the drawn tokens' own q falls below `LEAST_PRODUCT`, and all
    after it: a draft's length chosen by its confidence, token included."""
    return leading(_drawn_probs(draft).cumprod(0) >= LEAST_PRODUCT)


def _drawn_probs(draft: Draft) -> Tensor:
    """[n] the probability with which each token was drawn."""
    if draft.probs is None:
        return torch.ones(len(draft.parents), device=draft.tokens.device)
    return draft.probs.gather(-1, draft.tokens.unsqueeze(-1)).squeeze(-1)


def leading(stays: Tensor) -> int:
    """How many come before the first that does not stay."""
    return int(stays.cumprod(0).sum())


class CutShort(Drafter):
    """Another drafter's chains, of which only a beginning is proposed."""

    def __init__(self, drafter: Drafter, cut: Cut):
        self.drafter, self.cut = drafter, cut
        self.feature_layers = drafter.feature_layers

    def prefill(self, prompt: Sequence[int], features: Tensor | None = None) -> None:
        self.drafter.prefill(prompt, features)

    def propose(self, committed: Sequence[int], budget: int, uniforms: Tensor) -> Draft:
        draft = self.drafter.propose(committed, budget, uniforms)
        length = self.cut(draft)
        if draft.probs is None or not length:
            return Draft.copied(draft.tokens[:length].tolist(), uniforms.device)
        return Draft(draft.tokens[:length], chain(length), draft.probs[:length])

    def observe_draft(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.drafter.observe_draft(committed, verdict, features)

    def observe_plain_step(self, committed: int, verdict: Verdict, features: Tensor | None) -> None:
        self.drafter.observe_plain_step(committed, verdict, features)
