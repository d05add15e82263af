"""The page's head: its name, its languages, the pair in use and the passes that runs take."""

from __future__ import annotations

import html
from dataclasses import dataclass

import gradio as gr

from specviz.records.words import LANGUAGES, Words
from specviz.ui.components import as_text, page_names, tour_view
from specviz.ui.passes_chip import PassesChip, create_passes_chip
from specviz.ui.runner import Runner
from specviz.views.run_messages import pair_line


@dataclass(frozen=True)
class Head:
    """What other parts change in it."""

    line: gr.Markdown  # the pair in use
    passes: PassesChip


def create_head(runner: Runner, say: Words) -> Head:
    """Lays out the head of a page with models; without them it has no tour and no passes."""
    home = runner.store.home
    with gr.Row(elem_classes=["sv-head"]):
        _brand(say)
        tour_view(say, runner.deployment.max_new_tokens, runner.deployment.max_draft_tokens)
        line = _languages_and_line(pair_line(home.info(), say), say)
        return Head(line, create_passes_chip(home, say))


def create_viewer_head(say: Words) -> None:
    """Lays out the head of a page without models."""
    with gr.Row(elem_classes=["sv-head"]):
        _brand(say)
        _languages_and_line(say("traces.no_model_line"), say)


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
