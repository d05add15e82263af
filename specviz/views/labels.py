"""What drafters, contestants, runs and pairs are called, wherever they are shown: names and settings in words."""

from collections.abc import Mapping
from typing import Any

from specviz.bench.contest import Row
from specviz.bench.contestants import OTHERS
from specviz.records.rules import RULES, UNUSUAL
from specviz.records.runs import PairInfo, Run
from specviz.records.settings import PLAIN, SETTINGS, SamplingParams
from specviz.records.words import Said, joined, said, words


def label(name: str | None) -> Said:
    """A drafter's name on the page; one that only an opened file knows is shown as it is.

    Plain decoding, PLAIN or None, has its own name where it is one way among others.
    """
    if name in (None, PLAIN):
        return said("ways.plain_label")
    return said(f"ways.{name}") if f"ways.{name}" in words() else name


def title(row: Row, with_gamma: bool = True) -> Said:
    """A contestant in words, with its differences from a chain judged token by token."""
    if row.host is not None:
        return row.title
    parts = [label(row.mode)]
    if row.num_draft_tokens is not None and with_gamma:
        parts.append(f"γ = {row.num_draft_tokens}")
    if row.branches not in (None, 1):
        parts.append(said("generate.branches", n=row.branches))
    parts += drafting(row.settings)
    if row.rule in UNUSUAL:
        parts.append(said(f"ways.rule_{row.rule}"))
    return joined(parts, ", ")


def drafting(settings: Mapping[str, Any]) -> list[Said]:
    """A drafter's parameters but branches, in words, where they are not the table's defaults."""
    parts = []
    for name in OTHERS:
        if settings.get(name) not in (None, SETTINGS[name].default):
            has_text = f"generate.{name}" in words()
            parts.append(said(f"generate.{name}", value=settings[name]) if has_text else f"{name} {settings[name]}")
    return parts


def settings_line(run: Run) -> Said:
    """How a run was made, apart from drafter and γ, in one line for its header.

    Of the drafter's own settings those needed to compare runs; the trace has them all.
    """
    settings, sampling, parts = run.settings, run.sampling, []
    if run.engine:
        return joined(
            [said("generate.elsewhere", engine=run.engine), *([_sampling(sampling)] if sampling.greedy else [])]
        )
    # Lookahead's branches are the n-grams it tries.
    branches = settings.get("branches", settings.get("guesses"))
    if branches not in (None, 1):
        parts.append(said("generate.branches", n=branches))
    parts += drafting(settings)
    # No rule judges plain decoding, and greedy drafts are matched. A file may name a rule unknown to this version.
    if run.drafter is not None and not sampling.greedy:
        parts.append(said(f"ways.rule_{run.rule}") if run.rule in RULES else run.rule)
    parts += [_sampling(sampling), said("generate.seed", value=run.seed)]
    if run.coins:
        parts.append(said("generate.coins", coins=run.coins))
    if run.grammar:
        parts.append(said("generate.grammar"))
    return joined([*parts, passes_words(run.pair.passes)])


def _sampling(sampling: SamplingParams) -> Said:
    if sampling.greedy:
        return said("generate.greedy")
    parts = [said("generate.temperature", value=sampling.temperature)]
    if sampling.top_k:
        parts.append(said("generate.top_k", value=sampling.top_k))
    if sampling.top_p < 1:
        parts.append(said("generate.top_p", value=sampling.top_p))
    if sampling.min_p:
        parts.append(said("generate.min_p", value=sampling.min_p))
    return joined(parts, ", ")


def ending(run: Run) -> Said:
    """Why it ended."""
    return said(f"generate.end_{'elsewhere' if run.engine else run.stop_reason}")


def pair_line(info: PairInfo) -> Said:
    """One line about a pair: name, sizes, device and precision."""
    target = parameters(info.target_parameters)
    values: dict[str, Said] = {"name": info.name, "device": info.device, "dtype": info.dtype, "target": target}
    if not info.target_parameters:
        return info.name
    if not info.draft_parameters:
        return said("page.pair", **values)
    return said("page.pair_with_draft", **values, draft=parameters(info.draft_parameters))


def parameters(count: int) -> Said:
    """A number of parameters: ``135 M``, ``1.7 B``."""
    return said("page.billions", n=count / 1e9) if count >= 1e9 else f"{count / 1e6:.0f} M"


def time_left(seconds: float) -> Said:
    """About how long something will take, of at least a second."""
    if seconds > 90:
        return said("common.minutes_left", minutes=seconds / 60)
    return said("common.seconds_left", seconds=max(1.0, seconds))


def passes_words(kind: str) -> Said:
    """The kind of target passes, see `PairInfo.passes`; unknown kinds from files are shown as they are."""
    return said(f"passes.{kind}") if f"passes.{kind}" in words() else kind
