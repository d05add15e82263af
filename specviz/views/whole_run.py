"""What is said of a run as a whole, wherever one is shown: how it was made, and its headline figures."""

from __future__ import annotations

from typing import Any

from specviz.bench.contestants import Contestant
from specviz.records.names import DRAFTERS
from specviz.records.runs import Run, Speedup
from specviz.records.settings import PLAIN
from specviz.records.words import Words
from specviz.views import run_messages as messages
from specviz.views.charts import Trail


def label(name: str | None, say: Words) -> str:
    """What the page calls a drafter; a name that only an opened file knows is shown as it is.

    Plain decoding, PLAIN or None, is called so where it is one way among others, rather than the choice of no drafter.
    """
    if name in (None, PLAIN):
        return say("ways.plain_label")
    return say(f"ways.{name}") if name in DRAFTERS else name


def title(contestant: Contestant, say: Words) -> str:
    """A contestant in words, with what differs from a chain judged token by token."""
    parts = [label(contestant.mode, say)]
    if contestant.num_draft_tokens is not None:
        parts.append(f"γ = {contestant.num_draft_tokens}")
    if contestant.branches not in (None, 1):
        parts.append(say("generate.branches", n=contestant.branches))
    if contestant.rule not in ("auto", "token", "tree"):
        parts.append(say(f"ways.rule_{contestant.rule}"))
    return ", ".join(parts)


def settings_of(run: Run, say: Words) -> str:
    """How it was made, apart from drafter and γ, in one line."""
    return messages.settings_line(
        run.settings,
        drafter=run.drafter,
        rule=run.rule,
        sampling=run.sampling,
        seed=run.seed,
        coins=run.coins,
        passes=run.pair.passes,
        say=say,
    )


def opening(key: str, run: Run, say: Words, **others: Any) -> str:
    """The message that opens a run on the page. others: see `run_messages.start_message`."""
    return messages.start_message(
        key,
        prompt=run.prompt.text,
        drafter=label(run.drafter, say) if run.drafter else None,
        num_draft_tokens=run.num_draft_tokens,
        greedy=run.sampling.greedy,
        pair=messages.pair_line(run.pair, say),
        settings=settings_of(run, say),
        rule=run.rule,
        coins=run.coins,
        **others,
    )


def headline(trail: Trail, measured: Speedup | None) -> dict[str, float | None]:
    """The headline figures; None is shown as a dash."""
    counts = trail.counts
    return {
        "acceptance_length": counts.acceptance_length,
        "acceptance_rate": counts.acceptance_rate,
        "tokens_per_second": counts.tokens_per_second,
        "speedup": measured and measured.ratio,
        "speedup_low": measured and measured.low,
        "speedup_high": measured and measured.high,
        "tokens": counts.tokens,
        "target_passes": counts.rounds,
    }
