"""A stand-in for the package `spaces` with ZeroGPU on: calls are carried out here, and all that crosses is pickled."""

from __future__ import annotations

import pickle
import sys
import types

from pytest import MonkeyPatch

from specviz.ui import device


def lend(monkeypatch: MonkeyPatch) -> list[int]:
    """From now on GPUs are lent by the call; returns the seconds of each call that asks for one."""
    asked = []

    def gpu(duration):
        def decorate(function):
            def call(*arguments):
                asked.append(duration(*arguments))
                for value in function(*pickle.loads(pickle.dumps(arguments))):
                    yield pickle.loads(pickle.dumps(value))

            return call

        return decorate

    config = types.SimpleNamespace(Config=types.SimpleNamespace(zero_gpu=True))
    spaces = types.SimpleNamespace(GPU=gpu, config=config)
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    monkeypatch.setattr(device, "spaces", spaces, raising=False)
    return asked
