"""The Models tab: which pair, what fits, and what a pass over several tokens costs on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.models.catalog import CATALOG, HubPair, needed_bytes, size_bytes
from specviz.records.errors import SpecvizError
from specviz.records.words import Bytes, Words
from specviz.ui import engine
from specviz.ui.advising import advise, chains_of
from specviz.ui.background import Stage
from specviz.ui.components import as_text
from specviz.ui.events import INTERNAL, QUIET
from specviz.ui.head import look, look_ahead
from specviz.ui.orders import Order
from specviz.ui.pairs import PairName, PairStore
from specviz.ui.runner import Runner, closing
from specviz.ui.tabs import Action, Desk, Tab
from specviz.ui.visits import Visit
from specviz.views.run_messages import pair_line, passes_words

if TYPE_CHECKING:
    from specviz.bench.pair_check import Finding
    from specviz.models.pair import ModelPair, QuantisedTarget

#: Loading shows how far it is.
LOADING = {"concurrency_limit": None, **INTERNAL}

DTYPES = ["auto", "bfloat16", "float16", "float32"]


def create_models_tab(desk: Desk) -> Tab:
    """Lays out the tab and wires its buttons: what is in use, a check of it, and other pairs."""
    runner, say, pair = desk.runner, desk.say, desk.controls.pair
    status = gr.Markdown(elem_classes=["sv-pair-status"])
    shown = [pair, status, desk.head.line]
    checked = _create_check(desk)
    home = gr.Button(say("models.home"), size="sm")
    loads = [home.click(lambda: _in_use(PairName(), runner.store, say), None, shown, **INTERNAL)]
    if runner.deployment.allow_loading:
        loads += [*_create_catalog(desk, shown), _create_form(runner, shown, say)]
    for loaded in loads:
        desk.controls.follow(loaded)
    _wire_passes(desk, status, loads)
    return checked


def _create_check(desk: Desk) -> Tab:
    """Lays out the check of the pair in use, and the advice on its drafters."""
    runner, say = desk.runner, desk.say
    with gr.Row(elem_classes=["sv-actions"]):
        go = gr.Button(say("models.check"), elem_id="check-pair")
        ask = gr.Button(say("advice.go"), elem_id="advise")
        stop = gr.Button(say("page.stop"), variant="stop", visible=False, elem_id="stop-check")
    found = gr.Markdown(say("models.check_about"), elem_classes=["sv-note", "sv-findings"])
    told = gr.Markdown(say("advice.about_button"), elem_classes=["sv-note", "sv-findings", "sv-advice"])

    def no_objection(pair: dict[str, Any]) -> list[dict[str, Any]]:
        return [gr.validate(True, "")]

    def stream(visit: Visit, pair: dict[str, Any]) -> Iterator[str]:
        return check_pair(runner, PairName(**pair), visit.halt, say)

    def check(pair: ModelPair, order: Order) -> None:
        chains_of(runner, pair, order)

    def stream_advice(visit: Visit, order: Order) -> Iterator[str]:
        return advise(runner, order, visit.halt, say)

    checked = Action(go, found, [desk.controls.pair], no_objection, stream, as_text, as_text)
    return Tab([checked, desk.ordered(ask, told, stream_advice, as_text, as_text, check)], stop)


def check_pair(runner: Runner, name: PairName, halt: threading.Event, say: Words) -> Iterator[str]:
    """The findings so far, as Markdown, and what is being checked."""
    lines: list[str] = []
    step = say("common.preparing")
    yield step
    try:
        for batch in closing(runner.batches(name, engine.check_pair), halt):
            for one in batch:
                if isinstance(one, engine.Finding):
                    lines.append(_found(one, say))
                else:
                    step = say("models.checking", step=say.step(one))
            yield "\n".join([*lines, "", as_text(step)])
    except SpecvizError as error:
        lines += ["", say("models.problem", reason=as_text(say.error(error)))]
    yield "\n".join(lines)


def _found(finding: Finding, say: Words) -> str:
    """A line of a list: the sign, what was checked, what was seen, and what to do."""
    seen = say.error(finding.seen) if isinstance(finding.seen, SpecvizError) else say.step(finding.seen)
    advice = "" if finding.advice is None else f" → {as_text(say.step(finding.advice))}"
    what = as_text(say.step(finding.what))
    return f"- {say(f'models.found_{finding.state}')} **{what}**: {as_text(seen)}{advice}"


def _wire_passes(desk: Desk, status: gr.Markdown, loads: list[Any]) -> None:
    """Looks at the passes when the page is opened, when another pair is in use, and on until there is nothing to wait
    for; first of all for the starting pair.

    Small requests of their own rather than an open stream: a page that is only looked at keeps no connection.
    """
    head, controls, store, say = desk.head, desk.controls, desk.runner.store, desk.say
    arriving = [*controls.arriving, *(component for component, _ in desk.arrivals)]

    def on_look(name: dict[str, Any], line: str, drafter: str) -> list[Any]:
        store.wanted.set()
        if not store.is_ready:
            return [*look_ahead(store, say), say("models.loading"), gr.skip(), *[gr.skip()] * len(arriving)]
        pair = store.in_use(PairName(**name))
        stage = store.preparer.stage(pair)
        looked = [*look(pair, stage, say), describe(pair, stage, say)]
        if line:
            return [*looked, gr.skip(), *[gr.skip()] * len(arriving)]
        arrived = [*controls.arrived(drafter), *(made(pair) for _, made in desk.arrivals)]
        return [*looked, as_text(pair_line(pair.info(), say)), *arrived]

    for moment in (desk.page.load, head.timer.tick, *(loaded.success for loaded in loads)):
        asked = [controls.pair, head.line, controls.fields["drafter"]]
        moment(on_look, asked, [head.chip, head.timer, status, head.line, *arriving], **QUIET)


def _create_catalog(desk: Desk, shown: list[Any]) -> list[Any]:
    """A button for each known pair; returns the events of loading them."""
    gr.Markdown(desk.say("models.catalog"))
    problem = gr.Markdown(elem_classes=["sv-problem"])
    with gr.Row(elem_classes=["sv-catalog"]):
        return [_catalog_button(desk, entry, [*shown, problem]) for entry in CATALOG]


def _create_form(runner: Runner, shown: list[Any], say: Words) -> Any:
    """Fields for a pair of the visitor's own; returns the event of loading it."""
    gr.Markdown(say("models.own"))
    with gr.Row():
        target = gr.Textbox(label=say("models.target"), placeholder=say("models.target_placeholder"))
        draft = gr.Textbox(label=say("models.draft"))
    with gr.Row():
        revision = gr.Textbox(label=say("models.revision"))
        dtype = gr.Dropdown(DTYPES, value="auto", label=say("models.dtype"))
    vocabulary = gr.Number(None, label=say("models.draft_vocabulary"), precision=0, elem_id="draft-vocabulary")
    problem = gr.Markdown(elem_classes=["sv-problem"])
    load = gr.Button(say("models.load"), variant="primary")

    def check(target: str, *others: str) -> list[dict[str, Any]]:
        named = gr.validate(bool(target.strip()), say("models.no_target"))
        return [named, *(gr.validate(True, "") for _ in others)]

    def load_own(
        target: str,
        draft: str,
        revision: str,
        dtype: str,
        vocabulary: int | None,
        progress: gr.Progress = gr.Progress(),
    ) -> Any:
        drafts = tuple(filter(None, map(str.strip, draft.split(","))))
        name = PairName(target.strip(), drafts, revision.strip() or None, dtype, vocabulary)
        return _load(runner, name, progress, say)

    return load.click(
        load_own,
        [target, draft, revision, dtype, vocabulary],
        [*shown, problem],
        validator=check,
        **LOADING,
    )


