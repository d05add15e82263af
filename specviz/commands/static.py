"""`static`: writes the page as a folder that needs no server."""

import argparse
import pathlib

from specviz.views.static_site import write_site

ABOUT = "write the page as a folder that needs no server: the visitors' browsers run the pair"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=pathlib.Path, metavar="FOLDER", help="a new folder, or one that this command wrote"
    )


def main(options: argparse.Namespace) -> int:
    size = write_site(options.folder)
    print(f"{options.folder}: {size / 1e6:.0f} MB. To view it: python -m http.server -d {options.folder}")
    return 0
