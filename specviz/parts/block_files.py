"""What the files of DFlash drafters and of their kin say, read as those who write them do: z-lab, SpecForge, NVIDIA's
Model Optimizer, DeepSpec, speculators, and transformers (the assistant of Muse Glimmer)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from specviz.parts.part_files import PartFiles
from specviz.parts.published import (
    feature_layers,
    hidden_size_of,
    mask_token,
    same_target,
)
from specviz.records.errors import SpecvizError

#: Settings of drafters that compute more, and the values with which they do not.
_FURTHER_SETTINGS = {
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

    def seen(self, slots: Tensor, room: int) -> Tensor:
        """[n, room] bool: which of `room` places the block's `slots` [n] int64 see; those after the block are empty."""
        places, cells = slots.unsqueeze(-1), torch.arange(room, device=slots.device)
        seen = cells <= (places if self.causal else places[-1:].expand_as(places))
        if self.from_first_slot:
            return seen & (cells >= slots[0] - self.window)
        return seen if self.window is None else seen & ((places - cells).abs() < self.window)


@dataclass(frozen=True)
class BlockConfig:
    """How a block is laid out and what it reads, apart from its layers' sizes."""

    feature_layers: tuple[int, ...]
    block_size: int  # slots, as many as in training: the text's last token and masks
    mask_id: int  # whose embedding stands for a mask
    predicts_next: bool  # each slot the token after its place, the first one too; or else the one in its place
    sights: tuple[Sight, ...]  # of the layers
    target_width: int  # of the target's hidden states
    embedding_scale: float | None = None  # of the embeddings as they are stored; None: as the target looks them up
    logit_scale: float = 1.0
    softcap: float | None = None  # c · tanh(logits / c), after that

    @property
    def depths(self) -> int:
        """The most tokens of a draft."""
        return self.block_size if self.predicts_next else self.block_size - 1


def block_settings(files: PartFiles, target: PreTrainedModel, method: str) -> tuple[Qwen3Config, BlockConfig]:
    """Of such a drafter: its layers' sizes, and how it lays out blocks. Raises SpecvizError as `PublishedPart.load`."""
    config = _layers_config(files)
    _refuse_further(files, config, method)
    # With both of its own, only what it reads of the target must be as wide as that.
    stands_alone = {"embed_tokens.weight", "lm_head.weight"} <= files.shapes.keys()
    same_target(
        files,
        target,
        hidden_size=None if stands_alone else config.hidden_size,
        num_hidden_layers=files.setting("num_target_layers"),
        vocab_size=config.vocab_size,
    )
    numbers = "aux_hidden_state_layer_ids" if _from_speculators(files) else "target_layer_ids"
    sizes = BlockConfig(
        feature_layers=feature_layers(files, target, files.needed(numbers)),
        block_size=files.needed("block_size"),
        mask_id=mask_token(files, config.vocab_size),
        predicts_next=_predicts_next(files, method),
        sights=_sights(files, config),
        target_width=target.config.get_text_config().hidden_size if stands_alone else hidden_size_of(target),
        embedding_scale=_in_block_settings(files, "input_embedding_scale"),
        logit_scale=_in_block_settings(files, "output_multiplier") or 1.0,
        softcap=_in_block_settings(files, "final_logit_softcapping") or None,
    )
    # Windows are part of what each layer sees; to caches all are alike.
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    return config, sizes


def block_name(name: str) -> str:
    for beginning, prefix in _PREFIXES.items():
        if name.startswith(beginning):
            name = prefix + name.removeprefix(beginning)
    return name


def _in_block_settings(files: PartFiles, name: str) -> Any:
    """A setting of the drafter's own, and not of the target's layers that speculators keep beside it."""
    block = files.settings.get("dflash_config") or {}
    return files.possible(name, block.get(name, files.settings.get(name)))


def _layers_config(files: PartFiles) -> Qwen3Config:
    settings = dict(files.settings.get("transformer_layer_config") or files.settings)
    rope = settings.get("rope_parameters") or {}
    if "sliding_attention" in rope:
        settings["rope_parameters"] = rope["sliding_attention"]  # as speculators does for targets with several
    files.setting("num_hidden_layers")  # says so if it cannot be
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
        raise unknown_kind(files, method, ", ".join(sorted(kinds)))


def unknown_kind(files: PartFiles, method: str, kinds: str) -> SpecvizError:
    return files.complaint(
        "The {method} drafter in {folder} is of an unknown kind: {kinds}.", method=method, kinds=kinds
    )


def _from_speculators(files: PartFiles) -> bool:
    return files.setting("speculators_model_type") is not None


def _predicts_next(files: PartFiles, method: str) -> bool:
    """Whether a slot predicts the token after its place: by default only those of DSpark do."""
    if files.setting("dspark_bonus_anchor"):
        return False
    return bool(files.setting("sample_from_anchor", "shift_label", default=method == "DSpark"))


def _sights(files: PartFiles, config: Qwen3Config) -> tuple[Sight, ...]:
    """Of each layer. Full attention sees all of the block. A sliding layer is causal in it by default, but not where
    ``use_swa`` makes all layers slide (Model Optimizer), nor in transformers' own."""
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    everywhere = bool(files.setting("use_swa")) and not any(slides)
    causal = files.setting("is_causal", "causal")  # of all layers
    full = Sight(bool(causal))
    if not everywhere and not any(slides):
        return (full,) * len(slides)
    # Where a window's edge lies is transformers' own, too.
    in_transformers = files.setting("model_type") == "muse_glimmer_assistant"
    sees_all = everywhere or in_transformers or files.setting("sliding_window_non_causal", default=False)
    window = files.needed("swa_window_size", "sliding_window") + in_transformers
    sliding = Sight(not sees_all if causal is None else bool(causal), window, _from_speculators(files))
    return tuple(sliding if everywhere or slides_here else full for slides_here in slides)
