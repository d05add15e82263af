"""EAGLE-3 heads as they are published (Li et al., arXiv 2503.01840, §3), P-EAGLE's (arXiv 2602.01469), and below them
those of the first two papers (arXiv 2401.15077 and 2406.16858) and HASS's.

SafeAILab's own, SpecForge's and AngelSlim's (``midlayer.``), NVIDIA's, DeepSpec's and those of speculators
(``layers.0.``), NeMo's (``model.`` in front) differ in names, in how they number the target's layers, and in a few
norms.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from specviz.parts.head_passes import PublishedHead
from specviz.parts.part_files import PartFiles
from specviz.parts.published import feature_layers, filled, mask_token, same_target, smaller_vocabulary
from specviz.parts.reading import Reading, Rows, SomeLevel, TrainedPart, shifted, variant
from specviz.parts.servers import Servers
from specviz.passes.kernels.chains import FusedBy
from specviz.records.words import Sentence

#: How many tokens a P-EAGLE head drafts where its files do not say: what its recipes train by default.
_DEPTHS = 8


class _Joining:
    """A decoder layer whose attention reads a token's embedding and a state side by side, each after a norm of its own.

    a = [norm(e); norm(g)];  x = g + attention(a), or norm(g) + attention(a);  hidden = x + MLP(norm(x))
    """

    self_attn: Any  # of the layer
    mlp: Any
    input_layernorm: Any
    post_attention_layernorm: Any

    def widen(self, config: LlamaConfig, normed_residual: bool) -> None:
        """Makes an ordinary layer one of these."""
        self.normed_residual = normed_residual
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * config.hidden_size, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)

    def forward(self, embeddings: Tensor, state: Tensor, **attending: Any) -> Tensor:
        normed = self.hidden_norm(state)
        joined = torch.cat([self.input_layernorm(embeddings), normed], -1)
        x = (normed if self.normed_residual else state) + self.self_attn(joined, **attending)[0]
        return x + self.mlp(self.post_attention_layernorm(x))


class _JoiningLlama(_Joining, LlamaDecoderLayer):
    pass


class _JoiningQwen(_Joining, Qwen3DecoderLayer):
    pass


class Eagle3Head(PublishedHead):
    """Row t takes one state fused from several of the target's layers at token t, and the embedding of token t + 1, and
    predicts token t + 2. Where the target has not read token t yet, the head's own state of the row before stands in.

        g = W [f_1; f_2; ...], each f or all of them normed in some forms, or the state before;  `_Joining`;
        further layers, if there are any;  logits = output head(norm(hidden)), often over a smaller vocabulary
    """

    kind: ClassVar[str] = "eagle"
    method: ClassVar[str] = "EAGLE-3"
    servers: ClassVar[Servers] = Servers("eagle3", "EAGLE3", "draft-eagle3", "EAGLE3_HEAD", sglang_draws=True)

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files)
        numbers = files.setting("eagle_aux_hidden_state_layer_ids", "target_layer_ids")
        self.feature_layers = feature_layers(files, target, numbers)
        numbering = "hidden states" if "speculators_model_type" in files.settings else "outputs of layers"
        self.numbered = "default" if numbers is None else numbering
        d, eps, width = self.config.hidden_size, self.config.rms_norm_eps, target.config.get_text_config().hidden_size
        self.layers[0].widen(self.config, bool(files.setting("norm_before_residual", default=False)))
        count, shapes = len(self.feature_layers), files.shapes
        self.fc = nn.Linear(count * width, d, bias="fc.bias" in shapes)
        self.fc_norm = self.input_norm = None
        if "fc_norm.0.weight" in shapes:
            self.fc_norm = nn.ModuleList([LlamaRMSNorm(width, eps) for _ in self.feature_layers])
        if "input_norm.weight" in shapes:
            self.input_norm = LlamaRMSNorm(count * width, eps)
        self.norm = LlamaRMSNorm(d, eps)
        self.normed_states = bool(files.setting("norm_output", default=False))

    def layer(self, index: int) -> nn.Module:
        if index:
            return super().layer(index)
        return (_JoiningQwen if isinstance(self.config, Qwen3Config) else _JoiningLlama)(self.config, index)

    @property
    def fused_by(self) -> FusedBy | None:
        fc: Any = self.fc  # on the kernels, one of their layers
        if self.input_norm is None:
            return FusedBy(list(self.fc_norm or ()), fc)
        return None if self.fc_norm else FusedBy([self.input_norm], fc)

    def fuse(self, features: Tensor) -> Tensor:
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self.fc(features)

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        hidden = self.layers[0](embeddings, features, **attending)
        for layer in self.layers[1:]:
            hidden = layer(hidden, **attending)
        return hidden

    def fed_back(self, hidden: Tensor) -> Tensor:
        """Its state as it is; with EAGLE-3.1's ``norm_output``, after the norm."""
        return self.norm(hidden) if self.normed_states else hidden

    def facts(self) -> dict[str, Any]:
        flags = {"numbered": self.numbered, "normed_states": self.normed_states}
        return super().facts() | flags | {"normed_residual": self.layers[0].normed_residual}

    def variants(self) -> dict[Sentence, TrainedPart]:
        other_norm = variant(self, normed_states=not self.normed_states)
        if self.normed_states:
            return shifted(self) | {Sentence("its states fed back without the norm"): other_norm}
        return shifted(self) | {Sentence("its states fed back after the norm"): other_norm}

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        files = files.named(lambda name: re.sub(r"^midlayer\.", "layers.0.", name.removeprefix("model.")))
        width, vocab_size = (files.setting(name) for name in ("target_hidden_size", "vocab_size"))
        same_target(files, target, hidden_size=width, vocab_size=vocab_size)
        head = filled(lambda: cls(files, target), files, target, smaller_vocabulary(files, target))
        if None in (head.embed_tokens, head.lm_head):  # the target's, which have to be as wide
            same_target(files, target, hidden_size=head.config.hidden_size)
        return head


