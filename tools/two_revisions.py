"""What a change is worth: two revisions of this repository in turn on one machine, round by round.

``python -m tools.two_revisions BEFORE [AFTER] --json FILE``; AFTER is by default the files as they are.

Each revision has a process of its own, which waits while the other one decodes, so whatever else the machine does meets
both alike. One process may be slower than another of the same revision for as long as it lives, so there are several,
and the interval is over these.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specviz.theory.statistics import TurnPair, ratio_of

ROOT = pathlib.Path(__file__).parent.parent

#: The options by which texts are made.
ORDERED = ("gamma", "branches", "temperature", "tokens")

PROMPT = "Once upon a time there was a king who"


@dataclass(frozen=True)
class Row:
    """A drafter's rounds by both revisions. speed: how many times as many rounds a second the later one makes, with the
    ends of its 90 % interval."""

    drafter: str
    before_ms: float  # of a round, mean
    after_ms: float
    speed: float
    low: float | None
    high: float | None

    @property
    def line(self) -> str:
        ends = "" if self.low is None or self.high is None else f" ({self.low:.3f}–{self.high:.3f})"
        return f"{self.drafter:16} {self.before_ms:.3f} ms a round, then {self.after_ms:.3f}: {self.speed:.3f}×{ends}"


class Revision:
    """A process that decodes by one revision. tree: the folder of its files."""

    def __init__(self, tree: pathlib.Path, target: str | None):
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--decode", *([target] if target else [])]
        pipe, environment = subprocess.PIPE, os.environ | {"PYTHONPATH": str(tree)}
        self.process = subprocess.Popen(command, cwd=tree, env=environment, stdin=pipe, stdout=pipe, encoding="utf-8")
        self.machine = self._answer()

    def decode(self, **order: Any) -> tuple[int, float]:
        """Rounds after the first, which reads the prompt, and their seconds."""
        assert self.process.stdin is not None, "it was opened with one"
        print(json.dumps(order), file=self.process.stdin, flush=True)
        rounds, seconds = self._answer()
        return rounds, seconds

    def _answer(self) -> Any:
        assert self.process.stdout is not None, "it was opened with one"
        if line := self.process.stdout.readline():
            return json.loads(line)
        raise SystemExit(f"The process of a revision ended with status {self.process.wait()}.")

    def end(self) -> None:
        self.process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.two_revisions", description=__doc__)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", help="another (default: the files as they are)")
    parser.add_argument("--target", help="as for load_pair (default: the embedded pair)")
    parser.add_argument("--drafters", default="plain,draft_model,eagle", help="(default: %(default)s)")
    parser.add_argument("--gamma", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--branches", type=int, default=1, help="more than one: trees (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of each text (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=6, help="of each revision, in turn (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=4, help="texts of a drafter in each (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="where the figures go")
    options = parser.parse_args()
    machine: dict[str, Any] = {}
    turns: dict[str, list[TurnPair]] = {drafter: [] for drafter in options.drafters.split(",")}
    with _tree(options.before) as before, _tree(options.after) as after:
        for _ in range(options.processes):
            earlier, later = Revision(before, options.target), Revision(after, options.target)
            try:
                for drafter, pairs in turns.items():
                    pairs.append(_beside_each_other(earlier, later, drafter, options))
            finally:
                earlier.end()
                later.end()
            machine = later.machine
    rows = [_row(drafter, pairs) for drafter, pairs in turns.items()]
    report = {
        "machine": machine,
        **{name: _named(getattr(options, name)) for name in ("before", "after")},
        "settings": {name: getattr(options, name) for name in (*ORDERED, "processes", "repeats")},
        "rows": [asdict(row) for row in rows],
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for row in rows:
        print(row.line)


def _beside_each_other(before: Revision, after: Revision, drafter: str, options: argparse.Namespace) -> TurnPair:
    """All rounds of two processes and their seconds."""
    order = {"drafter": drafter} | {name: getattr(options, name) for name in ORDERED}
    sums = {before: [0.0, 0.0], after: [0.0, 0.0]}
    for repeat in range(-2, options.repeats):  # the first two do not count
        for revision in (before, after) if repeat % 2 else (after, before):
            turn = revision.decode(seed=max(0, repeat), **order)
            if repeat >= 0:
                sums[revision] = [total + part for total, part in zip(sums[revision], turn, strict=True)]
    return TurnPair(*sums[after], *sums[before])


def _row(drafter: str, pairs: Sequence[TurnPair]) -> Row:
    """What pairs of processes show of a drafter."""
    ratio = ratio_of(pairs)
    assert ratio is not None, "there are pairs"
    before_ms = 1000 * sum(pair.base_seconds for pair in pairs) / sum(pair.base_tokens for pair in pairs)
    after_ms = 1000 * sum(pair.seconds for pair in pairs) / sum(pair.tokens for pair in pairs)
    return Row(drafter, round(before_ms, 4), round(after_ms, 4), ratio.value, ratio.low, ratio.high)


@contextlib.contextmanager
def _tree(commit: str | None) -> Iterator[pathlib.Path]:
    """A folder with the files of a commit; None: this one."""
    if commit is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


def _named(commit: str | None) -> str:
    """A commit's short hash and subject; None: of the files as they are."""
    shown = ["git", "-C", str(ROOT), "log", "-1", "--format=%h %s", commit or "HEAD"]
    name = subprocess.run(shown, check=True, capture_output=True, encoding="utf-8").stdout.strip()
    return name if commit else f"the files as they were after {name}"


def decode(target: str | None) -> None:
    """The process of a revision: loads its pair, then decodes what it is asked for, by what all revisions have."""
    answers, sys.stdout = sys.stdout, sys.stderr

    import specviz
    from specviz.bench.machine import describe_machine

    pair = specviz.load_pair(*([target] if target else []), device="cpu")
    pair.prepare()
    print(json.dumps(describe_machine(pair)), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        drafts: dict[str, Any] = {}
        if order["drafter"] != "plain":
            drafting = specviz.DraftParams(branches=order["branches"])
            drafts = {"num_draft_tokens": order["gamma"], "drafting": drafting}
        run = specviz.run(
            pair,
            PROMPT,
            drafter=None if order["drafter"] == "plain" else order["drafter"],
            sampling=specviz.SamplingParams(temperature=order["temperature"]),
            max_new_tokens=order["tokens"],
            seed=order["seed"],
            **drafts,
        )
        rounds = run.rounds[1:]
        print(
            json.dumps([len(rounds), sum(one.seconds.total for one in rounds if one.seconds)]), file=answers, flush=True
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--decode"]:
        decode(sys.argv[2] if len(sys.argv) > 2 else None)
    else:
        from specviz.records.streams import carried_out  # not above: the other revision may not have it

        sys.exit(carried_out(main))
