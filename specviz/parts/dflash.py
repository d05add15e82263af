"""DFlash drafters (Chen et al., arXiv 2602.06036): a few Qwen3 layers whose keys and values of the text come from the
target's hidden states.

Names of weights and settings are those of the checkpoints (z-lab/…-DFlash-…), which hold neither embeddings nor an
output head: both are the target's.
"""

import pathlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from huggingface_hub import load_torch_model
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from specviz.parts.formats import PartFiles
from specviz.parts.head_files import ready
from specviz.parts.heads import hidden_size_of
from specviz.records.errors import SpecvizError

#: Settings of later drafters, which compute more.
_LATER = {"input_embedding_scale", "output_multiplier", "final_logit_softcapping", "selector_rank", "conv_kernel_size"}


@dataclass(frozen=True)
class DFlashConfig:
    """Sizes of a drafter, apart from its layers'."""

    depths: int  # the most tokens of a draft
    mask_id: int  # whose embedding stands for a mask


class _Attention(Qwen3Attention):
    def forward(self, block: Tensor, text: Tensor, turns: tuple[Tensor, Tensor], cache: DynamicCache) -> Tensor:
        """Of the block's rows [1, n, d], which all see each other and the text, whose new rows are [1, m, d]."""
        rows = torch.cat([text, block], 1)
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project, x in ((self.q_proj, rows), (self.k_proj, rows), (self.v_proj, rows))
        )
        queries, keys = apply_rotary_pos_emb(self.q_norm(queries), self.k_norm(keys), *turns)
        keys, values = cache.update(keys, values, self.layer_idx)
        queries = queries[:, :, text.shape[1] :]
        gathered = functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)
        return self.o_proj(gathered.transpose(1, 2).flatten(2))


class _Layer(Qwen3DecoderLayer):
    def __init__(self, config: Qwen3Config, index: int):
        super().__init__(config, index)
        self.self_attn = _Attention(config, index)

    def forward(self, block: Tensor, *others: Any) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), *others)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashHead(nn.Module):
    """A block of the text's last token and masks, all of which see each other and the text.

    A mask predicts the token in its own place. The text is there as keys and values alone, in each layer those of
    norm(W [f_1; f_2; ...]), f being the target's hidden states of a token.
    """

    kind: ClassVar[str] = "parallel"

    def __init__(self, config: Qwen3Config, own: DFlashConfig, feature_layers: tuple[int, ...]):
        super().__init__()
        self.sizes = own
        self.feature_layers = feature_layers
        d = config.hidden_size
        self.layers = nn.ModuleList([_Layer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.hidden_norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.fc = nn.Linear(len(feature_layers) * d, d, bias=False)
        self.rotary_emb = Qwen3RotaryEmbedding(config)

    def forward(self, block: Tensor, features: Tensor, cache: DynamicCache, start: int) -> Tensor:
        """Hidden states [1, n, d] of a block's embeddings [1, n, d], for the target's output head.

        features: [1, m, layers · d] of the tokens before it that the cache does not hold; `start` is the first one's
        position.
        """
        text = self.hidden_norm(self.fc(features))
        positions = torch.arange(start, start + text.shape[1] + block.shape[1], device=block.device)
        turns = self.rotary_emb(block, positions[None])
        for layer in self.layers:
            block = layer(block, text, turns, cache)
        return self.norm(block)


class DFlashReader:
    """Such a drafter reading one text. length: tokens held, all those but the last."""

    def __init__(self, head: DFlashHead, target: PreTrainedModel):
        self.head = head
        self.target = target
        self.cache = DynamicCache()
        self.length = 0

    def read(self, features: Tensor, tokens: Tensor, depths: int) -> Tensor:
        """As `head_passes.read_masks`."""
        ids = torch.cat([tokens[-1:], tokens.new_full((depths,), self.head.sizes.mask_id)])
        block = self.target.get_input_embeddings()(ids).to(features.device)
        hidden = self.head(block[None], features[None], self.cache, self.length)[0, 1:]
        self.length += len(tokens)
        self.cache.crop(-len(ids))
        return self.target.get_output_embeddings()(hidden).to(features.device)


def load_dflash(files: PartFiles, target: PreTrainedModel) -> DFlashHead:
    """The drafter in a folder, in evaluation mode, on the target's device and in its dtype.

    Raises SpecvizError (field ``drafter``) if it is of a later kind, was made for another target, or is damaged.
    """
    folder = files.folder
    try:
        head = _unloaded(folder, files.settings, target)
        load_torch_model(head, folder, strict=True, safe=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        if isinstance(error, SpecvizError):
            raise
        raise SpecvizError(
            "The DFlash drafter in {folder} is damaged: copy it again.", "drafter", folder=folder
        ) from error
    return ready(head, target)


def _unloaded(folder: pathlib.Path, settings: dict[str, Any], target: PreTrainedModel) -> DFlashHead:
    own = settings | settings["dflash_config"]
    config = Qwen3Config(**settings)
    kinds = {*settings["architectures"], *config.layer_types, *(_LATER & own.keys())}
    if kinds != {"DFlashDraftModel", "full_attention"}:
        raise SpecvizError(
            "The DFlash drafter in {folder} is of a kind that is not known here: {kinds}.",
            "drafter",
            folder=folder,
            kinds=", ".join(sorted(kinds)),
        )
    text = target.config.get_text_config()
    sizes = (config.hidden_size, own["num_target_layers"], config.vocab_size)
    wanted = (hidden_size_of(target), text.num_hidden_layers, text.vocab_size)
    if sizes != wanted:
        raise SpecvizError(
            "The DFlash drafter in {folder} was made for another target: one with width, layers and vocabulary of "
            "{sizes}; this one has {wanted}.",
            "drafter",
            folder=folder,
            sizes=", ".join(map(str, sizes)),
            wanted=", ".join(map(str, wanted)),
        )
    # The block's first place is the text's; the output of layer i is hidden state i + 1.
    layers = tuple(layer + 1 for layer in own["target_layer_ids"])
    return DFlashHead(config, DFlashConfig(own["block_size"] - 1, own["mask_token_id"]), layers)
