"""A target from scratch, with losses at early exits so that its first layers can draft: LayerSkip, arXiv 2404.16710."""

from __future__ import annotations

import copy
import pathlib
import random

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from specviz.records.errors import SpecvizError
from specviz.training.loop import Recipe
from specviz.training.losses import next_token

#: Layers after which the model may exit early, and the weight of an exit's loss beside the last layer's.
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


@torch.no_grad()
def widen(model: LlamaForCausalLM, feed_forward: int, seed: int = 0) -> None:
    """Widens each layer's feed-forward in place to this many hidden units: the first step of training a larger model.

    The new units are random and nothing reads them yet, so the model writes what it wrote (Net2Net, arXiv 1511.05641).

    Raises SpecvizError (field ``feed-forward``) if the model is wider already, or no Llama.
    """
    present = model.config.intermediate_size
    if model.config.model_type != "llama" or feed_forward < present:
        raise SpecvizError(
            "Only a Llama's feed-forward can be widened, and only beyond its {present} units.",
            "feed-forward",
            present=present,
        )
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        mlp = layer.mlp
        for projection in (mlp.gate_proj, mlp.up_proj):
            new = torch.empty(feed_forward - present, model.config.hidden_size)
            new.normal_(0, projection.weight.std().item(), generator=generator)
            projection.weight = nn.Parameter(torch.cat([projection.weight, new.to(model.device)]))
            projection.out_features = feed_forward
        unread = mlp.down_proj.weight.new_zeros(model.config.hidden_size, feed_forward - present)
        mlp.down_proj.weight = nn.Parameter(torch.cat([mlp.down_proj.weight, unread], 1))
        mlp.down_proj.in_features = feed_forward
        mlp.intermediate_size = feed_forward
    model.config.intermediate_size = feed_forward


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
        save_model(self.student, self.tokenizer, folder)

    def _exit(self, hidden: Tensor) -> Tensor:
        return self.student.lm_head(self.student.model.norm(hidden))
