"""A transformer layer written out over whole texts: what heads and drafters of published formats are held to.

Weights go by the names that their files have, linear layers with a bias where there is one.
"""

import torch
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]


def norm(weights: Weights, name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], eps)


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def turned(x: Tensor, positions: Tensor, theta: float = 5e3) -> Tensor:
    """Rotary positions of [heads, tokens, size]."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * theta ** -(torch.arange(half) / half)
    (left, right), cos, sin = x.chunk(2, -1), angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def attention(
    weights: Weights, name: str, x: Tensor, size: int, rows: Tensor | None = None, seen: Tensor | None = None
) -> Tensor:
    """Attention with heads of this size, from the tokens of x [n, …] to `rows` [m, …], of which they are the last.

    rows: x itself unless told otherwise. seen: [n, m] bool; each token sees those up to itself.
    """
    rows = x if rows is None else rows
    places = torch.arange(len(rows))
    seen = places[-len(x) :, None] >= places if seen is None else seen

    def heads(part: str, of: Tensor) -> Tensor:
        split = linear(weights, f"{name}.{part}_proj", of).unflatten(-1, (-1, size)).transpose(0, 1)
        if part == "v":
            return split
        if f"{name}.{part}_norm.weight" in weights:
            split = norm(weights, f"{name}.{part}_norm", split)
        return turned(split, places[-len(of) :])

    queries, keys, values = heads("q", x), heads("k", rows), heads("v", rows)
    keys, values = (one.repeat_interleave(len(queries) // len(keys), 0) for one in (keys, values))
    shares = (queries @ keys.mT / size**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    return linear(weights, f"{name}.o_proj", (shares @ values).transpose(0, 1).flatten(1))


def feed_forward(weights: Weights, name: str, x: Tensor) -> Tensor:
    gated = functional.silu(linear(weights, f"{name}.gate_proj", x)) * linear(weights, f"{name}.up_proj", x)
    return linear(weights, f"{name}.down_proj", gated)
