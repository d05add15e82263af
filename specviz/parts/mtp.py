"""Multi-token-prediction modules: in files of their own, as speculators writes them (FastMTP, arXiv 2509.18362), one
layer that is run again on its own states for every further token; and those of a target's own checkpoint.

Names of weights in files are theirs (``mtp_layers.0.…``). Embeddings and output head are the target's.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specviz.parts.head_passes import PublishedHead
from specviz.parts.part_files import PartFiles
from specviz.parts.published import Servers, filled, read_as, same_target
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch, home_of
from specviz.passes.static_passes import additive_mask
from specviz.records.words import Sentence

#: Families whose layers a module may have.
_FAMILIES = ("llama", "qwen2", "qwen3")


class MtpFile(PublishedHead):
    """Row t takes the target's state f at token t, as its last layer leaves it, and the embedding e of token t + 1, and
    predicts token t + 2. Where the target has not read token t yet, its own state of the row before stands in.

        x = U [norm(e); norm(f)];  state = norm(layer(x));  logits = the target's output head(state)

    Servers give a module that they find in a checkpoint the state after the target's last norm; speculators trains with
    the one before it.
    """

    kind: ClassVar[str] = "mtp"
    method: ClassVar[str] = "MTP"
    servers: ClassVar[Servers] = Servers("mtp", model="MTP_MODULE")
    num_modules: ClassVar[int] = 1

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files)
        d, layer = self.config.hidden_size, self.layers[0]
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        layer.input_proj = nn.Linear(2 * d, d, bias=False)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            setattr(layer, name, LlamaRMSNorm(d, self.config.rms_norm_eps))
        scale = last_scale(target)
        # What a weight of 0 took away does not come back.
        self.register_buffer("last_scale", scale.masked_fill(scale == 0, 1), persistent=False)
        self.before_last_norm = True  # of the target
        self.embedding_first = True

    @property
    def norm(self) -> nn.Module:
        return self.layers[0].final_layernorm

    def fuse(self, features: Tensor) -> Tensor:
        """The state before the target's last norm, but for its length, which the module's own norm takes away too."""
        return (features / self.last_scale).to(features.dtype) if self.before_last_norm else features

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        layer = self.layers[0]
        inputs = layer.token_layernorm(embeddings), layer.hidden_layernorm(features)
        joined = torch.cat(inputs if self.embedding_first else inputs[::-1], -1)
        return layer(layer.input_proj(joined), **attending)

    def fed_back(self, hidden: Tensor) -> Tensor:
        """Its state after its last norm, which is also what the output head reads."""
        return self.norm(hidden)

    def reading(self) -> dict[str, Any]:
        return super().reading() | {
            "state": "before the target's last norm" if self.before_last_norm else "as it is",
            "joined": "embedding, state" if self.embedding_first else "state, embedding",
        }

    def other_readings(self) -> dict[Sentence, MtpFile]:
        others = super().other_readings()
        for other in others.values():
            other.before_last_norm = False  # further down there is no such norm
        return others | {
            Sentence("the state after the target's last norm"): read_as(self, before_last_norm=False),
            Sentence("state and embedding joined the other way round"): read_as(self, embedding_first=False),
        }

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        layers = files.settings.get("transformer_layer_config")
        family = layers.get("model_type") if isinstance(layers, dict) else None
        if family not in _FAMILIES:
            raise files.complaint(
                "{folder} holds an MTP module with a layer of the family {family}, which is not run here: those of "
                "{families} are.",
                family=family,
                families=", ".join(_FAMILIES),
            )
        same_target(files, target, **{name: layers.get(name) for name in ("hidden_size", "vocab_size")})
        # Early files have copies of the target's embeddings and output head.
        files = files.named(lambda name: name.removeprefix("mtp_") if name.startswith("mtp_layers.") else None)
        return filled(lambda: cls(files, target), files, target)


def last_scale(target: PreTrainedModel) -> Tensor:
    """What the target's last norm multiplies its states with once they have a length of their own, [d] float32.

    Ones for a norm that takes away more than their length, as it does in older families.
    """
    width, norm = target.config.get_text_config().hidden_size, getattr(target.get_decoder(), "norm", None)
    if norm is None or isinstance(norm, nn.LayerNorm):
        return torch.ones(width, device=home_of(target))
    # What it makes of ones is its weights, whether they count from 0 or from 1, and wherever they are kept.
    ones = torch.ones(width, dtype=target.dtype, device=home_of(target))
    return norm(ones).detach().float()


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
