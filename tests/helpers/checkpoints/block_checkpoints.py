"""Checkpoints of DFlash and DSpark drafters with random weights, in the layouts in which they are published."""

import json
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

WINDOW = 5
LAYERS = 2
HEADS, KEYS, HEAD = 4, 2, 12
RANK = 8
GRU = 20
TAPS, GROUP = 3, 12

#: Whether the slot at one place sees a token at another one; the block's first slot is at the third.
Sees = Callable[[int, int, int], bool]


SEES: dict[str, Sees] = {
    "all": lambda place, other, first: True,
    "before": lambda place, other, first: other <= place,
    "slides": lambda place, other, first: 0 <= place - other < WINDOW,
    "both ways": lambda place, other, first: abs(place - other) < WINDOW,
    "as a block": lambda place, other, first: first - WINDOW <= other <= place,
    "as a block, both ways": lambda place, other, first: first - WINDOW <= other,
    "in transformers": lambda place, other, first: abs(place - other) <= WINDOW,
}


@dataclass(frozen=True)
class Layout:
    """One way to publish a drafter, and what it means."""

    settings: Callable[[dict[str, Any], int], dict[str, Any]]  # config.json from layers' sizes and the target's layers
    block: int = 8
    masks: tuple[str, str] = ("all", "all")  # of `SEES`, in each layer
    predicts_next: bool = False
    width: int | None = None  # the target's unless the drafter has its own embeddings and output head
    own: bool = False
    mapped: bool = False
    markov: str | None = None
    confidence: int | None = None  # of what its head reads beside the hidden state: 0, or the Markov head's rank
    gru: int | None = None  # how many of its first tokens stay as they are
    candidates: int | None = None
    scales: tuple[float, float] = (1.0, 1.0)  # of embeddings and logits
    softcap: float | None = None
    names: tuple[tuple[str, str], ...] = ()  # our names' beginnings, and the files'
    suffix: str = ".safetensors"
    reads: Callable[[int], tuple[int, ...]] = lambda layers: (1, layers)  # states, of a target with this many layers

    @property
    def sees(self) -> tuple[Sees, ...]:
        return tuple(SEES[one] for one in self.masks)


def mask_of(vocab: int) -> int:
    return vocab - 2


