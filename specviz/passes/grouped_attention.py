"""Attention of many query heads over few heads of keys and values, without a copy of those for each query head.

transformers repeats keys and values as soon as there is a mask, over all of the room, in every layer of every pass.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from specviz.passes.twins import attending_by, sharing_twin

#: Its name among transformers' attention functions.
GROUPED = "specviz_grouped"

_SDPA = AttentionInterface()["sdpa"]


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """As transformers' own function over SDPA: [batch, heads, n, head size] -> [batch, n, heads, head size].

    The n queries of all heads of a group become rows of one head. attention_mask: [batch, 1, n, room], the same for
    all heads; anything else is left to transformers.
    """
    shared, group = key.shape[1], query.shape[1] // key.shape[1]
    one_mask = attention_mask is not None and attention_mask.shape[1] == 1
    if group == 1 or not one_mask or others.get("position_bias") is not None:
        return _SDPA(module, query, key, value, attention_mask, scaling=scaling, **others)
    rows = query.unflatten(1, (shared, group)).flatten(2, 3)
    mask = attention_mask.repeat(1, 1, group, 1)
    seen = functional.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    # Back to [batch, shared, group, n, head size], then [batch, n, shared, group, head size].
    return seen.unflatten(2, (group, query.shape[2])).permute(0, 3, 1, 2, 4).contiguous().flatten(2, 3), None


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, AttentionMaskInterface()["sdpa"])


def with_grouped_attention(model: PreTrainedModel) -> PreTrainedModel:
    """A twin of `model`, on the same weights, whose heads share keys and values without repeating them.

    The model itself, if they share none or if its attention is not transformers' function over SDPA.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    grouped = getattr(config, "num_key_value_heads", heads) != heads
    if not grouped or config._attn_implementation != "sdpa" or not model._supports_attention_backend:
        return model
    return attending_by(sharing_twin(model), GROUPED)
