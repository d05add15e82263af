"""The Models tab: which pair, what fits, and what a pass of several tokens costs on this machine."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr

from specviz.catalog import CATALOG, HubPair, fits, in_words, size_bytes
from specviz.errors import SpecvizError
from specviz.models import ModelPair
from specviz.placement import free_memory
from specviz.ui.generate import pair_line
from specviz.ui.orders import PairName
from specviz.ui.stream import Runner

DTYPES = ["auto", "bfloat16", "float16", "float32"]


@dataclass(frozen=True)
class ModelsTab:
    """What other tabs need of this one."""

    pair: gr.JSON
    line: gr.Markdown


def create_models_tab(runner: Runner, line: gr.Markdown) -> ModelsTab:
    """Lays out the tab and wires its buttons; `line`, in the page's head, says which pair is in use."""
    # A hidden value rather than a gr.State: a page with State keeps a connection open for as long as it is.
    pair = gr.JSON(asdict(PairName()), visible=False)
    status = gr.Markdown(_describe(runner.store.home), elem_classes=["sv-pair-status"])
    outputs = [pair, status, line]
    home = gr.Button("Use the pair this page started with", size="sm")
    home.click(lambda: _chosen(runner, PairName()), None, outputs, api_visibility="private")
    if not runner.settings.allow_loading:
        return ModelsTab(pair, line)

    gr.Markdown(
        "### Well-known pairs\nFetched from the Hugging Face Hub when you press the button; sizes in half precision. "
        "Gated ones want their licence accepted and `HF_TOKEN` set."
    )
    available = free_memory(runner.store.home.device)
    with gr.Row(elem_classes=["sv-catalog"]):
        for entry in CATALOG:
            _catalog_button(runner, entry, available, outputs)

    gr.Markdown("### Your own pair\nFolders on this machine, or Hub ids. Both models must share one vocabulary.")
    with gr.Row():
        target = gr.Textbox(label="Target", placeholder="organisation/model or /path/to/folder")
        draft = gr.Textbox(label="Draft (may stay empty: prompt lookup needs none)")
    with gr.Row():
        revision = gr.Textbox(label="Revision (branch, tag or commit; may stay empty)")
        dtype = gr.Dropdown(DTYPES, value="auto", label="Precision (auto: the faster one, measured)")
    load = gr.Button("Load this pair", variant="primary")

    def load_own(target: str, draft: str, revision: str, dtype: str, progress: gr.Progress = gr.Progress()) -> Any:
        if not target.strip():
            raise gr.Error("Name a target model first.", print_exception=False)
        name = PairName(target.strip(), draft.strip() or None, revision.strip() or None, dtype)
        return _chosen(runner, name, progress)

    load.click(load_own, [target, draft, revision, dtype], outputs, concurrency_id="device", api_visibility="private")
    return ModelsTab(pair, line)


def _catalog_button(runner: Runner, entry: HubPair, available: int, outputs: list[Any]) -> None:
    fit, reason = fits(entry, available)
    access = " · gated" if entry.gated else ""
    label = f"{entry.name} · {in_words(size_bytes(entry))}{access}" if fit else f"{entry.name} · {reason}"
    button = gr.Button(label, interactive=fit, size="sm", min_width=240)

    def load(progress: gr.Progress = gr.Progress()) -> Any:
        return _chosen(runner, PairName(entry.target, entry.draft), progress)

    button.click(load, None, outputs, concurrency_id="device", api_visibility="private")


def _chosen(runner: Runner, name: PairName, progress: gr.Progress | None = None) -> tuple[dict[str, Any], str, str]:
    def tell(fraction: float, sentence: str) -> None:
        if progress is not None:
            progress(fraction, sentence)

    try:
        pair = runner.store.get(name, tell)
    except SpecvizError as error:
        raise gr.Error(html.escape(error.message), print_exception=False, duration=None) from error
    return asdict(name), _describe(pair), as_text(pair_line(pair.info()))


def _describe(pair: ModelPair) -> str:
    """The pair in use, and T(K)/T(1) as timed when it was loaded."""
    lines = [f"**In use:** {as_text(pair_line(pair.info()))}"]
    for dtype, seconds in pair.pass_seconds.items():
        costs = ", ".join(
            f"{width} tokens {seconds[width] / seconds[1]:.2f}×" for width in sorted(seconds) if width > 1
        )
        lines.append(f"A target pass in {dtype}, measured: {1000 * seconds[1]:.1f} ms for one token; {costs} of that.")
    if pair.threads:
        lines.append(f"Threads: {pair.threads}, the fewest that were about as fast as any number.")
    return "\n\n".join(lines)


def as_text(text: str) -> str:
    """Names of folders and models are data: none of Markdown's or HTML's signs may work."""
    return "".join(f"&#{ord(sign)};" if sign in "\\`*_{}[]<>()#+-!|&$~" else sign for sign in text)
