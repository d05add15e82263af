"""Whole models: a small Llama from scratch as target, and one that is distilled from the target to draft for it.

The target has losses at early exits, so that its first layers can draft (LayerSkip, arXiv 2404.16710); the draft model
learns from the target's distributions, not from the text (arXiv 2310.08461).
"""

import copy
import pathlib
import random

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.llama.modeling_llama import LlamaMLP

from specviz.records.errors import SpecvizError
from specviz.training.loop import Recipe, agreement, distillation, next_token, of_one_width
from specviz.training.parts import FrozenTarget

#: Layers after which the model may exit early, and the weight of an exit's loss relative to the last layer's.
EXITS = (2, 3)
_EXIT_WEIGHT = 0.25


def small_llama(
    tokenizer: PreTrainedTokenizerBase, layers: int, width: int, positions: int = 1024, seed: int = 0
) -> LlamaForCausalLM:
    """An untrained Llama for this tokenizer, in float32: heads of 64, embeddings tied. width: a multiple of 64."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=-(-8 * width // (3 * 64)) * 64,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


class WidenedMLP(nn.Module):
    """A feed-forward with further units; `join` makes one of the two."""

    def __init__(self, present: LlamaMLP, added: LlamaMLP):
        super().__init__()
        self.present, self.added = present, added

    def forward(self, x: Tensor) -> Tensor:
        return self.present(x) + self.added(x)


@torch.no_grad()
def add_units(model: LlamaForCausalLM, feed_forward: int, seed: int = 0) -> None:
    """Gives each layer's feed-forward units, in place, up to this many: the first step of training a larger model.

    The new units are random and nothing reads them yet, so the model writes what it wrote (Net2Net, arXiv 1511.05641).

    Raises SpecvizError (field ``feed-forward``) if the model is as wide already, has biases there, or is no Llama.
    """
    present = model.config.intermediate_size
    if model.config.model_type != "llama" or model.config.mlp_bias or feed_forward <= present:
        raise SpecvizError(
            "Only the feed-forward of a Llama without biases can be widened, and only beyond its {present} units.",
            "feed-forward",
            present=present,
        )
    generator = torch.Generator().manual_seed(seed)
    sizes = copy.deepcopy(model.config)
    sizes.intermediate_size = feed_forward - present
    for layer in model.model.layers:
        added = LlamaMLP(sizes).to(model.device)
        for name in ("gate_proj", "up_proj"):
            weight = getattr(added, name).weight
            spread = getattr(layer.mlp, name).weight.std().item()
            weight.copy_(torch.empty(weight.shape).normal_(0, spread, generator=generator))
        added.down_proj.weight.zero_()
        layer.mlp = WidenedMLP(layer.mlp, added)


def freeze_all_but_added(model: LlamaForCausalLM) -> None:
    """From here on only the units of `add_units` learn."""
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.mlp.added.requires_grad_(True)


@torch.no_grad()
def join(model: LlamaForCausalLM) -> None:
    """Makes one feed-forward, in place, of each and its further units: the model is an ordinary Llama again."""
    for layer in model.model.layers:
        parts = (layer.mlp.present, layer.mlp.added)
        sizes = copy.deepcopy(model.config)
        sizes.intermediate_size = sum(part.intermediate_size for part in parts)
        whole = LlamaMLP(sizes)
        for name, along in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
            weight = torch.cat([getattr(part, name).weight for part in parts], along)
            getattr(whole, name).weight = nn.Parameter(weight)
        layer.mlp = whole
    model.config.intermediate_size = sizes.intermediate_size


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: pathlib.Path) -> None:
    """Writes model and tokenizer in transformers' format: bfloat16, shards below 9 MB."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder, max_shard_size="9MB")
    tokenizer.save_pretrained(folder)


class TargetRecipe(Recipe):
    """Next token, plus 0.25 × next token from layer 2 or 3, drawn for each step, through final norm and head."""

    name = "target"

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype, seed: int = 0):
        self.student, self.tokenizer = model, tokenizer
        self.device, self.dtype = model.device, dtype
        self.exits = [layer for layer in EXITS if layer < model.config.num_hidden_layers]
        self.seed = seed

    def loss(self, ids: Tensor, step: int) -> Tensor:
        output = self.student(input_ids=ids, output_hidden_states=True, use_cache=False)
        loss = next_token(output.logits, ids)
        if not self.exits:
            return loss
        layer = random.Random(f"{self.seed} {step}").choice(self.exits)
        return loss + _EXIT_WEIGHT * next_token(self._exit(output.hidden_states[layer]), ids)

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        output = self.student(input_ids=ids, output_hidden_states=True, use_cache=False)
        losses = {f"exit at {layer}": next_token(self._exit(output.hidden_states[layer]), ids) for layer in self.exits}
        return {name: loss.view(1) for name, loss in ({"last layer": next_token(output.logits, ids)} | losses).items()}

    def save(self, folder: pathlib.Path) -> None:
        model = self.student
        if isinstance(model.model.layers[0].mlp, WidenedMLP):
            model = copy.deepcopy(model)
            join(model)
        save_model(model, self.tokenizer, folder)

    def _exit(self, hidden: Tensor) -> Tensor:
        return self.student.lm_head(self.student.model.norm(hidden))


class DraftRecipe(Recipe):
    """0.5 · KL + TV to the frozen target's distribution at every row. draft: the student, in float32."""

    name = "draft"

    def __init__(self, target: PreTrainedModel, draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase):
        self.target, self.student, self.tokenizer = FrozenTarget(target), draft, tokenizer
        self.device, self.dtype = target.device, target.dtype

    def loss(self, ids: Tensor, step: int) -> Tensor:
        return distillation(*self._both(ids))

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        return {"draft": agreement(*self._both(ids))}

    def save(self, folder: pathlib.Path) -> None:
        save_model(self.student, self.tokenizer, folder)

    def _both(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return of_one_width(self.student(input_ids=ids, use_cache=False).logits, self.target.logits(ids))
