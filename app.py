"""The Space's entry point: `python app.py` serves the page, as `python -m specviz serve` does."""

import contextlib
import sys

with contextlib.suppress(ImportError):
    import spaces  # noqa: F401  # ZeroGPU wants to be there before torch

from specviz.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["serve"]))