def _catalog_button(desk: Desk, entry: HubPair, outputs: list[Any]) -> Any:
    runner, say = desk.runner, desk.say
    button = gr.Button(catalog_label(entry, None, say), interactive=False, size="sm", min_width=240)

    def measured(pair: ModelPair) -> Any:
        available = engine.within_reach(runner.deployment.device)
        return gr.update(value=catalog_label(entry, available, say), interactive=needed_bytes(entry) <= available)

    def load(progress: gr.Progress = gr.Progress()) -> Any:
        return _load(runner, PairName(entry.target, (entry.draft,)), progress, say)

    desk.arrivals.append((button, measured))

    return button.click(load, None, outputs, **LOADING)


def catalog_label(entry: HubPair, available: int | None, say: Words) -> str:
    """The pair and its size, or what it needs where `available` bytes are known to be too few."""
    needed = needed_bytes(entry)
    if available is not None and needed > available:
        known = {"needed": Bytes(needed), "free": Bytes(available)}
        return say("models.entry_too_large", name=entry.name, **known)
    key = "models.entry_gated" if entry.gated else "models.entry"
    return say(key, name=entry.name, size=Bytes(size_bytes(entry)))


def _load(runner: Runner, name: PairName, progress: gr.Progress, say: Words) -> list[Any]:
    """Values for the pair, its description, the head's line and the place for a problem, beside what was pressed.

    A pair that cannot be loaded is a sentence there, and the pair in use stays.
    """
    try:
        with runner.line.joined("load") as turn:
            runner.line.reached(turn)
            runner.store.get(name, lambda fraction, step: progress(fraction, say.step(step)))
    except SpecvizError as error:
        return [gr.skip(), gr.skip(), gr.skip(), say("models.problem", reason=as_text(say.error(error)))]
    return [*_in_use(name, runner.store, say), ""]


