"""ZeroGPU: a Space whose GPU is lent for one call at a time, to a process that is forked for it.

In the process that serves the page there is no GPU: the package `spaces` emulates one, in the thread that imported it,
so that weights can be "moved" there before they really are. No torch: the page asks before it is loaded.
"""

from __future__ import annotations

import sys


def lent_by_the_call() -> bool:
    """Whether ZeroGPU is on, as `spaces` itself is configured.

    The package lies on every Gradio Space, and does nothing where ZeroGPU is off; nor does it before it is imported,
    which is for the page to do (`specviz.ui.device`).
    """
    spaces = sys.modules.get("spaces")
    return spaces is not None and spaces.config.Config.zero_gpu
