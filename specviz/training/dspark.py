"""The recipe ``parallel``: a DSpark head (arXiv 2607.05147), which drafts a block in one pass and corrects it from left
to right.

It is written in DeepSpec's layout: vLLM's and SGLang's loaders ask for these names and shapes (SGLang's, and
llama.cpp's, only of heads as wide as the target; SGLang and vLLM read speculators' own slots differently). Many blocks
are drafted in each block of text, all in one pass, and each row is corrected by the text's own token before it.
"""

import pathlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from specviz.parts.block_files import Sight
from specviz.parts.dspark import DSparkHead
from specviz.parts.mtp import last_scale
from specviz.parts.published import hidden_size_of, logit_width
from specviz.records.errors import SpecvizError
from specviz.training.data import write_on
from specviz.training.losses import distillation, overlap, temperature_of
from specviz.training.parts import Checkpoint, FrozenTarget, Logits, PartRecipe, layer_settings, read_states, sizes_of

#: Layers of a new head, slots of its blocks, and the rank of its Markov head.
_LAYERS, _BLOCK, _RANK = 2, 8, 128

#: Places in a block of text from which it drafts.
_ANCHORS = 64

#: The weight of what the confidence head learns, beside the head's own loss.
_CONFIDENCE = 0.1

#: The most pairs of tokens that a new Markov head begins with, and how many rows of theirs are computed at once.
_MOST_PAIRS, _ROWS = 2**28, 512

#: Blocks of text for a head that starts from a draft model, and how far what is fitted to it is drawn to 0.
_WRITTEN, _RIDGE = 64, 1e-2


