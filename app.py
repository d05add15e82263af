"""The Space's entry point: `python app.py` serves the page."""

import contextlib

with contextlib.suppress(ImportError):
    import spaces  # noqa: F401  # ZeroGPU wants to be there before torch

from specviz.ui.page import serve

if __name__ == "__main__":
    serve()
