"""Whole models: a small Llama from scratch as target, and one that is distilled from the target to draft for it.

The target has losses at early exits, so that its first layers can draft (LayerSkip, arXiv 2404.16710); the draft model
learns from the target's distributions, not from the text (arXiv 2310.08461).
"""

import copy
import pathlib
import random
from typing import ClassVar

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from specviz.training.loop import Recipe
from specviz.training.losses import agreement, distillation, next_token, of_one_width, temperature_of
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


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: pathlib.Path) -> None:
    """Writes model and tokenizer in transformers' format: bfloat16, shards below 9 MB."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder, max_shard_size="9MB")
    tokenizer.save_pretrained(folder)


class TargetRecipe(Recipe):
    """Next token, plus 0.25 × next token from layer 2 or 3, drawn for each step, through final norm and head."""

    name: ClassVar[str] = "target"

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


class DraftRecipe(Recipe):
    """0.5 · KL + TV to the frozen target's distribution at every row. draft: the student, in float32."""

    name: ClassVar[str] = "draft"

    def __init__(self, target: PreTrainedModel, draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase):
        self.target, self.student, self.tokenizer = FrozenTarget(target), draft, tokenizer
        self.taught_by = target
        self.device, self.dtype = target.device, target.dtype

    def loss(self, ids: Tensor, step: int) -> Tensor:
        return distillation(*self._logits(ids), temperature_of(step))

    def measure(self, ids: Tensor) -> dict[str, Tensor]:
        return {"draft": agreement(*self._logits(ids))}

    def save(self, folder: pathlib.Path) -> None:
        save_model(self.student, self.tokenizer, folder)

    def _logits(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        return of_one_width(self.student(input_ids=ids, use_cache=False).logits, self.target.logits(ids))
