"""DFlash drafters (Chen et al., arXiv 2602.06036): a few Qwen3 layers whose keys and values of the text come from the
target's hidden states.

Read as those who write them do: z-lab, SpecForge and NVIDIA's Model Optimizer; speculators; transformers (the
assistant of Muse Glimmer).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
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
from specviz.parts.heads import hidden_size_of
from specviz.parts.published import AnyPart, PublishedPart, columns_of, filled, logit_width, same_target, understood
from specviz.records.words import Sentence
from specviz.rules.sampling import in_order

#: Settings of drafters that compute more, and the values with which they do not.
_FURTHER_SETTINGS = {
    "input_embedding_scale": 1,
    "output_multiplier": 1,
    "logit_scale": 1,
    "is_neox_style": True,
    "use_aux_hidden_state": True,
    "attention_sink_bias": False,
    "add_swa_attention_sink_bias": False,
}

#: The same in tensors' names: attention sinks and gates, products that are joined, norms of the hidden states.
_FURTHER_TENSORS = ("attention_sink_bias", ".g_proj.", ".qkv_proj.", "aux_hidden_norms.", "mask_embedding")

#: What the names in files begin with, and ours, in the order of trial.
_PREFIXES = {
    "model.": "",
    "logit_head.": "",
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "markov_w": "markov_head.markov_w",
    "gate_proj.": "markov_head.gate_proj.",
    "joint_proj.": "markov_head.joint_proj.",
    "confidence_proj.": "confidence_head.proj.",
}


@dataclass(frozen=True)
class Sight:
    """What the slots of a block see of each other and of the text, in one layer."""

    causal: bool = False  # of the block only themselves and the slots before
    window: int | None = None  # tokens that many places away, and further, are out of sight
    from_first_slot: bool = False  # all slots see the same `window` tokens before the block, and the block itself

    def mask(self, text: int, slots: int, device: torch.device) -> Tensor | None:
        """[slots, text + slots] bool; None if all see everything."""
        if not self.causal and self.window is None:
            return None
        keys = torch.arange(text + slots, device=device)
        places = keys[text:, None]
        seen = (keys <= places) if self.causal else torch.ones(slots, len(keys), dtype=torch.bool, device=device)
        if self.from_first_slot:
            return seen & (keys >= text - self.window)
        return seen if self.window is None else seen & ((places - keys).abs() < self.window)


@dataclass(frozen=True)
class BlockConfig:
    """How a block is laid out and what it reads, apart from its layers' sizes."""

    block_size: int  # slots, as many as in training: the text's last token and masks
    mask_id: int  # whose embedding stands for a mask
    predicts_next: bool  # each slot the token after its place, the first one too; or else the one in its place
    sights: tuple[Sight, ...]  # of the layers
    target_width: int  # of the target's hidden states
    own_embeddings: bool = False
    own_rows: int | None = None  # of an output head of its own
    softcap: float | None = None  # of the logits: c · tanh(logits / c)

    @property
    def depths(self) -> int:
        """The most tokens of a draft."""
        return self.block_size if self.predicts_next else self.block_size - 1


class _Attention(Qwen3Attention):
    def forward(
        self, block: Tensor, text: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        """Of the block's rows [1, n, d], which see each other and the text, whose new rows are [1, m, d]."""
        rows = torch.cat([text, block], 1)
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project, x in ((self.q_proj, rows), (self.k_proj, rows), (self.v_proj, rows))
        )
        queries, keys = apply_rotary_pos_emb(self.q_norm(queries), self.k_norm(keys), *turns)
        keys, values = cache.update(keys, values, self.layer_idx)
        queries = queries[:, :, text.shape[1] :]
        gathered = functional.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
        return self.o_proj(gathered.transpose(1, 2).flatten(2))


class _Layer(Qwen3DecoderLayer):
    def __init__(self, config: Qwen3Config, index: int):
        super().__init__(config, index)
        self.self_attn = _Attention(config, index)

    def forward(self, block: Tensor, *others: Any) -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), *others)
        return block + self.mlp(self.post_attention_layernorm(block))


