"""Linear layers that read the same inputs as one product: on a GPU that is one kernel in place of several.

Their weights are laid side by side, and each layer keeps its own as a part of them.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Bytes at whose multiples kernels like weights to begin.
_ALIGNED = 16


def joinable(layer: nn.Module, groups: Sequence[tuple[str, ...]], shared: set[int]) -> list[tuple[str, ...]]:
    """Those of these groups, names of linear layers in `layer` that read the same, whose products can be one.

    shared: the `id` of each weight that several modules have.
    """
    groups_to_join = []
    for names in groups:
        parts = [layer.get_submodule(name) for name in names]
        weights = [weight for part in parts for weight in part.parameters()]
        kinds = {
            (part.bias is None, *((weight.dtype, weight.device) for weight in part.parameters())) for part in parts
        }
        once = len(set(names)) == len(names) and not any(id(weight) in shared for weight in weights)
        whole_rows = all(weight.is_contiguous() for weight in weights)
        aligned = parts[0].in_features * parts[0].weight.element_size() % _ALIGNED == 0
        if len(kinds) == 1 and once and whole_rows and aligned and all(map(_can_lie_together, _by_kind(parts))):
            groups_to_join.append(names)
    return groups_to_join


def join(layer: nn.Module, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Has these linear layers of a copy of a layer computed as one product.

    Returns, for the name of each weight that it has now, the names of those in whose place it is.
    """
    joined = _Joined([layer.get_submodule(name) for name in names])
    for place, name in enumerate(names):
        layer.set_submodule(name, _Part(joined, place))
    kinds = [kind for kind, _ in joined.named_parameters()]
    return {f"{names[0]}.joined.{kind}": tuple(f"{name}.{kind}" for name in names) for kind in kinds}


@torch.inference_mode(False)
@torch.no_grad()
def laid_together(weights: Sequence[nn.Parameter]) -> Tensor:
    """All rows of these weights as one tensor, of which they are parts from now on: no more memory, the same bits.

    Weights that lie together stay where they are.
    """
    if not _lie_together(weights):
        joined = torch.cat(list(weights))
        for weight, rows in zip(weights, joined.split([len(weight) for weight in weights]), strict=True):
            weight.data = rows
    first = weights[0].detach()
    return first.as_strided((sum(map(len, weights)), *first.shape[1:]), first.stride())


class _Joined(nn.Module):
    """The products of several linear layers; a `_Part` stands in the place of each."""

    def __init__(self, parts: Sequence[nn.Linear]):
        super().__init__()
        self.sizes = [part.out_features for part in parts]
        self.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
        self.bias = None
        if parts[0].bias is not None:
            self.bias = nn.Parameter(torch.cat([part.bias for part in parts]), requires_grad=False)
        self.read: Tensor | None = None
        self.products: Sequence[Tensor] = ()

    def part(self, x: Tensor, place: int) -> Tensor:
        """[..., outputs] of one layer; the first to ask has all of them computed."""
        if x is not self.read:
            self.read, self.products = x, functional.linear(x, self.weight, self.bias).split(self.sizes, -1)
        return self.products[place]


class _Part(nn.Module):
    def __init__(self, joined: _Joined, place: int):
        super().__init__()
        self.place = place
        # One of the modules of the first alone: its weights have one name.
        (self._modules if place == 0 else self.__dict__)["joined"] = joined

    def forward(self, x: Tensor) -> Tensor:
        return self.joined.part(x, self.place)


def _by_kind(parts: Sequence[nn.Linear]) -> list[tuple[nn.Parameter, ...]]:
    """The weights of these linear layers, and their biases if they have any."""
    return list(zip(*(part.parameters() for part in parts), strict=True))


def _can_lie_together(weights: Sequence[Tensor]) -> bool:
    """True if they do, or if the memory of each holds nothing else, and so comes free when it moves."""
    return _lie_together(weights) or all(weight.untyped_storage().nbytes() == weight.nbytes for weight in weights)


def _lie_together(weights: Sequence[Tensor]) -> bool:
    """True if they lie one after the other in one piece of memory."""
    storage = weights[0].untyped_storage().data_ptr()
    return all(
        second.untyped_storage().data_ptr() == storage and second.data_ptr() == first.data_ptr() + first.nbytes
        for first, second in itertools.pairwise(weights)
    )