class DSparkRecipe(PartRecipe):
    """Each row of a block learns the target's distribution after the text's tokens before it, and how much of it q
    covers, Σ min(p, q)."""

    name, part, depth, grows = "parallel", DSparkHead, "token", True

    def __init__(self, target: PreTrainedModel, start: pathlib.Path | PreTrainedModel | None = None, seed: int = 0):
        super().__init__(target, start, seed)
        sizes = self.student.sizes
        plain = replace(sizes, predicts_next=True, sights=(Sight(),) * len(sizes.sights))
        if sizes != replace(plain, embedding_scale=None, logit_scale=1.0, softcap=None):
            raise SpecvizError(
                "The DSpark head in {folder} lays out its blocks differently from what the recipe teaches, or "
                "scales its rows: leave out --start to train a new head.",
                "start",
                folder=start,
            )

    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Checkpoint:
        """As wide as the target, between its embeddings and output head; or as a draft model, with its own."""
        sizes = {"hidden_size": hidden_size_of(target)} if draft is None else sizes_of(draft, self.part.method)
        settings = _settings(target, sizes)
        tensors = _tensors(settings) | _followers(target if draft is None else draft, settings)
        if draft is None:
            tensors["norm.weight"] = last_scale(target)
        else:
            tensors |= _weights_from(draft, target, settings)
        return settings, tensors

    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Logits]:
        return ((logits, wanted) for logits, wanted, _ in self.rows(ids, step))

    def terms(self, ids: Tensor, step: int) -> Iterator[Tensor]:
        for logits, wanted, foreseen in self.rows(ids, step):
            term = distillation(logits, wanted, temperature_of(step))
            if foreseen is not None:
                term = term + _CONFIDENCE * functional.mse_loss(foreseen, overlap(logits, wanted))
            yield term

    def rows(self, ids: Tensor, step: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """At each depth of a draft: both logits, [n, vocab], and the estimates of Σ min(p, q), [n]."""
        head, size, length = self.student, self.student.sizes.block_size, ids.shape[1]
        # After a token at least, as in drafting, and where the text has a token for every slot.
        places = length - size
        if step is None:
            anchors = torch.arange(_ANCHORS, device=ids.device) * places // _ANCHORS
        else:
            anchors = torch.randperm(places, generator=torch.Generator().manual_seed(step))[:_ANCHORS].to(ids.device)
        text, slots = self.target.read(ids), (1 + anchors).unsqueeze(-1) + torch.arange(size, device=ids.device)
        hidden = self._hidden(ids, slots, text.features).unflatten(1, slots.shape).flatten(0, 1)
        unembed, memory = head.lm_head or self.target.head, None
        for depth, places in enumerate(slots.unbind(1)):
            row, before = hidden[:, depth], ids[:, places].flatten()
            if memory is None:
                memory = row.new_zeros(len(row), head.memory_width)
            logits, memory = head.corrected(depth, unembed(row), before, row, memory)
            yield logits, text.logits[:, places].flatten(0, 1), head.acceptance_forecast(before, row)

    def _hidden(self, ids: Tensor, slots: Tensor, features: Tensor) -> Tensor:
        """The hidden states [rows, blocks · slots, d] of blocks at the places `slots` [blocks, slots]."""
        head, (blocks, size) = self.student, slots.shape
        read = torch.full((len(ids), blocks, size), head.sizes.mask_id, device=ids.device)
        read[:, :, 0] = ids[:, slots[:, 0]]
        embed = head.embed_tokens or self.target.model.get_input_embeddings()
        state, cache = embed(read).flatten(1, 2), DynamicCache()
        text = functional.pad(head.fuse(features), (0, 0, 0, state.shape[1]))
        before = torch.arange(ids.shape[1], device=ids.device)
        turns = head.rotary_emb(state, torch.cat([before, slots.flatten()])[None])
        mask = seen_by_slots(slots, ids.shape[1])[None, None]
        for layer in head.layers:
            state = layer(state, text, turns, mask, cache)
        return head.norm(state)


def seen_by_slots(slots: Tensor, length: int) -> Tensor:
    """What the slots of blocks at these places [blocks, slots] see: the text of that length before their block, and
    their block. [blocks · slots, length + blocks · slots] bool."""
    blocks, size = slots.shape
    block = torch.arange(blocks, device=slots.device).repeat_interleave(size)
    before = torch.arange(length, device=slots.device) < slots[block, :1]
    return torch.cat([before, block.unsqueeze(-1) == block], -1)


def _settings(target: PreTrainedModel, sizes: dict[str, Any]) -> dict[str, Any]:
    """DeepSpec's config.json, which says it all at the top. sizes: of the layers, where not as wide as the target."""
    config = target.config.get_text_config()
    layers = layer_settings(target, _LAYERS, model_type="qwen3", **sizes)
    return layers | {
        "architectures": ["Qwen3DSparkModel"],
        "dtype": "bfloat16",
        "layer_types": ["full_attention"] * _LAYERS,
        "num_target_layers": config.num_hidden_layers,
        "target_hidden_size": config.hidden_size,
        # Layers whose outputs are read, and not hidden states.
        "target_layer_ids": [state - 1 for state in sorted(set(read_states(target)))],
        "mask_token_id": _mask_of(target),
        "block_size": _BLOCK,
        "num_anchors": _ANCHORS,
        "markov_rank": min(_RANK, layers["vocab_size"]),
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def _mask_of(target: PreTrainedModel) -> int:
    """A token that is hardly ever the text's last one: what pads or ends texts, or else the last of the vocabulary."""
    config = target.config.get_text_config()
    ends = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    width = logit_width(target)
    candidates = (token for token in (config.pad_token_id, ends) if token is not None and 0 <= token < width)
    return next(candidates, width - 1)


def _tensors(settings: dict[str, Any]) -> dict[str, Tensor]:
    """Of a head without embeddings and output head, by their names in the files: its layers add nothing yet."""
    d, inner, head = (settings[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    queries, keys = (head * settings[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    vocab, rank = settings["vocab_size"], settings["markov_rank"]
    read = settings["target_hidden_size"] * len(settings["target_layer_ids"])
    shapes = {"fc": (d, read), "markov_head.markov_w1": (vocab, rank), "markov_head.markov_w2": (vocab, rank)}
    shapes["confidence_head.proj"] = (1, d + rank)
    norms = {"norm": d, "hidden_norm": d}
    for layer in (f"layers.{index}" for index in range(settings["num_hidden_layers"])):
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        shapes |= {f"{attention}.{kind}_proj": (keys, d) for kind in "kv"} | {f"{attention}.q_proj": (queries, d)}
        shapes |= {f"{mlp}.{kind}_proj": (inner, d) for kind in ("gate", "up")}
        shapes |= {f"{attention}.o_proj": (d, queries), f"{mlp}.down_proj": (d, inner)}
        norms |= {f"{attention}.{kind}_norm": head for kind in "qk"}
        norms |= {f"{layer}.input_layernorm": d, f"{layer}.post_attention_layernorm": d}
    nothing = ("o_proj", "down_proj", "markov_w2", "confidence_head.proj")
    tensors = {
        f"{name}.weight": torch.zeros(shape) if name.endswith(nothing) else torch.randn(shape) * shape[1] ** -0.5
        for name, shape in shapes.items()
    }
    tensors |= {f"{name}.weight": torch.ones(size) for name, size in norms.items()}
    return tensors | {"confidence_head.proj.bias": torch.zeros(1)}


@torch.no_grad()
def _followers(model: PreTrainedModel, settings: dict[str, Any]) -> dict[str, Tensor]:
    """A Markov head that knows which tokens follow each token, as far as its rank allows: what a model's logits after
    that token alone add to those after any. To learn that from text takes thousands of steps.

    None for vocabularies that are too large for such a table.
    """
    vocab, tokens = settings["vocab_size"], len(model.get_input_embeddings().weight)
    if tokens**2 > _MOST_PAIRS:
        return {}
    all_tokens = torch.arange(tokens, device=model.device).unsqueeze(-1)
    rows = torch.cat([model(batch, use_cache=False).logits[:, -1].float() for batch in all_tokens.split(_ROWS)])
    rows = rows - rows.mean(-1, keepdim=True)
    before, sizes, after = torch.svd_lowrank(rows - rows.mean(0), settings["markov_rank"], niter=4)
    halves = {"markov_head.markov_w1": before, "markov_head.markov_w2": after}
    return {
        f"{name}.weight": functional.pad(half * sizes.sqrt(), (0, 0, 0, vocab - len(half)))
        for name, half in halves.items()
    }


def _weights_from(draft: PreTrainedModel, target: PreTrainedModel, settings: dict[str, Any]) -> dict[str, Tensor]:
    """What a head takes from a draft model: its embeddings, output head and last norm, and its first layer.

    That reads the text's tokens as it did there: what is made of the target's hidden states are the draft model's
    embeddings, as nearly as can be.
    """
    weights = {name.removeprefix("model."): weight for name, weight in draft.state_dict().items()}
    tensors = {name: weights[name] for name in weights if name.startswith(("layers.0.", "norm."))}
    for name in ("embed_tokens.weight", "lm_head.weight"):
        # Checkpoints with one tokenizer may be padded to different widths.
        tensors[name] = functional.pad(weights[name], (0, 0, 0, settings["vocab_size"] - len(weights[name])))
    states = tuple(layer + 1 for layer in settings["target_layer_ids"])
    # A text that the target writes, after any tokens.
    prompts = torch.randint(len(weights["embed_tokens.weight"]), (_WRITTEN, 1))
    ids = write_on(target, prompts, temperature=1.0, seed=0).long().to(target.device)
    frozen = FrozenTarget(target, states)
    features = torch.cat([frozen.read(batch).features.flatten(0, 1) for batch in ids.split(8)]).float()
    wanted = tensors["embed_tokens.weight"].to(features)[ids.flatten()]
    squares = features.mT @ features
    squares.diagonal().add_(_RIDGE * squares.diagonal().mean())
    tensors["fc.weight"] = torch.linalg.solve(squares, features.mT @ wanted).mT
    return tensors | {"hidden_norm.weight": tensors["layers.0.input_layernorm.weight"]}
