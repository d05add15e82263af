"""The Models tab: which pair, what fits, and what a pass of several tokens costs on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr

from specviz.catalog import CATALOG, HubPair, fits, in_words, size_bytes
from specviz.errors import SpecvizError
from specviz.models import ModelPair
from specviz.placement import free_memory
from specviz.ui.components import as_text
from specviz.ui.generate import pair_line
from specviz.ui.orders import PairName
from specviz.ui.stream import Runner
from specviz.words import Words

DTYPES = ["auto", "bfloat16", "float16", "float32"]


@dataclass(frozen=True)
class ModelsTab:
    """What other tabs need of this one. pair: the name of the pair in use. loads: the events that change it."""

    pair: gr.JSON
    line: gr.Markdown
    loads: list[Any]


def create_models_tab(runner: Runner, line: gr.Markdown, say: Words) -> ModelsTab:
    """Lays out the tab and wires its buttons; `line`, in the page's head, says which pair is in use."""
    # A hidden value rather than a gr.State: a page with State keeps a connection open for as long as it is.
    pair = gr.JSON(asdict(PairName()), visible=False)
    status = gr.Markdown(_describe(runner.store.home), elem_classes=["sv-pair-status"])
    home = gr.Button("Use the pair this page started with", size="sm")
    returned = home.click(
        lambda: _in_use(PairName(), runner.store.home), None, [pair, status, line], api_visibility="private"
    )
    if not runner.settings.allow_loading:
        return ModelsTab(pair, line, [returned])

    gr.Markdown(
        "### Well-known pairs\nFetched from the Hugging Face Hub when you press the button; sizes in half precision. "
        "Gated ones want their licence accepted and `HF_TOKEN` set."
    )
    problem = gr.Markdown(elem_classes=["sv-problem"])
    available = free_memory(runner.store.home.device)
    with gr.Row(elem_classes=["sv-catalog"]):
        fetched = [_catalog_button(runner, entry, available, [pair, status, line, problem]) for entry in CATALOG]

    gr.Markdown(
        "### Your own pair\nFolders on this machine, or Hub ids. A draft with another tokenizer guesses among the "
        "tokens that both have."
    )
    with gr.Row():
        target = gr.Textbox(label="Target", placeholder="organisation/model or /path/to/folder")
        draft = gr.Textbox(label="Draft (may stay empty: prompt lookup needs none)")
    with gr.Row():
        revision = gr.Textbox(label="Revision (branch, tag or commit; may stay empty)")
        dtype = gr.Dropdown(DTYPES, value="auto", label="Precision (auto: the faster one, measured)")
    with gr.Row():
        medusa = gr.Textbox(label="Trained Medusa heads (folder; may stay empty)")
        eagle = gr.Textbox(label="Trained EAGLE head (folder; may stay empty)")
    own_problem = gr.Markdown(elem_classes=["sv-problem"])
    load = gr.Button("Load this pair", variant="primary")

    def check(target: str, *others: str) -> list[dict[str, Any]]:
        named = gr.validate(bool(target.strip()), "Name a target model first.")
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
        return _load(runner, PairName(target.strip(), draft, revision, dtype, medusa, eagle), progress)

    loaded = load.click(
        load_own,
        [target, draft, revision, dtype, medusa, eagle],
        [pair, status, line, own_problem],
        validator=check,
        concurrency_id="device",
        api_visibility="private",
    )
    return ModelsTab(pair, line, [returned, *fetched, loaded])


def _catalog_button(runner: Runner, entry: HubPair, available: int, outputs: list[Any]) -> Any:
    fit, reason = fits(entry, available)
    access = " · gated" if entry.gated else ""
    label = f"{entry.name} · {in_words(size_bytes(entry))}{access}" if fit else f"{entry.name} · {reason}"
    button = gr.Button(label, interactive=fit, size="sm", min_width=240)

    def load(progress: gr.Progress = gr.Progress()) -> Any:
        return _load(runner, PairName(entry.target, entry.draft), progress)

    return button.click(load, None, outputs, concurrency_id="device", api_visibility="private")


def _load(runner: Runner, name: PairName, progress: gr.Progress) -> list[Any]:
    """Values for the pair, its description, the head's line and the place for a problem, beside what was pressed.

    A pair that cannot be loaded is a sentence there, and the pair in use stays.
    """
    try:
        pair = runner.store.get(name, lambda fraction, sentence: progress(fraction, sentence))
    except SpecvizError as error:
        return [gr.skip(), gr.skip(), gr.skip(), f"✗ {as_text(error.message)}"]
    return [*_in_use(name, pair), ""]


def _in_use(name: PairName, pair: ModelPair) -> list[Any]:
    return [asdict(name), _describe(pair), as_text(pair_line(pair.info()))]


def _describe(pair: ModelPair) -> str:
    """The pair in use, and T(K)/T(1) as timed when it was loaded."""
    lines = [f"**In use:** {as_text(pair_line(pair.info()))}"]
    if pair.width_seconds:
        one = pair.width_seconds[1]
        costs = ", ".join(
            f"{width} tokens {cost / one:.2f}×" for width, cost in pair.width_seconds.items() if width > 1
        )
        lines.append(f"A target pass, measured here: {1000 * one:.1f} ms for one token; {costs} of that.")
    if len(pair.pass_seconds) > 1:
        tried = ", ".join(f"{dtype} {1000 * seconds[1]:.1f} ms" for dtype, seconds in pair.pass_seconds.items())
        lines.append(f"Precision: the faster of those tried ({tried} a token).")
    if pair.threads:
        lines.append(f"Threads: {pair.threads}, the fewest that were about as fast as any number.")
    return "\n\n".join(lines)
