"""The multi-token-prediction modules of a target's own checkpoint, read by transformers' classes."""

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.passes.static_passes import additive_mask


class MtpModules:
    """The multi-token-prediction modules of a target's checkpoint, in turn (DeepSeek-V3, arXiv 2412.19437, §2.2).

    Embeddings and output head are the target's; the first module reads its last hidden states, each other one those of
    the module before. They are transformers' own `MtpModel`: it knows, family by family, which hidden state goes in and
    which norms it passes.
    """

    def __init__(self, model: MtpModel, target: PreTrainedModel):
        self.model = model
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        self.num_modules = len(model.layers)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's last hidden states as they are: a module norms them itself."""
        return features


class ModuleReader(CachedModel):
    """One of the modules reading one text. depth: 1 for the first. Row i is that of token i + depth.

    It reads each token with the state that the depth before has of the token before; its `features` are its own states.
    """

    def __init__(self, modules: MtpModules, depth: int, stopwatch: Stopwatch):
        self.depth = depth
        super().__init__(modules.model, stopwatch)

    def _empty(self) -> None:
        self.cache = MtpCache(config=self.model.config)
        # Otherwise sliding windows forget the rows that a rewind has to bring back.
        self.cache.activate_past_recording()

    def _read(
        self, token_ids: Tensor, keep: int, visible: Tensor | None, positions: Tensor | None, inputs: Tensor
    ) -> Tensor:
        model, index = self.model, self.depth - 1
        if positions is None:
            positions = torch.arange(self.length, self.length + len(token_ids), device=token_ids.device)
        embeddings, positions = model.embed_tokens(token_ids)[None], (positions + self.depth)[None]
        if visible is None:
            states = model.forward_layer(index, inputs[None], positions, self.cache, inputs_embeds=embeddings)
        else:
            # With a mask of our own, where transformers would make one for a chain.
            kind = {"layer_type": model.config.layer_types[index]} if model.has_per_layer_rope else {}
            states = model.layers[index](
                embeddings,
                inputs[None],
                position_embeddings=model.rotary_emb(embeddings, position_ids=positions, **kind),
                attention_mask=additive_mask(visible, embeddings.dtype),
                position_ids=positions,
                cache=self.cache,
            )
        self.features = states[0]
        return model._project_to_logits(states[0, -keep:])

    def _forget(self, count: int) -> None:
        if self.length:
            self.cache.layers[self.depth - 1].crop(-count)