class DFlashHead(PublishedPart):
    """A block of the text's last token and masks, which see each other and the text.

    The text is there as keys and values alone, in each layer those of norm(W [f_1; f_2; ...]), f being the target's
    hidden states of a token. Embeddings and output head are the target's unless the files have their own.
    """

    kind: ClassVar[str] = "parallel"
    method: ClassVar[str] = "DFlash"

    def __init__(self, config: Qwen3Config, own: BlockConfig, feature_layers: tuple[int, ...]):
        super().__init__()
        self.sizes = own
        self.feature_layers = feature_layers
        d = config.hidden_size
        self.layers = nn.ModuleList([_Layer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.hidden_norm = Qwen3RMSNorm(d, config.rms_norm_eps)
        self.fc = nn.Linear(len(feature_layers) * own.target_width, d, bias=False)
        self.rotary_emb = Qwen3RotaryEmbedding(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, d) if own.own_embeddings else None
        self.lm_head = None if own.own_rows is None else nn.Linear(d, own.own_rows, bias=False)

    def reading(self) -> dict[str, Any]:
        slots = "next" if self.sizes.predicts_next else "own"
        return super().reading() | {"block_size": self.sizes.block_size, "slots_predict": slots}

    def other_readings(self) -> dict[Sentence, PublishedPart]:
        other = copy.copy(self)
        other.sizes = replace(self.sizes, predicts_next=not self.sizes.predicts_next)
        if other.sizes.predicts_next:
            name = Sentence("each mask predicts the token after its place")
        else:
            name = Sentence("each mask predicts the token in its place")
        return super().other_readings() | {name: other}

    def forward(self, block: Tensor, features: Tensor, cache: DynamicCache, start: int) -> Tensor:
        """Hidden states [1, n, d] of a block's embeddings [1, n, d], for the output head.

        features: [1, m, layers · width] of the tokens before it that the cache does not hold; `start` is the first
        one's position.
        """
        text = self.hidden_norm(self.fc(features))
        held, slots = start + text.shape[1], block.shape[1]
        positions = torch.arange(start, held + slots, device=block.device)
        turns = self.rotary_emb(block, positions[None])
        masks = {sight: sight.mask(held, slots, block.device) for sight in set(self.sizes.sights)}
        for layer, sight in zip(self.layers, self.sizes.sights):
            block = layer(block, text, turns, masks[sight], cache)
        return self.norm(block)

    def for_target(self, logits: Tensor) -> Tensor:
        """Logits [n, rows] of its own vocabulary as those of the target's tokens, [n, vocab]."""
        return logits if self.columns is None else in_order(logits, self.columns)


class DFlashReader:
    """Such a drafter reading one text. length: tokens held, all those but the last."""

    def __init__(self, head: DFlashHead, target: PreTrainedModel):
        self.head = head
        self.embeddings = target.get_input_embeddings() if head.embed_tokens is None else head.embed_tokens
        # Muse Glimmer norms its embeddings where they are looked up; its drafter was trained without.
        self.looks_up = hasattr(self.embeddings, "embed_norm")
        self.unembed = target.get_output_embeddings() if head.lm_head is None else head.lm_head
        self.cache = DynamicCache()
        self.length = 0

    def read(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Reads the text's new rows and a block after them, which is forgotten again: hidden states [block size, d].

        features: [n, layers · width], the target's hidden states. tokens: [n] int64, each following its feature's
        token. The block is always as long as in training: with fewer masks the others would be filled in differently.
        """
        sizes = self.head.sizes
        ids = torch.cat([tokens[-1:], tokens.new_full((sizes.block_size - 1,), sizes.mask_id)])
        table = self.embeddings
        block = functional.embedding(ids, table.weight) if self.looks_up else table(ids)
        hidden = self.head(block.to(features.device)[None], features[None], self.cache, self.length)[0]
        self.length += len(tokens)
        self.cache.crop(-len(ids))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, rows] of hidden states [n, d]."""
        logits, cap = self.unembed(hidden).to(hidden.device), self.head.sizes.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


def load_dflash(files: PartFiles, target: PreTrainedModel) -> DFlashHead:
    """The drafter in a folder, in evaluation mode, on the target's device and in its dtype.

    Raises SpecvizError (field ``draft``, or ``drafter`` for what the target lacks) if it is of a kind that is not
    known, was made for another target, or is damaged.
    """
    return with_weights(DFlashHead(*block_settings(files, target, DFlashHead.method)), files, target)


def with_weights(part: AnyPart, files: PartFiles, target: PreTrainedModel) -> AnyPart:
    """`filled`, with names as these drafters have them, and with the vocabulary of its own, if it has one."""
    maps = {own: name for name in files.shapes if (own := _own_name(name)) in ("d2t", "t2d")}
    rows, vocab_size = part.sizes.own_rows, logit_width(target)
    if "d2t" in maps:
        part.columns = columns_of(files, files.tensor(maps["d2t"]), vocab_size)
    if rows not in (None, vocab_size) and (part.columns is None or part.columns.max() != rows):
        raise files.complaint(
            "The head in {folder} drafts from {rows} tokens, and its files do not say which of the target's "
            "{vocabulary} they are (d2t).",
            rows=rows,
            vocabulary=vocab_size,
        )
    return filled(part, files, target, lambda name: None if name in maps.values() else _own_name(name))


def block_settings(
    files: PartFiles, target: PreTrainedModel, method: str
) -> tuple[Qwen3Config, BlockConfig, tuple[int, ...]]:
    """Of such a drafter: its layers' sizes, how it lays out blocks, and the target's hidden states it reads.

    Raises SpecvizError as `load_dflash`.
    """
    if not files.shapes:
        files.tensors()  # says what is wrong with them
    with understood(files, method):
        config = _layers_config(files)
        _refuse_further(files, config, method)
        layers = _feature_layers(files, method)
        return config, _block_config(files, config, layers, target, method), layers


def _block_config(
    files: PartFiles, config: Qwen3Config, layers: tuple[int, ...], target: PreTrainedModel, method: str
) -> BlockConfig:
    shapes = own_shapes(files)
    rows = shapes.get("lm_head.weight", (None,))[0]
    # With both of its own, only what it reads of the target must be as wide as that.
    stands_alone = "embed_tokens.weight" in shapes and rows is not None
    text = target.config.get_text_config()
    same_target(
        files,
        target,
        hidden_size=shapes["fc.weight"][1] // len(layers) if stands_alone else config.hidden_size,
        num_hidden_layers=files.setting("num_target_layers"),
        vocab_size=config.vocab_size,
    )
    if not 0 <= min(layers) <= max(layers) <= text.num_hidden_layers:
        raise files.complaint(
            "The {method} drafter in {folder} reads the hidden states {layers} of its target, and this one has those "
            "from 0 to {last}.",
            method=method,
            layers=list(layers),
            last=text.num_hidden_layers,
        )
    block_size, mask_id = _needed(files, method, "block_size"), _needed(files, method, "mask_token_id")
    if block_size < 2 or not 0 <= mask_id < config.vocab_size:
        raise ValueError(f"block_size {block_size} or mask_token_id {mask_id} cannot be")
    return BlockConfig(
        block_size=block_size,
        mask_id=mask_id,
        predicts_next=_predicts_next(files, method),
        sights=_sights(files, config, method),
        target_width=text.hidden_size if stands_alone else hidden_size_of(target),
        own_embeddings="embed_tokens.weight" in shapes,
        own_rows=rows,
        softcap=files.setting("final_logit_softcapping") if method == DFlashHead.method else None,
    )


def own_shapes(files: PartFiles) -> dict[str, tuple[int, ...]]:
    """The tensors' shapes by the names that these drafters have for them."""
    return {_own_name(name): shape for name, shape in files.shapes.items()}


def _own_name(name: str) -> str:
    for beginning, own in _PREFIXES.items():
        if name.startswith(beginning):
            name = own + name.removeprefix(beginning)
    return name


def _needed(files: PartFiles, method: str, *names: str) -> Any:
    """A setting that has no default."""
    if (value := files.setting(*names)) is None:
        raise files.complaint(
            "The configuration in {folder} does not say {name}, without which a {method} drafter cannot be read.",
            name=names[0],
            method=method,
        )
    return value


def _layers_config(files: PartFiles) -> Qwen3Config:
    settings = dict(files.settings.get("transformer_layer_config") or files.settings)
    rope = settings.get("rope_parameters") or {}
    if "sliding_attention" in rope:
        settings["rope_parameters"] = rope["sliding_attention"]  # as speculators does for targets with several
    config = Qwen3Config(**settings)
    if "head_dim" not in settings:
        config.head_dim = config.hidden_size // config.num_attention_heads
    return config


def _refuse_further(files: PartFiles, config: Qwen3Config, method: str) -> None:
    kinds = {kind for kind in config.layer_types if kind not in ("full_attention", "sliding_attention")}
    kinds |= {name for name, plain in _FURTHER_SETTINGS.items() if files.setting(name, default=plain) != plain}
    kinds |= {part.strip(".") for part in _FURTHER_TENSORS for name in files.shapes if part in name}
    kinds |= {file.name for file in files.folder.glob("mask_embedding.pt")}
    if kinds:
        raise files.complaint(
            "The {method} drafter in {folder} is of a kind that is not known here: {kinds}.",
            method=method,
            kinds=", ".join(sorted(kinds)),
        )


def _feature_layers(files: PartFiles, method: str) -> tuple[int, ...]:
    """speculators numbers hidden states as transformers does; the others number layers, whose outputs come one later,
    and −1 is the embeddings."""
    if _from_speculators(files):
        return tuple(_needed(files, method, "aux_hidden_state_layer_ids"))
    return tuple(layer + 1 for layer in _needed(files, method, "target_layer_ids"))


def _from_speculators(files: PartFiles) -> bool:
    return files.setting("speculators_model_type") is not None


def _predicts_next(files: PartFiles, method: str) -> bool:
    """Whether a slot predicts the token after its place. By default DSpark's slots do, and DFlash's do not."""
    if files.setting("dspark_bonus_anchor"):
        return False
    return bool(files.setting("sample_from_anchor", default=method != DFlashHead.method))


def _sights(files: PartFiles, config: Qwen3Config, method: str) -> tuple[Sight, ...]:
    """Of each layer. Full attention sees all of the block. A sliding layer is causal in it by default (SpecForge,
    speculators, vLLM), but not where ``use_swa`` makes all layers slide (Model Optimizer), nor in transformers' own."""
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    everywhere = bool(files.setting("use_swa")) and not any(slides)
    causal = files.setting("is_causal", "causal")  # of all layers
    full = Sight(bool(causal))
    if not everywhere and not any(slides):
        return (full,) * len(slides)
    # Where a window's edge lies is transformers' own, too.
    in_transformers = files.setting("model_type") == "muse_glimmer_assistant"
    sees_all = everywhere or in_transformers or files.setting("sliding_window_non_causal", default=False)
    window = _needed(files, method, "swa_window_size", "sliding_window") + in_transformers
    sliding = Sight(not sees_all if causal is None else bool(causal), window, _from_speculators(files))
    return tuple(sliding if everywhere or slid else full for slid in slides)
