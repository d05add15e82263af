"""The multi-token-prediction modules that a checkpoint brings along, read one at a time.

They are transformers' own `MtpModel`: it knows, family by family, which hidden state goes in and which norms it passes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from specviz.passes.static_passes import additive_mask


class MtpModules:
    """A target's MTP modules, in turn (DeepSeek-V3, arXiv 2412.19437, §2.2). Embeddings and output head are the
    target's; the first module reads its last hidden states, each other one those of the module before."""

    def __init__(self, model: MtpModel, target: PreTrainedModel):
        self.model = model
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        self.num_modules = len(model.layers)


class ModuleReader:
    """One of them reading one text. depth: 1 for the first. length: rows held; row i is that of token i + depth.

    It reads each token beside the state that the depth before has of the token before.
    """

    chain_width: int | None = None  # see `CachedModel`

    def __init__(self, modules: MtpModules, depth: int):
        self.model, self.depth = modules.model, depth
        self.cache = MtpCache(config=self.model.config)
        # Otherwise sliding windows forget the rows that a rewind has to bring back.
        self.cache.activate_past_recording()
        self.length = 0

    def fuse(self, features: Tensor) -> Tensor:
        """The target's last hidden states as they are: a module norms them itself."""
        return features

    def read(
        self, features: Tensor, tokens: Tensor, keep: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits [keep, vocab] of the last tokens and states [n, d] of all.

        features: [n, d], states of the depth before. tokens: [n] int64. positions: [n] int64, counted in rows; by
        default those after the rows held. mask: [n, m + n] bool, which of the m rows held and the n new ones each new
        one sees; None: all held, and the new ones up to itself.
        """
        if positions is None:
            positions = torch.arange(self.length, self.length + len(tokens), device=tokens.device)
        given = self.model.embed_tokens(tokens)[None], features[None], (positions + self.depth)[None]
        states = (self._read_chain(*given) if mask is None else self._read_tree(*given, mask))[0]
        self.length += len(tokens)
        return self.model._project_to_logits(states[-keep:]), states

    def _read_chain(self, embeddings: Tensor, features: Tensor, positions: Tensor) -> Tensor:
        return self.model.forward_layer(self.depth - 1, features, positions, self.cache, inputs_embeds=embeddings)

    def _read_tree(self, embeddings: Tensor, features: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """The same with a mask of our own, where transformers would make one for a chain."""
        model, index = self.model, self.depth - 1
        kind = {"layer_type": model.config.layer_types[index]} if model.has_per_layer_rope else {}
        return model.layers[index](
            embeddings,
            features,
            position_embeddings=model.rotary_emb(embeddings, position_ids=positions, **kind),
            attention_mask=additive_mask(mask, embeddings.dtype),
            position_ids=positions,
            cache=self.cache,
        )

    def rewind(self, length: int) -> None:
        """Forgets all rows after the first `length`. Needed after every round, as for `CachedModel`."""
        if self.length:
            self.cache.layers[self.depth - 1].crop(length - self.length)
        self.length = length