def _z_lab(own: dict[str, Any] | None = None, **more: Any) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    def settings(sizes: dict[str, Any], layers: int) -> dict[str, Any]:
        config = {"mask_token_id": mask_of(sizes["vocab_size"]), "target_layer_ids": [0, layers - 1]} | (own or {})
        labels = {"architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}}
        return sizes | labels | {"num_target_layers": layers, "block_size": 8, "dflash_config": config} | more

    return settings


_SPECULATORS = {"dflash": "DFlashSpeculator", "dflash2": "DFlash2DraftModel", "dspark": "DSparkSpeculator"}


def _speculators(kind: str, block: int, types: list[str], **more: Any) -> Callable[..., dict[str, Any]]:
    def settings(sizes: dict[str, Any], layers: int) -> dict[str, Any]:
        inner = sizes | {"layer_types": types, "sliding_window": WINDOW, "use_sliding_window": True}
        return {
            "architectures": [_SPECULATORS[kind]],
            "speculators_model_type": kind,
            "speculators_version": "0.6.0",
            "speculators_config": {"algorithm": kind, "default_proposal_method": "greedy"},
            "transformer_layer_config": inner,
            "aux_hidden_state_layer_ids": [1, layers],
            "mask_token_id": mask_of(sizes["vocab_size"]),
            "block_size": block,
        } | more

    return settings


def _deep_spec(first: int, rank: int, **more: Any) -> Callable[[dict[str, Any], int], dict[str, Any]]:
    def settings(sizes: dict[str, Any], layers: int) -> dict[str, Any]:
        labels = {"architectures": ["Qwen3DSparkModel"], "mask_token_id": mask_of(sizes["vocab_size"])}
        labels |= {"num_target_layers": layers, "target_layer_ids": [first, layers - 1]}
        return sizes | labels | {"block_size": 5, "num_anchors": 512, "markov_rank": rank} | more

    return settings


def _muse_glimmer(sizes: dict[str, Any], layers: int) -> dict[str, Any]:
    labels = {"architectures": ["MuseGlimmerAssistantModel"], "model_type": "muse_glimmer_assistant"}
    window = {"layer_types": ["sliding_attention"] * 2, "sliding_window": WINDOW, "block_size": 8}
    return (
        sizes | labels | window | {"mask_token_id": mask_of(sizes["vocab_size"]), "target_layer_ids": [0, layers - 1]}
    )


SLIDING = ["sliding_attention", "full_attention"]
_HYBRID = {"layer_types": SLIDING, "sliding_window": WINDOW, "use_sliding_window": True}
_SPECFORGE = {"projector_type": "dspark", "attention_mode": "gqa", "enable_confidence_head": True}
_MODEL_OPTIMIZER = {"projector_type": "dspark", "shift_label": True, "use_confidence_head": True}


DFLASH = {
    "z-lab": Layout(_z_lab(), suffix=".bin"),
    "z-lab, sliding": Layout(
        _z_lab({"block_size": 6, "final_logit_softcapping": 2.0}, block_size=None, **_HYBRID),
        block=6,
        masks=("slides", "all"),
        softcap=2.0,
    ),
    "z-lab, sliding both ways": Layout(
        _z_lab(**_HYBRID, is_causal=False), masks=("both ways", "all"), names=(("", "model."),)
    ),
    "z-lab, causal": Layout(_z_lab({"causal": True}), masks=("before", "before")),
    "Model Optimizer": Layout(_z_lab({"use_swa": True, "swa_window_size": WINDOW}), masks=("both ways", "both ways")),
    "speculators": Layout(
        _speculators("dflash", 4, SLIDING),
        block=4,
        masks=("as a block", "all"),
        width=24,
        own=True,
        mapped=True,
    ),
    "speculators, from the anchor": Layout(
        _speculators("dflash", 4, SLIDING, sliding_window_non_causal=True, sample_from_anchor=True),
        block=4,
        masks=("as a block, both ways", "all"),
        predicts_next=True,
        own=True,
    ),
    "transformers": Layout(
        _muse_glimmer,
        masks=("in transformers",) * 2,
        names=(("fc.", "encoder.fc."), ("hidden_norm.", "encoder.output_norm_enc.")),
    ),
}

DSPARK = {
    "DeepSpec": Layout(
        _deep_spec(-1, RANK, markov_head_type="vanilla", enable_confidence_head=True, confidence_head_with_markov=True),
        block=5,
        reads=lambda layers: (0, layers),
        predicts_next=True,
        own=True,
        markov="vanilla",
        confidence=RANK,
    ),
    "DeepSpec, DFlash": Layout(
        _deep_spec(0, 0, enable_confidence_head=False), block=5, predicts_next=True, own=True, suffix=".bin"
    ),
    "SpecForge": Layout(
        _z_lab(_SPECFORGE | {"markov_rank": RANK, "markov_head_type": "gated"}, architectures=["DSparkDraftModel"]),
        predicts_next=True,
        markov="gated",
        confidence=0,
        names=(("markov_head.", "logit_head.markov_head."), ("confidence_head.", "logit_head.confidence_head.")),
        suffix=".bin",
    ),
    "Model Optimizer": Layout(
        _z_lab(_MODEL_OPTIMIZER | {"markov_rank": RANK, "markov_head_type": "rnn"}),
        predicts_next=True,
        markov="rnn",
        confidence=RANK,
        names=(("markov_head.", ""), ("confidence_head.proj.", "confidence_proj.")),
    ),
    "speculators": Layout(
        _speculators("dspark", 5, SLIDING, markov_rank=RANK, markov_head_type="gated"),
        block=5,
        masks=("as a block", "all"),
        predicts_next=True,
        width=24,
        own=True,
        mapped=True,
        markov="gated",
        confidence=RANK,
    ),
    "speculators, each its own place": Layout(
        _speculators("dspark", 5, SLIDING, markov_rank=RANK, markov_head_type="rnn", sample_from_anchor=False),
        block=5,
        masks=("as a block", "all"),
        own=True,
        mapped=True,
        markov="rnn",
    ),
    "with a bonus anchor": Layout(
        _deep_spec(0, RANK, markov_head_type="vanilla", dspark_bonus_anchor=True, enable_confidence_head=False),
        block=5,
        own=True,
        markov="vanilla",
    ),
}

_DOMINO = {"projector_type": "domino", "emb_dim": 16, "gru_hidden_dim": GRU}
_DFLASH2 = {"conv_kernel_size": TAPS, "conv_group_size": GROUP, "selector_rank": RANK, "selector_top_k": 4}
_SCALED = _DFLASH2 | {"input_embedding_scale": 1.5, "output_multiplier": 0.5, "final_logit_softcapping": 2.0}

OTHERS = {
    "Domino": Layout(
        _z_lab(_DOMINO | {"shift_label": True, "pure_draft_prefix_len": 1}),
        predicts_next=True,
        gru=1,
        names=(("prefix_gru.", "logit_head.prefix_gru."), ("embed_proj.", "logit_head.embed_proj.")),
    ),
    "Domino, each its own place": Layout(_z_lab(_DOMINO, architectures=["DominoDraftModel"]), gru=0, suffix=".bin"),
    "DFlash2": Layout(
        _z_lab(_SCALED, **_HYBRID, is_causal=False, architectures=["DFlash2DraftModel"]),
        masks=("both ways", "all"),
        candidates=4,
        scales=(1.5, 0.5),
        softcap=2.0,
    ),
    "DFlash2, speculators": Layout(
        _speculators("dflash2", 4, SLIDING, sliding_window_non_causal=True, sample_from_anchor=False, **_DFLASH2),
        block=4,
        masks=("as a block, both ways", "all"),
        own=True,
        candidates=4,
    ),
    # Those of Qwen3.8's larger models read eight.
    "DFlash2, all hidden states": Layout(
        lambda sizes, layers: _z_lab(_DFLASH2 | {"target_layer_ids": [*range(-1, layers)]})(sizes, layers),
        candidates=4,
        reads=lambda layers: tuple(range(layers + 1)),
    ),
}

LAYOUTS = {f"DFlash {name}": one for name, one in DFLASH.items()}
LAYOUTS |= {f"DSpark {name}": one for name, one in DSPARK.items()} | OTHERS


def weights_of(layout: Layout, target: PreTrainedModel, seed: int = 0) -> dict[str, Tensor]:
    """Random weights by our names, as the tests' own implementation reads them."""
    text = target.config.get_text_config()
    d, vocab = layout.width or text.hidden_size, text.vocab_size
    rows = max(4, vocab // 5) if layout.mapped else vocab
    read = len(layout.reads(text.num_hidden_layers)) * text.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (d, read), "hidden_norm.weight": (d,)}
    for layer in range(LAYERS):
        shapes |= {f"layers.{layer}.self_attn.{one}_proj.weight": (KEYS * HEAD, d) for one in "kv"}
        shapes |= {f"layers.{layer}.self_attn.{one}_norm.weight": (HEAD,) for one in "qk"}
        shapes |= {f"layers.{layer}.mlp.{one}_proj.weight": (64, d) for one in ("gate", "up")}
        shapes |= {f"layers.{layer}.{one}_layernorm.weight": (d,) for one in ("input", "post_attention")}
        shapes[f"layers.{layer}.self_attn.q_proj.weight"] = (HEADS * HEAD, d)
        shapes[f"layers.{layer}.self_attn.o_proj.weight"] = (d, HEADS * HEAD)
        shapes[f"layers.{layer}.mlp.down_proj.weight"] = (d, 64)
    shapes["norm.weight"] = (d,)
    if layout.own:
        shapes |= {"embed_tokens.weight": (vocab, d), "lm_head.weight": (rows, d)}
    if layout.markov:
        shapes |= {"markov_head.markov_w1.weight": (vocab, RANK), "markov_head.markov_w2.weight": (rows, RANK)}
    if layout.markov == "gated":
        shapes |= {"markov_head.gate_proj.weight": (RANK, d + RANK), "markov_head.gate_proj.bias": (RANK,)}
    if layout.markov == "rnn":
        shapes |= {
            "markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + d),
            "markov_head.joint_proj.bias": (3 * RANK,),
        }
    if layout.gru is not None:
        shapes |= {"prefix_gru.weight_ih_l0": (3 * GRU, d), "prefix_gru.weight_hh_l0": (3 * GRU, GRU)}
        shapes |= {"embed_proj.0.weight": (16, d + GRU), "embed_proj.2.weight": (vocab, 16)}
    if layout.candidates is not None:
        for outer in [f"layers.{layer}.{place}_conv" for layer in range(LAYERS) for place in ("attention", "mlp")]:
            shapes[f"{outer}.base_kernel"] = (2, TAPS, d)
            shapes[f"{outer}.kernel_projection.weight"] = (2 * TAPS * d // GROUP, d)
        shapes |= {f"candidate_selector.{one}_codebook": (vocab, RANK) for one in ("predecessor", "successor")}
        shapes["candidate_selector.hidden_projection.weight"] = (RANK, d)
    if layout.confidence is not None:
        shapes |= {"confidence_head.proj.weight": (1, d + layout.confidence), "confidence_head.proj.bias": (1,)}
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        # What corrects a row has to matter beside it.
        matters = name.startswith(
            ("markov_head", "confidence_head", "lm_head", "prefix_gru", "embed_proj", "candidate")
        )
        scale = 2.5 if matters else shape[-1] ** 0.5 / 2 if "base_kernel" in name else 1.0
        weights[name] = scale * torch.randn(shape, generator=generator) * shape[-1] ** -0.5
    if layout.mapped:
        kept = torch.randperm(vocab, generator=generator)[:rows].sort().values
        weights["d2t"] = kept - torch.arange(rows)
        weights["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, kept, True)
    return weights


def write_block(
    folder: pathlib.Path,
    target: PreTrainedModel,
    layout: Layout,
    weights: dict[str, Tensor] | None = None,
    **changes: Any,
) -> pathlib.Path:
    """The checkpoint in `folder`, whose configuration is changed like this. Returns the folder."""
    text = target.config.get_text_config()
    sizes = {
        "model_type": "qwen3",
        "hidden_size": layout.width or text.hidden_size,
        "intermediate_size": 64,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "head_dim": HEAD,
        "num_hidden_layers": LAYERS,
        "vocab_size": text.vocab_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e3,
        "layer_types": ["full_attention"] * LAYERS,
    }
    settings = layout.settings(sizes, text.num_hidden_layers)
    weights = weights_of(layout, target) if weights is None else weights
    if "d2t" in weights:
        settings["draft_vocab_size"] = len(weights["d2t"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings | changes))
    named = {_named(name, layout): tensor for name, tensor in weights.items()}
    if layout.suffix == ".bin":
        torch.save(named, folder / "pytorch_model.bin")
    else:
        save_file(named, folder / "model.safetensors")
    return folder


def _named(name: str, layout: Layout) -> str:
    for ours, theirs in layout.names:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name
