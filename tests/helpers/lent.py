"""A stand-in for the package `spaces`: calls are carried out here, and all that crosses is pickled."""

import pickle
import sys
import types

from pytest import MonkeyPatch

from specviz.ui import device


def lend(monkeypatch: MonkeyPatch, on: bool = True) -> list[int]:
    """From now on GPUs are lent by the call, or `spaces` lies there with ZeroGPU off; returns the seconds asked for."""
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
    spaces = types.SimpleNamespace(GPU=gpu, config=config)
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    monkeypatch.setattr(device, "spaces", spaces, raising=False)
    return asked
