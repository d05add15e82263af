"""ZeroGPU, which lends a GPU to a process for one call. No torch: the page asks before it is loaded."""

import sys


def is_zero_gpu() -> bool:
    """True if ZeroGPU is on, as the package `spaces` is configured, which every Gradio Space has.

    In the process that serves the page there is no GPU then: `spaces` emulates one, in the thread that imported it
    (`specviz.ui.device`), so that weights can be "moved" there; each call runs in a process that is forked for it.
    """
    spaces = sys.modules.get("spaces")
    return spaces is not None and spaces.config.Config.zero_gpu


def is_lent(device_type: str) -> bool:
    """True if devices of this type are there only during a call."""
    return device_type == "cuda" and is_zero_gpu()
