"""The Models tab: which pair, what fits, and what a pass of several tokens costs on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr

from specviz.models.catalog import CATALOG, HubPair, needed_bytes, size_bytes
from specviz.models.pair import ModelPair
from specviz.models.placement import within_reach
from specviz.records.errors import SpecvizError
from specviz.records.words import Words, bytes_in_words
from specviz.ui.background import Stage
from specviz.ui.components import as_text
from specviz.ui.generate_tab import pair_line
from specviz.ui.orders import PairName, PairStore
from specviz.ui.runner import Runner
from specviz.views.run_messages import passes_words

DTYPES = ["auto", "bfloat16", "float16", "float32"]


@dataclass(frozen=True)
class ModelsTab:
    """What other parts need of this one. pair: the name of the pair in use. loads: the events that change it.

    status: what `describe` says of it. line: its line in the page's head.
    """

    pair: gr.JSON
    status: gr.Markdown
    line: gr.Markdown
    loads: list[Any]


def create_models_tab(runner: Runner, line: gr.Markdown, say: Words) -> ModelsTab:
    """Lays out the tab and wires its buttons; `line`, in the page's head, says which pair is in use."""
    # A hidden value rather than a gr.State: a page with State keeps a connection open for as long as it is.
    pair = gr.JSON(asdict(PairName()), visible=False)
    status = gr.Markdown(describe(runner.store.home, Stage(), say), elem_classes=["sv-pair-status"])
    home = gr.Button(say("models.home"), size="sm")
    returned = home.click(
        lambda: _in_use(PairName(), runner.store, say), None, [pair, status, line], api_visibility="private"
    )
    if not runner.settings.allow_loading:
        return ModelsTab(pair, status, line, [returned])

    gr.Markdown(say("models.catalog"))
    problem = gr.Markdown(elem_classes=["sv-problem"])
    available = within_reach(runner.settings.device)
    with gr.Row(elem_classes=["sv-catalog"]):
        shown = [pair, status, line, problem]
        fetched = [_catalog_button(runner, entry, available, shown, say) for entry in CATALOG]

    gr.Markdown(say("models.own"))
    with gr.Row():
        target = gr.Textbox(label=say("models.target"), placeholder=say("models.target_placeholder"))
        draft = gr.Textbox(label=say("models.draft"))
    with gr.Row():
        revision = gr.Textbox(label=say("models.revision"))
        dtype = gr.Dropdown(DTYPES, value="auto", label=say("models.dtype"))
    with gr.Row():
        medusa = gr.Textbox(label=say("models.medusa"))
        eagle = gr.Textbox(label=say("models.eagle"))
    own_problem = gr.Markdown(elem_classes=["sv-problem"])
    load = gr.Button(say("models.load"), variant="primary")

    def check(target: str, *others: str) -> list[dict[str, Any]]:
        named = gr.validate(bool(target.strip()), say("models.no_target"))
        return [named, *(gr.validate(True, "") for _ in others)]

    def load_own(
        target: str,
        draft: str,
        revision: str,
        dtype: str,
        medusa: str,
        eagle: str,
        progress: gr.Progress = gr.Progress(),
    ) -> Any:
        draft, revision, medusa, eagle = (text.strip() or None for text in (draft, revision, medusa, eagle))
        return _load(runner, PairName(target.strip(), draft, revision, dtype, medusa, eagle), progress, say)

    loaded = load.click(
        load_own,
        [target, draft, revision, dtype, medusa, eagle],
        [pair, status, line, own_problem],
        validator=check,
        concurrency_id="device",
        api_visibility="private",
    )
    return ModelsTab(pair, status, line, [returned, *fetched, loaded])


def _catalog_button(runner: Runner, entry: HubPair, available: int, outputs: list[Any], say: Words) -> Any:
    fits = needed_bytes(entry) <= available
    button = gr.Button(catalog_label(entry, available, say), interactive=fits, size="sm", min_width=240)

    def load(progress: gr.Progress = gr.Progress()) -> Any:
        return _load(runner, PairName(entry.target, entry.draft), progress, say)

    return button.click(load, None, outputs, concurrency_id="device", api_visibility="private")


def catalog_label(entry: HubPair, available: int, say: Words) -> str:
    """The pair and its size, or what it needs where `available` bytes are too few."""
    needed = needed_bytes(entry)
    if needed > available:
        known = {"needed": bytes_in_words(needed), "free": bytes_in_words(available)}
        return say("models.entry_too_large", name=entry.name, **known)
    key = "models.entry_gated" if entry.gated else "models.entry"
    return say(key, name=entry.name, size=bytes_in_words(size_bytes(entry)))


def _load(runner: Runner, name: PairName, progress: gr.Progress, say: Words) -> list[Any]:
    """Values for the pair, its description, the head's line and the place for a problem, beside what was pressed.

    A pair that cannot be loaded is a sentence there, and the pair in use stays.
    """
    try:
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
            say("models.pass_cost", width=width, cost=f"{cost / one:.2f}")
            for width, cost in pair.passes.seconds_by_width.items()
            if width > 1
        )
        passes = passes_words(pair.passes.kind, say)
        lines.append(say("models.pass", passes=passes, milliseconds=f"{1000 * one:.1f}", costs=costs))
    lines += _about_passes(pair, stage, say)
    if len(pair.passes.seconds_by_dtype) > 1:
        tried = ", ".join(
            say("models.tried", dtype=dtype, milliseconds=f"{1000 * seconds[1]:.1f}")
            for dtype, seconds in pair.passes.seconds_by_dtype.items()
        )
        lines.append(say("models.precision", tried=tried))
    if pair.passes.threads:
        lines.append(say("models.threads", count=pair.passes.threads))
    return "\n\n".join(lines)


def _about_passes(pair: ModelPair, stage: Stage, say: Words) -> list[str]:
    """What is being prepared; or which passes were, and why others were not."""
    by_kind: dict[str, list[str]] = {}
    for role, passes in pair.passes.fast.items():
        by_kind.setdefault(passes.kind, []).append(role)
    lines = [say(f"models.prepared_{kind}", roles=_roles(roles, say)) for kind, roles in by_kind.items()]
    if stage.step is not None:
        return [*lines, as_text(say(f"passes.{pair.passes.kind}_yet", step=say.step(stage.step)))]
    refused: dict[str, list[str]] = {}
    for role, reason in stage.done.reasons.items():
        refused.setdefault(as_text(say.error(reason)), []).append(role)
    for reason, roles in refused.items():
        lines.append(say("models.unprepared", roles=_roles(roles, say), reason=reason))
    return lines


def _roles(roles: Iterable[str], say: Words) -> str:
    """Roles of `ModelPair.passes` in words: ``target, draft model, exit after layer 2``."""
    named = (role.partition(" ") for role in roles)
    return ", ".join(say(f"passes.role_{kind}", layer=layer) for kind, _, layer in named)
