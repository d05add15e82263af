"""`serve`: serves the page, like app.py."""

import argparse

ABOUT = "serve the page, like app.py"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mcp", action="store_true", help="also offer the API's functions as tools of an MCP server")


def main(options: argparse.Namespace) -> int:
    from specviz.ui.page import serve

    serve(options.mcp)
    return 0
