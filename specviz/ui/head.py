"""The page's head: its name, its languages, the pair in use, and the chip that says which passes runs take."""

from __future__ import annotations

import html
from dataclasses import dataclass

import gradio as gr

from specviz.models.pair import ModelPair
from specviz.records.words import LANGUAGES, Words
from specviz.ui.background import Stage
from specviz.ui.components import as_text, page_names, tour_view
from specviz.ui.runner import Runner
from specviz.views.run_messages import pair_line, passes_words

#: Seconds between two looks at the passes while something is being prepared.
LOOK_EVERY = 2


@dataclass(frozen=True)
class Head:
    """What other parts change in it."""

    line: gr.Markdown  # the pair in use
    chip: gr.Markdown  # its passes
    timer: gr.Timer  # has the chip look again


def create_head(runner: Runner, say: Words) -> Head:
    """Lays out the head, the chip as it is before the page has asked."""
    home = runner.store.home
    with gr.Row(elem_classes=["sv-head"]):
        _brand(say)
        tour_view(say, runner.deployment.max_new_tokens, runner.deployment.max_draft_tokens)
        line = _languages_and_line(pair_line(home.info(), say), say)
        return Head(line, _chip(home, Stage(), say, elem_id="passes"), gr.Timer(LOOK_EVERY, active=False))


def create_viewer_head(say: Words) -> None:
    """Lays out the head of a page without models: no tour, no passes."""
    with gr.Row(elem_classes=["sv-head"]):
        _brand(say)
        _languages_and_line(say("traces.no_model_line"), say)


def look(pair: ModelPair, stage: Stage, say: Words) -> list[gr.components.Component]:
    """Chip and timer as they are now: the passes, how far better ones are, and whether to look again."""
    return [_chip(pair, stage, say), gr.Timer(active=stage.step is not None)]


def _brand(say: Words) -> None:
    subtitle = html.escape(say("page.subtitle"))
    gr.HTML(f"<h1>specviz</h1><p>{subtitle}</p>", elem_classes=["sv-brand"])


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


def _chip(pair: ModelPair, stage: Stage, say: Words, **options: str) -> gr.Markdown:
    kind = pair.passes.kind
    text = passes_words(kind, say) if stage.step is None else say(f"passes.{kind}_yet", step=say.step(stage.step))
    classes = ["sv-passes", f"sv-passes-{'preparing' if stage.step else kind}"]
    return gr.Markdown(as_text(text), elem_classes=classes, **options)