def _in_use(name: PairName, store: PairStore, say: Words) -> list[Any]:
    pair = store.get(name)
    return [asdict(name), describe(pair, store.preparer.stage(pair), say), as_text(pair_line(pair.info(), say))]


def describe(pair: ModelPair, stage: Stage, say: Words) -> str:
    """The pair in use, T(K)/T(1) of the passes that runs take, and what became of better ones."""
    lines = [say("models.in_use", pair=as_text(pair_line(pair.info(), say)))]
    if pair.passes.seconds_by_width:
        one = pair.passes.seconds_by_width[1]
        costs = ", ".join(
            say("models.pass_cost", width=width, cost=say.number(cost / one, ".2f"))
            for width, cost in pair.passes.seconds_by_width.items()
            if width > 1
        )
        passes = passes_words(pair.passes.kind, say)
        lines.append(say("models.pass", passes=passes, milliseconds=say.number(1000 * one, ".1f"), costs=costs))
    lines += _about_passes(pair, stage, say)
    lines += [_about_quantised(bits, made, say) for bits, made in pair.passes.quantised.items()]
    if pair.passes.threads:
        lines.append(say("models.threads", count=pair.passes.threads))
    return "\n\n".join(lines)


def _about_passes(pair: ModelPair, stage: Stage, say: Words) -> list[str]:
    """What is being prepared; or which passes were, and why others were not."""
    by_kind: dict[str, list[str]] = {}
    lost = {role: passes.refusal for role, passes in pair.passes.fast.items() if passes.refusal is not None}
    for role, passes in pair.passes.fast.items():
        if role not in lost:
            by_kind.setdefault(passes.kind, []).append(role)
    lines = [say(f"models.prepared_{kind}", roles=_roles(roles, say)) for kind, roles in by_kind.items()]
    alike = [role for role, passes in pair.passes.fast.items() if passes.rows_are_alike and role not in lost]
    if "target" in alike:
        lines.append(say("models.rows_alike", roles=_roles(alike, say)))
    if stage.step is not None:
        return [*lines, as_text(say(f"passes.{pair.passes.kind}_yet", step=say.step(stage.step)))]
    refused: dict[tuple[str, str], list[str]] = {}
    for role, reason in (stage.done.reasons | lost).items():
        # Where kernels of our own are in use, only something better still was refused.
        key = "models.unprepared" if role in lost or role not in pair.passes.fast else "models.no_better"
        refused.setdefault((key, as_text(say.error(reason))), []).append(role)
    for (key, reason), roles in refused.items():
        lines.append(say(key, roles=_roles(roles, say), reason=reason))
    return lines


def _about_quantised(bits: int, made: QuantisedTarget, say: Words) -> str:
    """What the target in few bits takes, once it has drafted, what runs it, and why nothing better does."""
    kind, role = "plain" if made.passes is None else made.passes.kind, _roles([f"quantised {bits}"], say)
    lines = [say("models.quantised", role=role, size=Bytes(made.bytes), passes=passes_words(kind, say))]
    if made.passes is not None and made.passes.refusal is not None:
        lines.append(say("models.no_better", roles=role, reason=as_text(say.error(made.passes.refusal))))
    return "\n\n".join(lines)


def _roles(roles: Iterable[str], say: Words) -> str:
    """Roles of `PairPasses.fast` in words: ``target, draft model, exit after layer 2``."""
    named = (role.partition(" ") for role in roles)
    return ", ".join(say(f"passes.role_{kind}", n=number) for kind, _, number in named)
