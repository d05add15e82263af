"""Speculative decoding as a textbook would print it: a target, a draft model, two caches, one rule.

Read this first. The engine does the same with any drafter, rule, device and pass, and records what happened; a test
(`tests/decoding/test_reference.py`) holds both to the same tokens from the same coins.
"""

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


@torch.inference_mode()
def speculate(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    max_new_tokens: int,
    num_draft_tokens: int = 4,
    temperature: float = 1.0,
    seed: int = 0,
    eos_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """The tokens that continue `prompt`, distributed as the target's own; at temperature 0 its greedy text.

    Leviathan et al. 2023, arXiv 2211.17192, Alg. 1; Chen et al. 2023, arXiv 2302.01318. Both models share their
    vocabulary and attend to all of the text.
    """
    coins, gamma = torch.Generator().manual_seed(seed), num_draft_tokens
    p_cache, q_cache = DynamicCache(config=target.config), DynamicCache(config=draft.config)
    text, end = list(prompt), len(prompt) + max_new_tokens
    while len(text) < end:
        draft_u, accept_u, next_u = torch.rand(2 * gamma + 1, generator=coins).double().split([gamma, gamma, 1])

        # 1. Draft: the small model proposes up to γ tokens, one pass each. q[i] is what token i was drawn from.
        drafted: list[int] = []
        q: list[Tensor] = []
        for u in draft_u[: end - len(text) - 1]:
            q += probabilities(draft, q_cache, text + drafted, 1, temperature)
            drafted.append(draw(q[-1], u))

        # 2. Verify: one pass of the target over all of them. p[i] is its distribution where token i stands.
        p = probabilities(target, p_cache, text + drafted, len(drafted) + 1, temperature)

        # 3. Judge: accept token x with probability min(1, p(x) / q(x)), up to the first rejection.
        accepted = 0
        for u, token, target_probs, draft_probs in zip(accept_u, drafted, p, q):
            if not u < target_probs[token] / draft_probs[token]:
                break
            accepted += 1
        # The next token comes from what q left uncovered there or, if none was rejected, from the target's last row.
        uncovered = (p[accepted] - q[accepted]).clamp(min=0) if accepted < len(drafted) else p[accepted]
        next_token = draw(uncovered if uncovered.sum() > 0 else p[accepted], next_u)

        # 4. Keep: the caches forget the rejected tokens; each holds at most the committed tokens less one.
        for cache in (p_cache, q_cache):
            cache.crop(-max(0, cache.get_seq_length() - len(text) - accepted))

        # 5. Yield.
        for token in [*drafted[:accepted], next_token]:
            text.append(token)
            if token in eos_ids:
                return text[len(prompt) :]
    return text[len(prompt) :]


def probabilities(
    model: PreTrainedModel, cache: DynamicCache, text: list[int], rows: int, temperature: float
) -> Tensor:
    """What follows each of the last `rows` tokens of a text, [rows, vocab] float32; reads what the cache lacks."""
    unread = torch.tensor([text[cache.get_seq_length() :]], device=model.device)
    logits = model(input_ids=unread, cache=cache, use_cache=True).logits[0, -rows:].float().cpu()
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits / temperature).softmax(-1)


def draw(probs: Tensor, u: Tensor) -> int:
    """The first token whose cumulative probability exceeds u. probs: [vocab], which need not sum to 1."""
    sums = probs.cumsum(-1, dtype=torch.float64)
    return int(torch.searchsorted(sums, u * sums[-1], right=True))
