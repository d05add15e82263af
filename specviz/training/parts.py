"""What the recipes of trained parts share: the student is a part as its loader reads it, and the target stays fixed.

A recipe says three things: `PartRecipe.new`, the settings and tensors of a part that has learnt nothing yet, as they
lie in published files; `PartRecipe.drafts`, its logits and the target's at each depth; and `part`, the class that reads
the files. They are written, read, trained, and written again under the same names, so a part trained here loads
wherever its format is read. Recipes of heads that draft token by token (EAGLE-3, MTP) are `ChainRecipe`s.
"""

from __future__ import annotations

import json
import pathlib
import tempfile
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specviz.models.trained_parts import load_part
from specviz.parts.formats import recognise
from specviz.parts.head_passes import HeadModel, PublishedHead
from specviz.parts.part_files import PartFiles
from specviz.parts.published import MAPS, PublishedPart, logit_width
from specviz.records.errors import SpecvizError
from specviz.training.loop import Recipe
from specviz.training.losses import agreement, distillation, of_one_width, temperature_of

#: The weight of each depth relative to the one before (Medusa, arXiv 2401.10774, §2.2.1: λ_k).
_DECAY = 0.8

#: Draft steps of a `ChainRecipe` that are unrolled to learn from, and to measure.
_UNROLLED, _MEASURED = 4, 5

#: Positions of a part of a target that has no limit.
_POSITIONS = 2**17

#: A repository on the Hub takes files up to 10 MB without Git LFS.
_SHARD = "9MB"

#: The student's and the target's logits at one depth, [rows, n, vocab] each.
Logits = tuple[Tensor, Tensor]

