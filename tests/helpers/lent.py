"""A stand-in for the package `spaces`: calls are carried out here, and all that crosses is pickled."""

import pickle
import sys
import types

from pytest import MonkeyPatch

from specviz.models.pair import ModelPair
from specviz.ui import lending


def lend(monkeypatch: MonkeyPatch, on: bool = True, factor: float = 1.5, size: str = "large") -> list[int]:
    """From now on GPUs are lent to every pair by the call, or `spaces` lies there with ZeroGPU off; returns the seconds
    asked for. factor, size: what the package says of the card."""
    asked = []

    def gpu(duration):
        def decorate(function):
            def call(*arguments):
                asked.append(duration(*arguments))
                for value in function(*pickle.loads(pickle.dumps(arguments))):
                    yield pickle.loads(pickle.dumps(value))

            return call

        return decorate

    config = types.SimpleNamespace(Config=types.SimpleNamespace(zero_gpu=on))
    of_card = types.SimpleNamespace(get_config=lambda: {"duration_factor": factor})
    zero = types.SimpleNamespace(config=of_card, default_gpu_size=lambda: size)
    spaces = types.SimpleNamespace(GPU=gpu, config=config, zero=zero)
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    monkeypatch.setattr(lending, "spaces", spaces, raising=False)
    monkeypatch.setattr(ModelPair, "lent", on)
    return asked
