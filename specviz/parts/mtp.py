"""Multi-token-prediction modules: in files of their own, as speculators writes them (FastMTP, arXiv 2509.18362), one
layer that is run again on its own states for every further token; and those of a target's own checkpoint.

Names of weights in files are theirs (``mtp_layers.0.…``). Embeddings and output head are the target's.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specviz.parts.head_passes import Head, PublishedHead
from specviz.parts.part_files import PartFiles
from specviz.parts.published import Servers, filled, read_as, same_target
from specviz.passes.devices import home_of
from specviz.passes.roles import Role
from specviz.passes.static_passes import StaticPass
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


class CheckpointModule(Head):
    """One of the multi-token-prediction modules of a target's checkpoint (DeepSeek-V3, arXiv 2412.19437, §2.2).

    Its layer is one of transformers' `MtpModel`, which knows, family by family, which hidden state goes in and which
    norms it passes. The first module reads the target's last hidden states, each other one those of the module before;
    row i of the k-th one is that of token i + k. Embeddings and output head are the target's.
    """

    kind: ClassVar[str] = "mtp"
    method: ClassVar[str] = "MTP"

    def __init__(self, model: MtpModel, index: int, target: PreTrainedModel):
        """index: from 0. Raises ValueError for modules without rotary positions."""
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = 1
        if kinds := getattr(config, "layer_types", None):
            config.layer_types = kinds[index : index + 1]
        config._experts_implementation = None  # its layer has the target's
        super().__init__(config)
        if model.rotary_emb is None:
            raise ValueError("they have no rotary positions")
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        self.place = index + 1
        self.turned_as = {"layer_type": config.layer_types[0]} if model.has_per_layer_rope else {}
        self.module, self.rotary_emb, self.norm = model.layers[index], model.rotary_emb, nn.Identity()
        for part in self.module.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = 0  # each module has a cache of its own

    def turns(self, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
        like = torch.empty(0, dtype=dtype, device=position_ids.device)
        return torch.stack(self.rotary_emb(like, position_ids=position_ids + self.place, **self.turned_as))

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        return self.module(embeddings, features, position_ids=None, **attending)


class MtpModules:
    """All modules of a target's checkpoint, in turn."""

    def __init__(self, model: MtpModel, target: PreTrainedModel):
        self.modules = [CheckpointModule(model, index, target) for index in range(len(model.layers))]
        self.feature_layers = self.modules[0].feature_layers
        self.num_modules = len(self.modules)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's last hidden states as they are: a module norms them itself."""
        return features

    def statics(self) -> dict[Role, Callable[..., StaticPass]]:
        """As `PublishedPart.statics`."""
        return {role: make for module in self.modules for role, make in module.statics().items()}

    def parameters(self) -> Iterator[nn.Parameter]:
        """The modules' own."""
        return itertools.chain.from_iterable(module.parameters() for module in self.modules)
