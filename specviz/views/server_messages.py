"""What is found out about an inference server that runs elsewhere, as messages for the page.

Each one says all that its card shows but for rounds: of several that arrive at once a component sees the last one only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specviz.foreign.doctor import Signs
from specviz.foreign.metrics import ServedRequest
from specviz.records import links
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.runs import Round, Run
from specviz.records.words import Said, Words, said
from specviz.servers.engines import About
from specviz.servers.server import Watch
from specviz.views.charts import BATCHES_PER_CHART, Trail
from specviz.views.run_messages import Charts, end_message, headline, message, opening, rounds_message
from specviz.views.served_diagnosis import findings

#: How far something has come that was asked of a server.
Phase = Literal["running", "finished", "stopped", "failed"]


def problem(error: SpecvizError, say: Words) -> dict[str, Any]:
    """What is wrong, and at which field of the form."""
    return {"field": error.field, "text": say.error(error)}


def about_fields(about: About) -> dict[str, Any]:
    """What runs there, as texts: a server may say anything."""
    named = ("engine", "version", "model", "drafter", "depth", "slots", "context")
    facts = {name: getattr(about, name) for name in named}
    defaults = [f"{name} {value:g}" for name, value in about.sampling.items() if isinstance(value, float)]
    samplers = about.sampling.get("samplers")
    order = [" → ".join(map(str, samplers))] if isinstance(samplers, list) else []
    known = {name: None if value is None else str(value) for name, value in facts.items()}
    return known | {"sampling": ", ".join([*defaults, *order]) or None}


def about_message(about: About) -> str:
    return message("about", phase="finished", about=about_fields(about))


# --- an answer that is being watched ----------------------------------------------------------------------------------


@dataclass
class ShownWatch:
    """An answer that is being watched, as far as the page was told of it."""

    key: str
    watch: Watch
    say: Words
    rounds: list[Round] = field(default_factory=list)
    trail: Trail = field(default_factory=Trail)
    drafting: Tally = field(default_factory=Tally)  # of the rounds that verified a draft, as servers count
    batches: int = 0

    def add(self, rounds: Sequence[Round]) -> None:
        self.rounds += rounds
        for round_ in rounds:
            self.trail.add(round_)
            if round_.drafted:
                self.drafting.add(round_)

    def run(self) -> Run:
        """The rounds so far."""
        run = self.watch.run()
        if not self.drafting.rounds:
            return replace(run, drafter=None)
        return run if run.drafter not in (None, "none") else replace(run, drafter=self.say("server.unnamed"))

    def missing_rounds(self, first: int) -> list[str]:
        """Those that the page lacks, from this one on."""
        return [opening(self.key, self.run()), self._rounds_message(self.rounds[first:])]

    def message(self, new: Sequence[Round], phase: Phase = "running", error: SpecvizError | None = None) -> str:
        """new: the rounds that came since the last message. The run's own messages come with it as they are."""
        self.add(new)
        watch, counts, parts = self.watch, self.drafting, list[str]()
        if self.rounds:
            parts = [opening(self.key, self.run()), self._rounds_message(new)]
        if self.rounds and phase != "running":
            told = {"figures": self.figures, "charts": self.charts()}
            parts.append(end_message(self.key, total=len(self.rounds), reason=self._ending(), **told))
        engine, together = watch.about.engine, watch.together
        return message(
            "watch",
            phase=phase,
            problem=error and problem(error, self.say),
            about=about_fields(replace(watch.about, drafter=watch.drafter)),
            run=parts,
            key=self.key,
            file=links.file_stem(self.run()) if self.rounds else "",
            text="" if self.rounds else watch.answer.text,  # of an engine that does not say which tokens it makes
            tokens=self.trail.counts.tokens,
            seconds=watch.answer.seconds,
            first_seconds=watch.answer.first_seconds,
            counts=[counts.rounds, counts.drafted if together.lengths_known else None, counts.accepted],
            counted=_counted(watch.counted),
            how=said(f"server.{'inferred' if together.inferred else 'exact'}", engine=engine) if counts.rounds else "",
            lengths_known=together.lengths_known,
            findings=findings(self.signs(), self.say) if phase != "running" and counts.rounds else [],
        )

    @property
    def figures(self) -> dict[str, float | None]:
        """The headline figures: the speed as its client sees it, and no α where nobody knows how many were drafted."""
        seconds, known = self.watch.answer.seconds, self.watch.together.lengths_known
        figures = headline(self.trail, None)
        speed = figures["tokens"] / seconds if figures["tokens"] and seconds else None
        return figures | {"tokens_per_second": speed} | ({} if known else {"acceptance_rate": None})

    def charts(self, turn: int | None = None) -> Charts:
        """See `Trail.charts`; of those with α nothing where it is not known."""
        unknown: Charts = {0: {"rounds": [], "rates": []}, 2: {"accepted": [], "judged": [], "trees": False}}
        known = self.watch.together.lengths_known
        return {
            place: chart if known else unknown.get(place, chart) for place, chart in self.trail.charts(turn).items()
        }

    def signs(self) -> Signs:
        """What the doctor looks at. Where nobody knows how long drafts were, every pass may have got to every position
        that follows an accepted one."""
        counts, known = self.drafting, self.watch.together.lengths_known
        return Signs(
            passes=counts.rounds,
            accepted_at=counts.accepted_at,
            judged_at=counts.judged_at if known else [counts.rounds, *counts.accepted_at[:-1]],
            lengths_known=known,
            accepted=counts.accepted,
            drafted=counts.drafted if known else None,
        )

    def _rounds_message(self, rounds: Sequence[Round]) -> str:
        turn, due = divmod(self.batches, BATCHES_PER_CHART)
        self.batches += 1
        charts = None if due else self.charts(turn)
        return rounds_message(self.key, rounds, {}, figures=self.figures, charts=charts)

    def _ending(self) -> Said:
        reason = self.watch.run().stop_reason
        return said("server.end_early" if reason == "stopped" else f"generate.end_{reason}")


def _counted(counted: ServedRequest | None) -> list[int | None] | None:
    return counted and [counted.passes, counted.drafted, counted.accepted]
