"""Commands for those who maintain the project; no visitor needs them. Some need playwright and a Chromium.

    python -m tools.NAME

bench_table     a table for documentation, of a report of the benchmark; bench_picture: a picture of it
acceptance_table  a table of how often the embedded parts' guesses would be accepted
two_revisions   what a change is worth: two revisions in turn
gpu_bench       a GPU measured by `bench` and `check`, on a pair of a large one's shape that is made there
kernel_times    the CUDA kernels of a round
pictures        takes the pictures of the README and of docs/ again
engines         real engines on the embedded parts: which they load, what they make of them, what their servers say
recorder        records the runs that come with the page again
record_types    the types of records for the page's scripts
static_kernels  builds the kernels of the page without a server
cut_tokenizer   cuts a published tokenizer down for the tests
chromium        a headless browser, for the others
"""

import argparse
import pathlib


def asked(described: str | None, **paths: str) -> list[pathlib.Path]:
    """The paths that a command was given, in this order. described: the command's docstring. paths: what each is."""
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, help_ in paths.items():
        parser.add_argument(name, type=pathlib.Path, help=help_)
    return list(vars(parser.parse_args()).values())
