"""`metrics`: figures from what a server reports about its speculation."""

import argparse
import pathlib

from specviz.commands.output import read, write
from specviz.foreign.metrics import read_metrics
from specviz.records.errors import SpecvizError
from specviz.records.words import words
from specviz.views.served_messages import served_message, served_text

ABOUT = "figures from what a server reports about its speculation (vLLM, SGLang, llama.cpp, …)"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    what = "responses, a log, a scrape of /metrics, or a benchmark's output; - reads the input; see docs/metrics.md"
    add("metrics", type=pathlib.Path, metavar="FILE", help=what)
    add("--chains", action="store_true", help="every pass drafted one chain of full length (SGLang: topk 1)")
    add("--cost", type=float, metavar="C", help="the server's c, for the γ that the formula favours")
    about = "measured speedup over the same server without drafts, or by requests at once: 1:1.9 32:0.8"
    add("--speedup", default="", metavar="X", help=about)
    add("--json", type=pathlib.Path, metavar="FILE", help="also write the figures to this file")


def main(options: argparse.Namespace) -> int:
    text = read(options.metrics, "metrics")
    if not text.strip():
        raise SpecvizError("The file is empty: it needs what a server reported.", "metrics")
    if options.cost is not None and not 0 <= options.cost < float("inf"):
        raise SpecvizError(
            "c is a ratio of times: it must be a number from 0 up, not {value}.", "cost", value=options.cost
        )
    served = read_metrics(text, options.chains)
    write(options, "json", served_message(served, words(), options.speedup, options.cost))
    print(served_text(served, options.cost, options.speedup))
    return 0
