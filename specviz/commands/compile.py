"""`compile`: compiles a pair's passes ahead of later runs and pages."""

import argparse

from specviz.commands import pairs
from specviz.records.errors import SpecvizError

ABOUT = "compile a pair's passes ahead of later runs and pages"

add_options = pairs.add_pair_options


def main(options: argparse.Namespace) -> int:
    """Exit status 1 if the target got no faster passes. Raises SpecvizError if they could not be kept."""
    from specviz.passes.kernels.kernel_library import lasts

    if not lasts():
        raise SpecvizError("There is nowhere to keep compiled passes: set SPECVIZ_CACHE to a writable folder.")
    pair = pairs.load(options, "auto")
    info, ready = pair.info(), pair.passes.prepared.ready
    print(f"{info.name} on {info.device} in {info.dtype}, {info.passes} passes: {', '.join(map(str, ready)) or 'all'}")
    return 0 if info.passes != "plain" else 1
