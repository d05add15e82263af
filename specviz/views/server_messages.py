"""What is found out about an inference server that runs elsewhere, as messages for the page.

Each one says all that its card shows but for rounds: of several that arrive at once a component sees the last one only.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specviz.foreign.doctor import Signs
from specviz.foreign.requests import ServedRequest
from specviz.records import links
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.prompts import PRESETS
from specviz.records.runs import Round, Run
from specviz.records.words import Said, Words, joined, said, words
from specviz.servers.engines import About
from specviz.servers.lossless import ANSWERS, LENGTH, SECONDS, Lossless
from specviz.servers.pace import ALL, Pace, Speed, most_of
from specviz.servers.server import Watch
from specviz.theory.along_texts import find_fall
from specviz.theory.statistics import Ratio
from specviz.views import server_text
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
            figures, charts, total = self.figures, self.charts(), len(self.rounds)
            parts.append(end_message(self.key, total=total, reason=self._ending(), figures=figures, charts=charts))
        return message(
            "watch",
            phase=phase,
            problem=error and problem(error, self.say),
            about=about_fields(replace(watch.about, drafter=watch.drafter)),
            run=parts,
            key=self.key,
            file=links.file_stem(self.run()) if self.rounds else "",
            text="" if self.rounds else watch.answer.text,  # of an engine that does not say which tokens it makes
            status=joined([self._went(phase, error), self._made()], " "),
            notes=self._notes(phase),
            table=self._table() if counts.rounds else None,
            findings=findings(self.signs(), self.say) if phase != "running" and counts.rounds else [],
        )

    def _went(self, phase: Phase, error: SpecvizError | None) -> Said:
        unheard = phase == "failed" and not self.rounds and not self.watch.answer.text
        return said(
            f"server.{'unheard' if unheard else f'phase_{phase}'}", reason=self.say.error(error) if error else ""
        )

    def _made(self) -> Said:
        tokens, answer = self.trail.counts.tokens, self.watch.answer
        if not tokens:
            return ""
        made = said("common.tokens", n=tokens)
        return said("server.made", tokens=made, seconds=answer.seconds, first=answer.first_seconds)

    def _notes(self, phase: Phase) -> list[Said]:
        """How the rounds came about, and what the server's own counters say."""
        watch, engine = self.watch, self.watch.about.engine
        if not self.rounds:
            return [said("server.no_ids", engine=engine)] if watch.answer.text else []
        if not self.drafting.rounds:
            return []
        counts_tokens = watch.answer.drafted is not None
        how = "inferred" if watch.together.inferred else "exact" if counts_tokens else "by_passes"
        notes = [said(f"server.{how}", engine=engine)]
        if not watch.together.lengths_known:
            notes.append(said("server.lengths_unknown"))
        if phase == "running":
            return notes
        same = "uncounted" if not watch.counted else "equal" if _three(watch.counted) == self._three() else "unequal"
        return [*notes, said(f"server.{same}")]

    def _table(self) -> dict[str, Any]:
        """The counts beside the server's own."""
        theirs = _three(self.watch.counted) if self.watch.counted else [None] * 3
        rows = [
            [said(f"server.count_{name}"), _number(one), _number(other)]
            for name, one, other in zip(("passes", "drafted", "accepted"), self._three(), theirs)
        ]
        return {"heads": ["", said("server.put_together"), said("server.its_counters")], "rows": rows}

    def _three(self) -> list[int | None]:
        counts = self.drafting
        return [counts.rounds, counts.drafted if self.watch.together.lengths_known else None, counts.accepted]

    @property
    def figures(self) -> dict[str, float | None]:
        """The headline figures: the speed as its client sees it, and no α where nobody knows how many were drafted."""
        seconds, known = self.watch.answer.seconds, self.watch.together.lengths_known
        figures = headline(self.trail, None)
        speed = figures["tokens"] / seconds if figures["tokens"] and seconds else None
        return figures | {"tokens_per_second": speed} | ({} if known else {"acceptance_rate": None})

    def charts(self, turn: int | None = None) -> Charts:
        """See `Trail.charts`; of those with α nothing where it is not known."""
        unknown: Charts = {
            0: {"rounds": [], "rates": [], "parts": []},
            2: {"accepted": [], "judged": [], "trees": False},
        }
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
            fall=find_fall([self.trail.passes]) if known else None,
        )

    def _rounds_message(self, rounds: Sequence[Round]) -> str:
        turn, due = divmod(self.batches, BATCHES_PER_CHART)
        self.batches += 1
        charts = None if due else self.charts(turn)
        return rounds_message(self.key, rounds, {}, figures=self.figures, charts=charts)

    def _ending(self) -> Said:
        reason = self.watch.run().stop_reason
        return said("server.end_early" if reason == "stopped" else f"generate.end_{reason}")


def _three(counted: ServedRequest) -> list[int | None]:
    return [counted.passes, counted.drafted, counted.accepted]


def _number(count: int | None) -> Said:
    return said("why.not_known") if count is None else str(count)


# --- how fast it is ---------------------------------------------------------------------------------------------------


def speed_limits() -> Said:
    """What is asked of a server at most, in words."""
    most = most_of(PRESETS)
    return said("server.speed_limits", requests=most.requests, tokens=most.tokens, seconds=most.seconds)


