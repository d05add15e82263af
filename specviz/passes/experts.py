"""A mixture of experts: which of them a pass reads, noted as its routers choose them."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn


def experts_of(model: nn.Module) -> list[nn.Module]:
    """The experts of each layer that has any; each of their own weights is [experts, ...]."""
    return [part for part in model.modules() if type(part).__name__.endswith("Experts")]


@contextlib.contextmanager
def noting_choices(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within it, a pass of this model itself adds each layer's choice, [tokens, experts a token] int64. Layers that
    multiply with all experts choose nothing."""
    choices: list[Tensor] = []

    def note(part: nn.Module, given: tuple[object, ...]) -> None:
        choices.extend(one for one in given if isinstance(one, Tensor) and not one.is_floating_point())

    hooks = [part.register_forward_pre_hook(note) for part in experts_of(model)]
    try:
        yield choices
    finally:
        for hook in hooks:
            hook.remove()
