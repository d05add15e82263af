"""Where coins are flipped: all randomness in a run is one stream of uniforms from one seed, unless set by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from specviz.records.coins import SetCoin
from specviz.rules.draft import Uniforms
from specviz.rules.transfer import to_device


class Coins:
    """float32 uniforms, the same on every device, dealt round by round.

    Drawn for many rounds at once: a small tensor costs as much as a large one.
    """

    BLOCK = 64

    def __init__(self, seed: int, most_tokens: int, device: torch.device, by_hand: Sequence[SetCoin] = ()):
        self.generator = torch.Generator().manual_seed(seed)
        self.most_tokens = most_tokens
        self.device = device
        self.block: Iterator[Uniforms] = iter(())
        self.by_hand = by_hand
        self.rounds = 0

    def flip(self) -> Uniforms:
        """The next round's share."""
        uniforms = self._dealt()
        for coin in self.by_hand:
            if coin.round == self.rounds:
                uniforms = _with(uniforms, coin)
        self.rounds += 1
        return uniforms

    def _dealt(self) -> Uniforms:
        uniforms = next(self.block, None)
        if uniforms is None:
            widths = [self.most_tokens, self.most_tokens, 1]
            flat = to_device(torch.rand(self.BLOCK, sum(widths), generator=self.generator).double(), self.device)
            columns = flat.split(widths, dim=-1)
            self.block = map(Uniforms, columns[0].unbind(), columns[1].unbind(), columns[2].flatten().unbind())
            uniforms = next(self.block)
        return uniforms


def _with(uniforms: Uniforms, coin: SetCoin) -> Uniforms:
    """The same but for one coin; a round that has no such token has no use for it."""
    u = torch.tensor(coin.u).item()  # as float32, like all coins
    if coin.token is None:
        return replace(uniforms, next=torch.full_like(uniforms.next, u))
    accept = uniforms.accept.clone()
    accept[coin.token : coin.token + 1] = u
    return replace(uniforms, accept=accept)