#: A part's config.json and its tensors by their names in the files.
Checkpoint = tuple[dict[str, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class TargetOutputs:
    """The target's outputs for each token it reads."""

    features: Tensor  # [rows, n, layers · d], its hidden states, side by side
    logits: Tensor  # [rows, n, vocab], of the token after it


class FrozenTarget:
    """A target whose weights stay fixed. feature_layers: the hidden states that a trained part reads."""

    def __init__(self, model: PreTrainedModel, feature_layers: tuple[int, ...] = ()):
        self.model = model.eval().requires_grad_(False)
        self.feature_layers = feature_layers

    @torch.no_grad()
    def read(self, ids: Tensor) -> TargetOutputs:
        """One pass over blocks [rows, n] int64."""
        output = self.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        features = torch.cat([output.hidden_states[layer] for layer in self.feature_layers], -1)
        return TargetOutputs(features, output.logits)

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        """[rows, n, vocab] of one pass over blocks [rows, n] int64."""
        return self.model(input_ids=ids, use_cache=False).logits

    def head(self, hidden: Tensor) -> Tensor:
        """The output head on [..., d]: logits [..., vocab]. Gradients flow through it but not into it."""
        return self.model.get_output_embeddings()(hidden)


class PartRecipe(Recipe):
    """0.5 · KL + TV to the frozen target's distribution at each depth, weighted 0.8^k.

    start: the folder of such a part, or a draft model in float32, to train on; None: a new part. Raises SpecvizError
    (field ``start``) for what the recipe cannot start from.
    """

    part: ClassVar[type[PublishedPart]]
    depth: ClassVar[str]  # the word for one
    grows: ClassVar[bool] = False  # whether it can start from a draft model

    def __init__(self, target: PreTrainedModel, start: pathlib.Path | PreTrainedModel | None = None, seed: int = 0):
        torch.manual_seed(seed)
        self.device, self.dtype, self.taught_by = target.device, target.dtype, target
        if isinstance(start, PreTrainedModel) and not self.grows:
            raise SpecvizError(
                "The recipe {name} starts from a part of its own kind ({method}), not from a draft model.",
                "start",
                name=self.name,
                method=self.part.method,
            )
        with tempfile.TemporaryDirectory() as temporary:
            if isinstance(start, pathlib.Path):
                folder = start
            else:
                folder = pathlib.Path(temporary)
                write_part(folder, *self.new(target, start))
            files = PartFiles.at(folder)
            form = recognise(files)
            kind = None if form is None else form.drafter
            student = load_part(self.part.kind, folder, target) if kind in (None, self.part.kind) else None
            held = files.tensors()
        if type(student) is not self.part:
            raise SpecvizError(
                "{folder} holds no part that the recipe {name} trains ({method}).",
                "start",
                folder=folder,
                name=self.name,
                method=self.part.method,
            )
        if student.columns is not None:
            raise SpecvizError(
                "The part in {folder} drafts from some of the target's tokens, but recipes teach all of them: "
                "leave out --start to train a new part.",
                "start",
                folder=folder,
            )
        self.settings = files.settings
        # Without maps of the vocabulary, which is the target's own: vLLM would refuse them.
        self.held = {name: tensor for name, tensor in held.items() if name.rpartition(".")[2] not in MAPS}
        self.student = student.float().requires_grad_(True)
        self.target = FrozenTarget(target, self.student.feature_layers)

    @abstractmethod
    def new(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> Checkpoint:
        """A part for this target that has learnt nothing yet, or what this draft model knows.

        Raises SpecvizError: field ``drafter`` if there can be none for this target, ``start`` for a draft of a shape
        that it cannot start from.
        """

    @abstractmethod
    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Logits]:
        """The student's and the target's logits at each depth, of blocks [rows, n] int64. step: of the training; None
        to measure."""

    def terms(self, ids: Tensor, step: int) -> Iterator[Tensor]:
        """What is learnt from at each depth."""
        return (distillation(*logits, temperature_of(step)) for logits in self.drafts(ids, step))

    def loss(self, ids: Tensor, step: int) -> Tensor:
        terms = list(self.terms(ids, step))
        weights = [_DECAY**k for k in range(len(terms))]
        return sum(weight * term for weight, term in zip(weights, terms)) / sum(weights)

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        return {f"{self.depth} {k}": agreement(*logits) for k, logits in enumerate(self.drafts(ids, None), start=1)}

    def save(self, folder: pathlib.Path) -> None:
        weights = self.student.state_dict()
        write_part(folder, self.settings, self.held | {self.student.names[name]: weights[name] for name in weights})


class ChainRecipe(PartRecipe):
    """Of a head that drafts token by token on its own states: it learns at each unrolled draft step (training-time
    test, EAGLE-3, arXiv 2503.01840, §3.2)."""

    part: ClassVar[type[PublishedHead]]
    depth = "step"

    def drafts(self, ids: Tensor, step: int | None) -> Iterator[Logits]:
        return self.chains(ids, _MEASURED if step is None else _UNROLLED)

    def chains(self, ids: Tensor, steps: int) -> Iterator[Logits]:
        """Both logits at every draft step, for chains from n rows.

        The chain from row t reads the target's features up to t and continues on the head's own states, as in drafting;
        its tokens are the text's.
        """
        text, head, cache, n = self.target.read(ids), self.student, DynamicCache(), ids.shape[1] - steps
        model = HeadModel(head, self.target.model)
        state = head.fuse(text.features[:, :n])
        for j in range(steps):
            ahead = slice(1 + j, 1 + j + n)
            turns = head.turns(torch.arange(j, j + n, device=ids.device)[None], torch.float32)
            attending = {"attention_mask": seen_by_chains(n, j, ids.device), "cache": cache}
            hidden = head.read(model.embed(ids[:, ahead]), state, position_embeddings=tuple(turns), **attending)
            state = head.fed_back(hidden)
            yield of_one_width(model.logits(hidden), text.logits[:, ahead])


def seen_by_chains(n: int, step: int, device: torch.device) -> Tensor:
    """The rows that chains from n rows see at this draft step, [1, 1, n, (step + 1) · n] bool.

    Of the first step's rows those up to their own; of the later steps only their own.
    """
    diagonal = torch.eye(n, dtype=torch.bool, device=device)
    return torch.cat([torch.ones_like(diagonal).tril(), *[diagonal] * step], -1)[None, None]


def write_part(folder: pathlib.Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Writes config.json and the tensors as safetensors, in shards below 9 MB; those with a fraction in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    stored = {
        name: tensor.detach().to("cpu", torch.bfloat16 if tensor.is_floating_point() else tensor.dtype).contiguous()
        for name, tensor in tensors.items()
    }
    save_torch_state_dict(stored, folder, max_shard_size=_SHARD)


def read_states(target: PreTrainedModel) -> list[int]:
    """Three of the target's hidden states that a new part reads: from a quarter and from five eighths of its depth, and
    what enters its last layer, as servers hand out no later one. Counted as transformers' ``hidden_states``."""
    layers = target.config.get_text_config().num_hidden_layers
    return [max(1, min(layers - 1, place)) for place in (round(layers / 4), round(layers * 5 / 8), layers - 1)]


def layer_settings(target: PreTrainedModel, layers: int, **sizes: Any) -> dict[str, Any]:
    """Of layers like a Llama's, as transformers' configuration states them, where `sizes` do not say otherwise as wide
    as the target, with heads of 64 or more."""
    config = target.config.get_text_config()
    width = sizes.get("hidden_size", config.hidden_size)
    heads = next(count for count in range(max(1, width // 64), 0, -1) if width % (2 * count) == 0)
    return {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": -(-8 * width // (3 * 64)) * 64,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": width // heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "max_position_embeddings": getattr(config, "max_position_embeddings", _POSITIONS),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": logit_width(target),
    } | sizes


def sizes_of(draft: PreTrainedModel, method: str, layers: int | None = None) -> dict[str, Any]:
    """`layer_settings` of a draft model's layers, to make a part of it.

    layers: as many as the part has; None: any number. Raises SpecvizError (field ``start``) for another number of them,
    and unless they are a Llama's with no biases.
    """
    config = draft.config
    plain = config.model_type == "llama" and config.hidden_act == "silu" and not config.attention_bias | config.mlp_bias
    if not plain or layers not in (None, config.num_hidden_layers):
        raise SpecvizError(
            "A part of the kind {method} can start from a draft model that is a Llama without biases{layers}; "
            "leave out --start to train a new part.",
            "start",
            method=method,
            layers="" if layers is None else f" ({layers} layers)",
        )
    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    return {name: getattr(config, name) for name in (*names, "rms_norm_eps", "rope_parameters")}


def speculators_settings(
    target: PreTrainedModel, algorithm: str, architecture: str, proposed: int, layers: dict[str, Any]
) -> dict[str, Any]:
    """What speculators' config.json says of every kind of part.

    proposed: tokens of a draft. layers: `layer_settings`.
    """
    named = target.name_or_path
    proposal = {"proposal_type": "greedy", "speculative_tokens": proposed}
    return {
        "architectures": [architecture],
        "dtype": "bfloat16",
        "speculators_model_type": algorithm,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": {
                # A path here says nothing elsewhere.
                "name_or_path": pathlib.Path(named).name if pathlib.Path(named).exists() else named,
                "architectures": target.config.architectures or [type(target).__name__],
            },
        },
        "transformer_layer_config": layers,
        "tie_word_embeddings": False,
    }