class PEagleHead(Eagle3Head):
    """An EAGLE-3 head that drafts all depths in one pass: after the text's last row come masks, one for each further
    depth, with the embedding of a mask token and a trained state in place of the target's.

    A mask sees the text's rows and the masks before it.
    """

    kind: ClassVar[str] = "parallel"
    method: ClassVar[str] = "P-EAGLE"
    servers: ClassVar[Servers] = Servers("eagle3", model="EAGLE3_HEAD", in_parallel=True)
    states_are_read: ClassVar[bool] = False
    at_once: ClassVar[bool] = True

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files, target)
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, self.fc.in_features))
        table = target.get_input_embeddings() if self.embed_tokens is None else self.embed_tokens
        self.mask_id = mask_token(files, len(table.weight))
        proposals = files.settings.get("speculators_config", {}).get("proposal_methods") or [{}]
        proposed = files.possible("speculative_tokens", proposals[0].get("speculative_tokens"))
        self.most_depths = self.masks = files.setting("num_depths", "para_depths", default=proposed or _DEPTHS)

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"depths": self.most_depths}

    def source(self, depth: int) -> str:
        return f"mask {depth}" if depth else "row"

    def rows_by_level(self, reading: Reading[SomeLevel], depth: int) -> Rows[SomeLevel]:
        masks = reading.last.new_full((depth - 1,), self.mask_id)
        yield reading.text(masks, self.mask_hidden[0].expand(depth - 1, -1))


#: The names of speculators, and of the norms, in SafeAILab's manner.
_EAGLE1_NAMES = [
    (r"^transformer\.", "layers.0."),
    (r"^fusion_fc\.", "fc."),
    (r"^hidden_layernorm\.", "layers.0.input_layernorm."),
    (r"^(embed|embedding|post_embedding)_layernorm\.", "embed_norm."),
    (r"^(lm_head|pre_lm_head)_layernorm\.", "norm."),
]


class Eagle1Head(PublishedHead):
    """Row t takes the target's last hidden state f at token t and the embedding e of token t + 1, makes a state in the
    manner of f at token t + 1 of them, and with the target's output head predicts token t + 2. Where the target has not
    read token t yet, the head's own state of the row before stands in for f.

        x = W [e; f] + b;  x += attention(x);  hidden = x + MLP(norm(x));  logits = output head(hidden)

    There are no norms but this one, unless the files have them: of e, before attention, before the output head.
    """

    kind: ClassVar[str] = "eagle"
    method: ClassVar[str] = "EAGLE"
    servers: ClassVar[Servers] = Servers("eagle", "EAGLE", model="EAGLE_HEAD", sglang_draws=True)

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files)
        d, eps, shapes = self.config.hidden_size, self.config.rms_norm_eps, files.shapes
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        self.fc = nn.Linear(2 * d, d, bias="fc.bias" in shapes)
        if "layers.0.input_layernorm.weight" not in shapes:
            self.layers[0].input_layernorm = nn.Identity()
        self.embed_norm, self.norm = (
            LlamaRMSNorm(d, eps) if f"{name}.weight" in shapes else nn.Identity() for name in ("embed_norm", "norm")
        )

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        x = self.fc(torch.cat([self.embed_norm(embeddings), features], -1))
        return self.layers[0](x, **attending)

    def facts(self) -> dict[str, Any]:
        """And which of the norms it has."""
        places = {"embeddings": self.embed_norm, "attention": self.layers[0].input_layernorm, "output": self.norm}
        normed = [place for place, norm in places.items() if not isinstance(norm, nn.Identity)]
        return super().facts() | {"normed": normed}

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        files = files.named(_eagle1_name)
        same_target(files, target, hidden_size=files.size("fc.weight", 0), vocab_size=files.setting("vocab_size"))
        return filled(lambda: cls(files, target), files, target)


def _eagle1_name(name: str) -> str | None:
    for pattern, replacement in _EAGLE1_NAMES:
        name = re.sub(pattern, replacement, name)
    return None if name.endswith("rotary_emb.inv_freq") else name
