"""FR-Spec: a draft model whose output head knows only the frequent tokens (Zhao et al. 2025, arXiv 2502.14856).

Where a vocabulary is large, the head is a large part of what a small model reads in each step: 136 of the 494 million
weights of Qwen2.5-0.5B. Tokens that it leaves out get probability 0 from the drafter and are the target's alone to
write, so nothing changes but the acceptance rate and the cost.
"""

from __future__ import annotations

import string

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.models.pair import logit_width
from specviz.passes.model_twins import narrow_head
from specviz.records.errors import SpecvizError, quoted

#: With fewer than these a draft model has little left to say.
LEAST = 64

#: How SentencePiece writes a space.
_SPACE = "▁"


def keep_frequent(draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int) -> Tensor:
    """Narrows the draft's head to `count` frequent tokens; returns the column of each token's logit, [vocab] int64,
    `count` for those left out.

    Raises SpecvizError (field ``draft_vocabulary``) for a number out of range, or a head that cannot be narrowed.
    """
    width = logit_width(draft)
    if isinstance(count, bool) or not isinstance(count, int) or not LEAST <= count < width:
        raise SpecvizError(
            "The draft's vocabulary can be cut to {least} to {most} tokens, not to {value}.",
            "draft_vocabulary",
            least=LEAST,
            most=width - 1,
            value=quoted(count),
        )
    ids = torch.tensor(frequent_ids(tokenizer, count, width))
    narrow_head(draft, ids)
    columns = torch.full((width,), count)
    columns[ids] = torch.arange(count)
    return columns.to(draft.device)


def frequent_ids(tokenizer: PreTrainedTokenizerBase, count: int, width: int) -> list[int]:
    """Ids of the `count` tokens likely to be the most frequent, of those below `width`.

    Tokenizers number their tokens by frequency: BPE in the order of its merges, unigram models by probability. So these
    are the lowest ids; before them single ASCII characters, which SentencePiece puts at its end, and the end token.
    """
    vocabulary = tokenizer.get_vocab()
    singles = [vocabulary[text] for text in (*string.printable, _SPACE) if text in vocabulary]
    ends = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ranked = dict.fromkeys((*ends, *singles, *range(width)))
    return [token for token in ranked if token < width][:count]
