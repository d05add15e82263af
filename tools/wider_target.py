"""Trains further units of a target's feed-forward, while everything else stays bit by bit as it was.

``python -m tools.wider_target UNITS --start FOLDER …``, with the options of ``python -m specviz.training target``.
"""

import copy
import pathlib
import sys

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from specviz.training import __main__ as command
from specviz.training.loop import Schedule, train
from specviz.training.models import TargetRecipe


def main(units: str, *arguments: str) -> None:
    options = command._parser().parse_args(["target", *arguments])
    command._check(options)
    given, corpus = command._from_scratch(options)
    add_units(given.student, int(units), options.seed)
    recipe = WiderRecipe(given.student, given.tokenizer, given.dtype, options.seed)
    work = options.work or options.out
    train(recipe, corpus, Schedule(options.tokens, options.batch, options.lr, work, options.seed), options.out)


class WiderRecipe(TargetRecipe):
    """What is saved is an ordinary Llama."""

    def save(self, folder: pathlib.Path) -> None:
        model = copy.deepcopy(self.student)
        join(model)
        TargetRecipe(model, self.tokenizer, self.dtype).save(folder)


class WidenedMLP(nn.Module):
    """A feed-forward with further units; `join` makes one of the two."""

    def __init__(self, present: LlamaMLP, added: LlamaMLP):
        super().__init__()
        self.present, self.added = present, added

    def forward(self, x: Tensor) -> Tensor:
        return self.present(x) + self.added(x)


@torch.no_grad()
def add_units(model: LlamaForCausalLM, feed_forward: int, seed: int = 0) -> None:
    """Gives each feed-forward of a Llama without biases units, in place, up to this many; only they learn from then on.

    The new units are random and nothing reads them yet, so the model writes what it wrote (Net2Net, arXiv 1511.05641).
    """
    present = model.config.intermediate_size
    model.requires_grad_(False)
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


if __name__ == "__main__":
    main(*sys.argv[1:])