def speed_message(about: About, speed: Speed, say: Words, phase: Phase) -> str:
    """What was measured so far."""
    paces = [*speed.by_load, *speed.by_depth, *speed.by_domain]
    heads = [said(f"server.speed_{name}") for name in ("load", "all", "each", "per_pass", "speedup")]
    stops, gain = speed.stops_paying_at, speed.by_load[0].speedup if speed.by_load else None
    finding = [] if gain is None or gain.interval is None else [said("server.gains", gain=_gain(gain))]
    finding += [] if stops is None else [said("server.stops_paying", n=stops)]
    return message(
        "speed",
        phase=phase,
        about=about_fields(about),
        fraction=speed.fraction,
        status=said(f"server.speed_{phase}", requests=speed.requests, most=speed.most.requests),
        finding=joined(finding, " ") if phase != "running" else "",
        notes=[*map(say.step, speed.remarks)],
        table={"heads": heads, "rows": [_pace_row(pace) for pace in paces]} if paces else None,
        findings=findings(_signs_of(speed), say) if phase != "running" and speed.by_load else [],
    )


def _pace_row(pace: Pace) -> list[Said]:
    measured, preset = pace.measured, f"controls.preset_{pace.domain}"
    at: list[Said] = [str(pace.load)]
    if pace.depth is not None:
        at.append(f"γ = {pace.depth}")
    if pace.domain != ALL:
        at.append(said(preset) if preset in words() else pace.domain)
    speeds = measured.tokens_per_second, measured.tokens_per_second_each, measured.tokens_per_pass
    rates = [_rate(value, digits) for value, digits in zip(speeds, (0, 0, 2))]
    return [joined(at), *rates, _gain(pace.speedup)]


def _gain(speedup: Ratio | None) -> Said:
    if speedup is None:
        return said("why.not_known")
    # Of a single turn nobody knows the interval; a wide one leaves no figure.
    name = "gain_about" if speedup.interval is None else "gain" if speedup.known else "gain_between"
    return said(f"server.{name}", ratio=speedup.value, low=speedup.low, high=speedup.high)


def _rate(value: float | None, digits: int) -> Said:
    return said("why.not_known") if value is None else said(f"server.decimals_{digits}", x=value)


def _signs_of(speed: Speed) -> Signs:
    """What the doctor looks at: one request at a time, and the speedups by load."""
    one = speed.by_load[0].measured
    return Signs(
        passes=one.passes or 0,
        accepted=one.accepted if one.passes else None,
        drafted=one.drafted,
        speedups=speed.gains,
        loads=speed.compared,
    )


# --- whether it is lossless -------------------------------------------------------------------------------------------


def lossless_limits() -> Said:
    """What is asked of a server at most, in words."""
    return said("server.lossless_limits", answers=ANSWERS, tokens=ANSWERS * LENGTH, seconds=SECONDS)


def lossless_message(known: Lossless, say: Words, phase: Phase) -> str:
    """How many samples there are; once it is over the verdict, what it rests on, and what would have been found."""
    verdict = [said(f"server.verdict_{known.verdict}"), say.step(known.sentence) if known.sentence else ""]
    notes: list[Said] = [say.step(known.most_off)] if known.most_off else []
    if known.greedy is not None:
        same = known.greedy.tokens - known.greedy.off
        name = "greedy" if known.greedy.off else "greedy_all"
        notes.append(said(f"server.{name}", same=same, tokens=known.greedy.tokens, gap=known.greedy.gap))
    if known.finds:
        notes.append(said("server.finds", **known.finds))
    rows = [[said(f"server.test_{test.name}"), f"{test.statistic:.2f}", f"{test.p_value:.2g}"] for test in known.tests]
    heads = [said(f"server.test_{name}") for name in ("name", "statistic", "p_value")]
    return message(
        "lossless",
        phase=phase,
        problem=known.broken and problem(known.broken, say),
        about=about_fields(known.about),
        fraction=known.fraction,
        status=said(f"server.lossless_{phase}", answers=known.answers, wanted=known.wanted, tokens=known.tokens),
        finding=joined(verdict, " ") if known.over else "",
        notes=notes,
        table={"heads": heads, "rows": rows} if rows else None,
        report="\n".join(_report(known)) if rows else "",
    )


def _report(known: Lossless) -> Iterator[str]:
    """For whoever maintains the engine, in English: what was found, and all that it takes to see it again."""
    yield from server_text.about_lines(known.about)
    samplers = "all other samplers off" if known.neutral else "the server's own samplers on"
    yield f"{known.answers} answers of {known.length} tokens, seeds from {known.seed}"
    yield f"temperature {known.temperature:g}, {samplers}"
    yield f"prompt: {known.prompt!r}"
    yield f"judged by: {known.reference}"
    yield from server_text.lossless_lines(known)
    options = ["--only", "lossless", "--samples", str(known.wanted), "--temperature", f"{known.temperature:g}"]
    options += ["--prompt", known.prompt, *([] if known.neutral else ["--defaults"])]
    options += {"target": ["--target", "MODEL"], "second server": ["--plain", "URL"]}.get(known.reference, [])
    yield shlex.join(["python", "-m", "specviz", "server", known.about.url, *options])
