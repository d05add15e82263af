"""The page's head: its name, its languages, the pair in use, and the chip that says which passes runs take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import gradio as gr

from specviz.records.words import LANGUAGES, Words
from specviz.ui.background import Stage
from specviz.ui.components import as_text, brand, element_view, page_names, tour_view
from specviz.ui.pairs import PairStore
from specviz.ui.runner import Runner
from specviz.views.run_messages import passes_words

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: Seconds between two looks at the passes while something is being prepared.
LOOK_EVERY = 2


@dataclass(frozen=True)
class Head:
    """What other parts change in it."""

    line: gr.Markdown  # the pair in use; empty until there is one
    chip: gr.Markdown  # its passes
    timer: gr.Timer  # has the chip look again


def create_head(runner: Runner, say: Words) -> Head:
    """Lays out the head; what the pair in use has to say comes when the page has asked for it."""
    with gr.Row(elem_classes=["sv-head"]):
        brand(say, runner.line.now)
        tour_view(say, runner.deployment.max_new_tokens, runner.deployment.max_draft_tokens)
        element_view("challenges", say)
        line = _languages_and_line("", say)
        chip = gr.Markdown("&nbsp;", elem_classes=["sv-passes"], elem_id="passes")
        return Head(line, chip, gr.Timer(LOOK_EVERY, active=False))


def create_viewer_head(say: Words) -> None:
    """Lays out the head of a page without models: no tour, no passes."""
    with gr.Row(elem_classes=["sv-head"]):
        brand(say)
        _languages_and_line(say("traces.no_model_line"), say)


def look(pair: ModelPair, stage: Stage, say: Words) -> list[gr.components.Component]:
    """Chip and timer as they are now: the passes, how far better ones are, and whether to look again."""
    kind = pair.passes.kind
    text = (
        say.spoken(passes_words(kind)) if stage.step is None else say(f"passes.{kind}_yet", step=say.step(stage.step))
    )
    return [_chip(text, "preparing" if stage.step else kind), gr.Timer(active=stage.step is not None)]


def look_ahead(store: PairStore, say: Words) -> list[gr.components.Component]:
    """The same while the first pair is being loaded."""
    return [_chip(say.step(store.step), "preparing"), gr.Timer(active=True)]


def _languages_and_line(line: str, say: Words) -> gr.Markdown:
    """Links to the page in its other languages, of which the first stands at the root, and the line about the pair."""
    first, *_ = LANGUAGES
    links = [
        f'<a href="{"./" if language == first else language}" hreflang="{language}" lang="{language}">{name}</a>'
        for language, name in LANGUAGES.items()
        if language != say.language
    ]
    gr.HTML(f"<nav>{' '.join(links)}</nav>", js_on_load=page_names(say), elem_classes=["sv-languages"])
    return gr.Markdown(as_text(line), elem_classes=["sv-pair"])


def _chip(text: str, kind: str) -> gr.Markdown:
    return gr.Markdown(as_text(text), elem_classes=["sv-passes", f"sv-passes-{kind}"])
