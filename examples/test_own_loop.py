"""Does a loop in plain transformers sample from its target? python -m pytest examples/test_own_loop.py"""

from functools import cache

import numpy
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.testing import assert_lossless

VOCABULARY, PROMPT, LENGTH, GAMMA = 8, (1, 2, 3), 3, 2


@cache
def model(seed: int):
    """Small enough that all its texts of a few tokens can be counted, and peaked like a trained one."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, initializer_range=0.6, **sizes)).eval()


TARGET, DRAFT = 0, 1


@cache
@torch.inference_mode()
def next_probs(seed: int, text: tuple[int, ...]) -> numpy.ndarray:
    """What follows a text. Kept, because the same few texts come again and again."""
    return model(seed)(torch.tensor([text])).logits[0, -1].double().softmax(-1).numpy()


def speculate(random: numpy.random.Generator, residual: bool = True) -> list[int]:
    """The loop under test. residual: False draws a recovered token from the target's whole row, a common mistake."""
    text = PROMPT
    while len(text) < len(PROMPT) + LENGTH:
        drafted = text
        for _ in range(GAMMA):
            drafted += (int(random.choice(VOCABULARY, p=next_probs(DRAFT, drafted))),)
        for token in drafted[len(text) :]:
            p, q = next_probs(TARGET, text), next_probs(DRAFT, text)
            if random.random() >= p[token] / q[token]:
                law = numpy.maximum(p - q, 0) if residual else p
                text += (int(random.choice(VOCABULARY, p=law / law.sum())),)
                break
            text += (token,)
        else:
            text += (int(random.choice(VOCABULARY, p=next_probs(TARGET, text))),)
    return list(text[len(PROMPT) : len(PROMPT) + LENGTH])


def check(**mistake: bool):
    random = numpy.random.default_rng(0)
    return assert_lossless(
        lambda draws: [speculate(random, **mistake) for _ in range(draws)],
        lambda text: next_probs(TARGET, PROMPT + text),
        draft_probs=lambda text: next_probs(DRAFT, PROMPT + text),
        bias=0.05,
    )


def test_the_loop_is_lossless():
    print(check())


def test_this_test_finds_a_common_mistake():
    with pytest.raises(AssertionError, match="the drafter prefers"):
        check(residual=False)
