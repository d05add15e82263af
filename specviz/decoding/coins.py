"""Where coins are flipped: all randomness in a run is one stream of uniforms from one seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from specviz.rules.draft import Uniforms
from specviz.rules.transfer import to_device


class Coins:
    """float32 uniforms, the same on every device, dealt round by round.

    Drawn for many rounds at once: a small tensor costs as much as a large one.
    """

    BLOCK = 64

    def __init__(self, seed: int, most_tokens: int, device: torch.device):
        self.generator = torch.Generator().manual_seed(seed)
        self.most_tokens = most_tokens
        self.device = device
        self.block: Iterator[Uniforms] = iter(())

    def flip(self) -> Uniforms:
        """The next round's share."""
        uniforms = next(self.block, None)
        if uniforms is None:
            widths = [self.most_tokens, self.most_tokens, 1]
            flat = to_device(torch.rand(self.BLOCK, sum(widths), generator=self.generator).double(), self.device)
            columns = flat.split(widths, dim=-1)
            self.block = map(Uniforms, columns[0].unbind(), columns[1].unbind(), columns[2].flatten().unbind())
            uniforms = next(self.block)
        return uniforms
