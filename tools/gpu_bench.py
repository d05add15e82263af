"""What passes and rounds cost on a GPU, in four minutes and with nothing downloaded.

    python -m tools.gpu_bench --json gpu.json              # measures, writes the file, prints its table
    python -m tools.gpu_bench --table gpu.json             # the table of a file
    python -m tools.gpu_bench --json try.json --shape tiny # to try it without a GPU

The pair has the shape of a large one and random weights, made on the device; a dense pass takes the same time whatever
they are. The target's later layers say little, so that its first ones, as a draft model, are usually right. The
embedded pair follows, where its weights are at hand. The file is written after every run, a part that fails ends alone,
and what the budget has no time for is left out.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial

from specviz.bench.check import check_pair
from specviz.bench.contestants import PLAIN, Contestant
from specviz.bench.equal_texts import Finding
from specviz.bench.machine import describe_machine
from specviz.bench.pass_times import measure_passes
from specviz.commands.check import line_of
from specviz.models.loading import load_pair
from specviz.models.memory_share import copy_bandwidth
from specviz.models.pair import ModelPair
from specviz.models.preparation import prepare_passes
from specviz.models.sources import quietly
from specviz.records.assets import EMBEDDED
from specviz.records.settings import AUTO
from tools.gpu_figures import WARM, Timed, decoded, profiled, timed_peer, timed_run
from tools.gpu_report import Report, table
from tools.sizes import FIRST_LAYERS, first_layers_pair

#: New tokens of a run by shape, and on the embedded pair.
TOKENS, EMBEDDED_TOKENS = {"8b": 128, "tiny": 32}, 256

#: Timed runs of ours, in turns, and of transformers'.
REPEATS, PEER_REPEATS = 3, 2

#: Widths of the timed passes, and seconds for them.
WIDTHS, PASSES_BUDGET = (1, 2, 5, 9, 17), 3.0

#: Bytes that are copied to measure the memory's bandwidth, and how often.
COPIED, COPIES = 2**27, 20

#: Seconds of the check: the most, and the fewest, if the budget has fewer left.
CHECK_MOST, CHECK_LEAST = 60.0, 15.0

#: Ways to draft on the embedded pair.
EMBEDDED_MODES = ("draft_model", "eagle", "parallel", "mtp", "medusa")

PARTS = ("pair", "passes", "rounds", "profile", "peers", "embedded", "check")

#: A contestant at a temperature.
Way = tuple[Contestant, float]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench", description="What passes and rounds cost here.")
    parser.add_argument("--json", type=pathlib.Path, help="the file to write")
    parser.add_argument("--table", type=pathlib.Path, help="print the table of this file, and measure nothing")
    parser.add_argument("--shape", choices=FIRST_LAYERS, default="8b", help="of the pair that is made")
    parser.add_argument(
        "--folder", type=pathlib.Path, default=EMBEDDED, help="where the embedded pair lies, or its tokenizer"
    )
    usual = ",".join(part for part in PARTS if part != "profile")
    parser.add_argument("--parts", default=usual, help=f"what to measure, all by default: {usual}")
    parser.add_argument(
        "--budget", type=float, default=240.0, help="seconds, 240 by default, after which nothing further begins"
    )
    parser.add_argument("--profile", action="store_true", help="show the kernels of a round, too (CUDA only)")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))), end="")
        return
    asked = {*options.parts.split(","), *(["profile"] if options.profile else [])}
    if options.json is None or not asked <= {*PARTS}:
        parser.error("name a file with --json, and parts among " + ", ".join(PARTS))
    report = Report(options.json, options.budget)
    report.values["settings"] = {"shape": options.shape, "parts": sorted(asked), "budget": options.budget}
    bench = GpuBench(report, options.shape, options.folder)
    for part in PARTS:
        if part in asked:
            report.part(part, getattr(bench, f"do_{part}"))
    print(table(report.values), end="")


class GpuBench:
    """The parts, `do_PART`, which may raise anything. Each makes what it needs of those before it."""

    def __init__(self, report: Report, shape: str, folder: pathlib.Path):
        self.report, self.shape, self.folder = report, shape, folder
        self.tokens = TOKENS[shape]

    @cached_property
    def made(self) -> ModelPair:
        return self._known("pair", first_layers_pair(FIRST_LAYERS[self.shape], self._tokenizer_folder))

    @cached_property
    def embedded(self) -> ModelPair:
        """In the place of the made pair, with its passes prepared."""
        if "made" in self.__dict__:
            self.__dict__.pop("made").free()
        if self.folder == EMBEDDED:
            pair = load_pair()
        else:
            others = [one for one in self.folder.iterdir() if one.name != "target" and any(one.glob("*.safetensors"))]
            pair = load_pair(self.folder / "target", sorted(others))
        self._prepare("embedded", pair)
        return self._known("embedded", pair)

    @property
    def prepared(self) -> ModelPair:
        """The made pair with its passes prepared, as far as they can be."""
        if "pair" not in self.report.values["preparation"]:
            self._prepare("pair", self.made)
        return self.made

    def do_pair(self) -> None:
        _ = self.made

    def do_passes(self) -> None:
        pair = self.prepared
        bandwidth = copy_bandwidth(COPIED, pair.device, COPIES)
        self.report.values["copy_bandwidth"] = bandwidth
        *_, times = measure_passes(pair, WIDTHS, budget=PASSES_BUDGET)
        self.report.values["passes"] = [
            {
                "role": curve.role,
                "weight_bytes": curve.size.weight_bytes,
                "limit_ms": 1000 * curve.size.weight_bytes / bandwidth,
                "share": curve.size.weight_bytes / bandwidth / curve.one,
                "ms": {point.width: 1000 * point.seconds for point in curve.points},
            }
            for curve in times.curves
        ]

    def do_rounds(self) -> None:
        self._race("rounds", self.prepared, ways(FIRST_LAYERS[self.shape].draft_layers), self.tokens)

    def do_profile(self) -> None:
        pair = self.prepared
        if pair.device.type != "cuda":
            return self.report.skip("profile", "kernels are counted on CUDA only")
        for contestant in (Contestant(PLAIN), Contestant("draft_model", 4)):
            self.report.values["profile"].append(profiled(pair, contestant, self.tokens))

    def do_peers(self) -> None:
        """By transformers, with the same models: the best run of each."""
        plain, assisted = Contestant(PLAIN, engine="transformers"), Contestant("draft_model", 4, engine="transformers")

        def best(contestant: Contestant, temperature: float) -> list[Timed]:
            with quietly():
                timed_peer(self.made, contestant, temperature, self.tokens // 8)
                runs = [timed_peer(self.made, contestant, temperature, self.tokens) for _ in range(PEER_REPEATS)]
            return [max(runs, key=lambda run: run.figures["tokens_per_second"])]

        for way in ((plain, 0.0), (assisted, 0.0), (assisted, 1.0)):
            self.report.row("peers", *way, partial(best, *way))

    def do_embedded(self) -> None:
        if self._has_weights("embedded"):
            self._race("embedded", self.embedded, list(embedded_ways()), EMBEDDED_TOKENS, CHECK_LEAST)

    def do_check(self) -> None:
        if not self._has_weights("check"):
            return
        found: list[Finding] = []
        pair, left = self.embedded, self.report.left()
        for one in check_pair(pair, min(CHECK_MOST, max(CHECK_LEAST, left))):
            if isinstance(one, Finding):
                found.append(one)
                states = [each.state for each in found]
                self.report.values["check"] = {
                    "counts": {state: states.count(state) for state in ("right", "wrong", "slow", "skipped")},
                    "findings": [line_of(each) for each in found if each.state in ("wrong", "slow")],
                }
                self.report.save()

    def _race(self, part: str, pair: ModelPair, contest: Sequence[Way], tokens: int, reserve: float = 0.0) -> None:
        """All ways in turn, each warmed up in its first one; those that fail take no further turn."""
        runs: dict[Way, list[Timed]] = {way: [] for way in contest}

        def turn(way: Way) -> list[Timed]:
            for warm in range(0 if runs[way] else WARM):
                # Other seeds than the timed ones: a sampled run that is made again drafts as deep as the first time.
                decoded(pair, *way, tokens, REPEATS + warm)
            runs[way].append(timed_run(pair, *way, tokens, seed=len(runs[way])))
            return runs[way]

        for repeat in range(REPEATS):
            for way in contest:
                if len(runs[way]) == repeat:
                    self.report.row(part, *way, partial(turn, way), reserve)

    def _prepare(self, which: str, pair: ModelPair) -> None:
        """Without programs compiled on a CPU, which take a minute. Passes that cannot be prepared run as they are."""
        outcome = {"seconds": None, "ready": [], "reasons": {}}
        self.report.values["preparation"][which] = outcome
        began = time.perf_counter()
        with self.report.telling(f"preparing passes, {which}"):
            done = prepare_passes(pair, compiling=pair.device.type == "cuda")
            reasons = {role: str(reason) for role, reason in done.reasons.items()}
            outcome |= {"seconds": time.perf_counter() - began, "ready": done.ready, "reasons": reasons}
            self._known(which, pair)

    def _known(self, which: str, pair: ModelPair) -> ModelPair:
        """Notes the facts of the pair as it is now, and of the machine at the start."""
        self.report.values["machine"] = self.report.values["machine"] or describe_machine(pair)
        self.report.values["pairs"][which] = asdict(pair.info())
        return pair

    @property
    def _tokenizer_folder(self) -> pathlib.Path:
        target = self.folder / "target"
        return target if (target / "tokenizer.json").is_file() else self.folder

    def _has_weights(self, part: str) -> bool:
        found = any((self.folder / "target").glob("*.safetensors"))
        if not found:
            self.report.skip(part, "the embedded pair's weights are not here")
        return found


def ways(exit_layer: int) -> list[Way]:
    """The contest on the made pair, the most important first."""
    plain, chain, auto = Contestant(PLAIN), Contestant("draft_model", 4), Contestant("draft_model", AUTO)
    block, tree = replace(chain, rule="block"), replace(chain, branches=3)
    first = [(plain, 0.0), (plain, 1.0), (chain, 0.0), (chain, 1.0), (block, 1.0), (auto, 0.0), (auto, 1.0)]
    others = [(Contestant("early_exit", 4, exit_layer=exit_layer), 0.0), (Contestant("prompt_lookup", 4), 0.0)]
    # Passes up to the layer where early exit leaves by default are prepared.
    return [*first, *others, (tree, 0.0), (tree, 1.0), (Contestant("early_exit", 4), 0.0)]


def embedded_ways() -> Iterator[Way]:
    for temperature in (0.0, 1.0):
        yield Contestant(PLAIN), temperature
    for gamma in (4, AUTO):
        for mode in EMBEDDED_MODES:
            for temperature in (0.0, 1.0):
                yield Contestant(mode, gamma), temperature


if __name__ == "__main__":
    main()
