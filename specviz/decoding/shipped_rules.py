"""Wrong rules that engines shipped without knowing it: the Lossless lab shows what each does to a text.

These texts read well, the acceptance rates look right, and at temperature 0 nothing is wrong.
"""

from dataclasses import replace

import torch
from torch import Tensor

from specviz.decoding.engine_rules import leading
from specviz.drafters.choosers import Draws
from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms
from specviz.rules.exact import verify_match, verify_token_by_token
from specviz.rules.sampling import draw, draw_with_sums
from specviz.theory.shared_noise import residual_under_shared_noise

#: llama.cpp's `--spec-draft-p-min` and `--spec-draft-n-min`, both 0 by default, which is off.
P_MIN, N_MIN = 0.5, 2


def recover_with_the_drafts_noise(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """vLLM until August 2026, `draft_sample_method` ``probabilistic``: the recovered token is drawn with the noise that
    had drawn the rejected one, because both took it from the same seed and position (vLLM #54282).
    """
    if rows.choices is not None:
        return verify_match(draft, rows, uniforms)
    right = verify_token_by_token(draft, rows, uniforms)
    row = int(right.row)
    if row == len(draft.parents):
        return right
    assert draft.probs is not None, "argmax drafts have no noise"
    p, q = (probs[row].double().cpu().numpy() for probs in (rows.drawn_from, draft.probs))
    next_probs = torch.from_numpy(residual_under_shared_noise(p, q)).to(rows.drawn_from)
    next_token, next_sums = draw_with_sums(next_probs, uniforms.next)
    return replace(right, next_token=next_token, next_probs=next_probs, next_sums=next_sums)


def judge_by_mixed_rows(draft: Draft, rows: TargetRows, uniforms: Uniforms) -> Decision:
    """A batch of two requests, whose q is written position by position and read request by request: draft token i is
    judged by position i // 2.

    1Cat-vLLM #656 has the symptom: with more than two requests the text is wrong and the acceptance rate is not; vLLM
    #41044 names rows of q that belong to another request as a cause. Here both requests have the same prompt and
    draft, so that the row is there: of the two tokens that the lab compares that makes no difference.
    """
    if rows.choices is not None:
        return verify_match(draft, rows, uniforms)
    assert draft.probs is not None, "argmax drafts have no rows of q"
    read = torch.arange(len(draft.parents), device=draft.tokens.device) // 2
    return verify_token_by_token(replace(draft, probs=draft.probs.index_select(0, read)), rows, uniforms)


class RoughDraws(Draws):
    """Draws in bfloat16, and reports the q of float32 (DeepSpec #31). bfloat16 keeps eight bits: once the temperature
    has divided them, logits between 16 and 32 lie 1/8 apart."""

    def choose(self, row: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        return draw(self.drawn_from(row), u), self.warper.probabilities(row)

    def drawn_from(self, row: Tensor) -> Tensor:
        temperature = self.warper.params.temperature
        rough = (row.bfloat16() / temperature).float() * temperature
        return self.warper.probabilities(rough).bfloat16().float()


def all_or_nothing_cut(draft: Draft) -> int:
    """llama.cpp with sampled drafts (`--spec-draft-sampling probabilistic`), `P_MIN` and `N_MIN`: a draft ends before
    the first place where the drafter's likeliest token has less than `P_MIN`, and is dropped whole if it is then
    shorter than `N_MIN`.

    Where it ends depends on the tokens before only, which is exact. But whether the first token is judged at all
    depends on how sure the drafter is *after* it: tokens with a sure continuation are judged, all others drawn anew.
    common_speculative_impl_draft_simple in common/speculative.cpp (#27694).
    """
    if draft.probs is None:
        return len(draft.parents)
    length = leading(draft.probs.amax(-1) >= P_MIN)
    return length if length >= N_MIN else 0
