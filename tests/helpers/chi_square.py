"""Whether what runs write follows the target's distribution, by chi-square, and a pair that makes a fault show."""

import dataclasses
from functools import lru_cache

import torch
from matrix import HOT
from scipy import stats
from tiny import tiny_pair, with_heads
from torch.nn.functional import one_hot

import specviz
from specviz.models.pair import ModelPair
from specviz.records.settings import SamplingParams
from specviz.rules.sampling import Warper

FEW = 6
SHORT = [3, 5, 1, 2]


@lru_cache
def plain_speakers() -> ModelPair:
    """Target and draft of six tokens whose next one is decided by the last one more than by all before: what is wrong
    after one text is then wrong in the same way after many."""
    pair = tiny_pair("llama", noise=0.5, vocab=FEW)
    with torch.no_grad():
        for name, weights in [*pair.target.named_parameters(), *pair.draft.named_parameters()]:
            weights *= 0.2 if "o_proj" in name else 1.0
    return dataclasses.replace(with_heads(pair), eos_ids=frozenset())


def p_value(order: dict, sampling: SamplingParams = HOT, tokens: int = 400, pair: ModelPair | None = None) -> float:
    """How likely chance alone makes the emitted tokens stray this far from the target's own rows: chi-square.

    pair: of few tokens; the plain speakers by default.
    Counted is how often each token follows each other one; expected is what the target's row of that place gives it.
    Rows differ from place to place, so the covariances of the counts are summed over places; were the rows all equal,
    this would be Pearson's statistic.
    """
    pair, length = pair or plain_speakers(), 200
    few = pair.vocab_size
    excess, spread = torch.zeros(few, few).double(), torch.zeros(few, few, few).double()
    for seed in range(tokens // length):
        run = specviz.run(pair, SHORT, sampling=sampling, max_new_tokens=length, seed=seed, **order)
        text = torch.tensor([*SHORT, *run.token_ids])
        with torch.inference_mode():
            logits = pair.target(text[None]).logits[0, len(SHORT) - 1 : -1]
        rows = Warper(sampling).probabilities(logits).double()
        rows /= rows.sum(-1, keepdim=True)
        emitted, before = one_hot(text[len(SHORT) :], few).double(), one_hot(text[len(SHORT) - 1 : -1], few)
        assert (rows[emitted.bool()] > 0).all(), "a token to which the target gives nothing"
        excess += before.T.double() @ (emitted - rows)
        covariances = rows.diag_embed() - rows.unsqueeze(-1) * rows.unsqueeze(-2)
        spread += torch.einsum("ti,tjk->ijk", before.double(), covariances)
    statistic = torch.einsum("ij,ijk,ik", excess, torch.linalg.pinv(spread, hermitian=True, rtol=1e-6), excess)
    freedom = torch.linalg.matrix_rank(spread, hermitian=True, rtol=1e-6).sum()
    return stats.chi2.sf(statistic.item(), freedom.item())
