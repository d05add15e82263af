"""`compile`: compiles a pair's passes ahead of later runs and pages."""

import argparse

from specviz.commands import pairs

ABOUT = "compile a pair's passes ahead of later runs and pages"

add_options = pairs.add_pair_options


def main(options: argparse.Namespace) -> int:
    """Exit status 1 if the target got no faster passes."""
    pair = pairs.load(options, "auto")
    info, ready = pair.info(), pair.passes.prepared.ready
    print(f"{info.name} on {info.device} in {info.dtype}, {info.passes} passes: {', '.join(map(str, ready)) or 'all'}")
    return 0 if info.passes != "plain" else 1
