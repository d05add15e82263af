"""What was named to draft with: which of it is a draft model and which a trained part of the target, and the parts."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence

from huggingface_hub import snapshot_download
from transformers import PreTrainedModel

from specviz.models.mtp_modules import load_mtp_modules
from specviz.models.pair import Part
from specviz.models.refusals import explaining
from specviz.models.sources import is_hub_id, on_the_hub
from specviz.passes.dflash import is_dflash, load_dflash
from specviz.passes.parallel_head import load_parallel
from specviz.passes.trained_heads import load_eagle, load_medusa, load_mtp, settings_in
from specviz.records.errors import SpecvizError

#: What somebody names: a folder, a file, or a Hub id.
Name = str | os.PathLike[str]

#: By its drafter, what reads a part.
_LOADS = {"medusa": load_medusa, "eagle": load_eagle, "mtp": load_mtp, "parallel": load_parallel}

#: Settings by which trained parts in other programs' formats are known.
_FOREIGN = ("medusa_num_heads", "draft_vocab_size", "speculators_model_type", "speculators_config", "eagle_config")


def sort_drafts(
    named: Sequence[Name], revision: str | None, token: str | None
) -> tuple[Name | None, dict[str, pathlib.Path]]:
    """The draft model among what was named, and the folders of trained parts by their drafters.

    Parts on the Hub are fetched. Raises SpecvizError (field ``draft``) for two that draft in the same way, and for
    parts in formats that are not read.
    """
    sorted_names: dict[str, Name] = {}
    folders: dict[str, pathlib.Path] = {}
    for name in named:
        kind = _kind(_folder(name, ["config.json"], revision, token), name) or "draft_model"
        if kind in sorted_names:
            raise SpecvizError(
                "{first} and {second} draft in the same way ({kind}): name one of them.",
                "draft",
                first=str(sorted_names[kind]),
                second=str(name),
                kind=kind,
            )
        sorted_names[kind] = name
        if kind in _LOADS:
            folders[kind] = _folder(name, ["*.json", "*.safetensors"], revision, token)
    return sorted_names.get("draft_model"), folders


def _folder(named: Name, files: Sequence[str], revision: str | None, token: str | None) -> pathlib.Path:
    """The folder of that name; of one on the Hub, its place in the cache, once these `files` are there."""
    name = os.fspath(named).strip()
    if not is_hub_id(named) or name.endswith(".gguf"):
        return pathlib.Path(name).expanduser()
    options = on_the_hub(name, "draft", revision, token)
    with explaining("configuration", name, "draft"):
        return pathlib.Path(snapshot_download(name, allow_patterns=files, **options))


def _kind(folder: pathlib.Path, name: Name) -> str | None:
    """The drafter of the part that lies in `folder`; None if that is no part."""
    if is_dflash(folder):
        return "parallel"
    settings = settings_in(folder)
    kind = settings.get("kind") or next((key for key in _FOREIGN if key in settings), None)
    if kind is not None and kind not in _LOADS:
        raise SpecvizError(
            "{name} is a trained part in a format that is not read here ({kind}): name a draft model, a part made by "
            "python -m specviz.training, or a DFlash drafter.",
            "draft",
            name=str(name),
            kind=kind,
        )
    return kind


def load_parts(
    target: PreTrainedModel, home: pathlib.Path, named: Mapping[str, pathlib.Path]
) -> tuple[dict[str, Part], dict[str, SpecvizError]]:
    """The trained parts by their drafters, and why any that lies beside the target is unusable.

    home: the target's folder. named: folders of parts that are named, which take the places of those beside it; for one
    of these, being unusable is an error (field ``draft``).
    """
    parts, flaws = {}, {}
    for name, load in _LOADS.items():
        folder = named.get(name, home / name)
        try:
            if name in named or (folder / "config.json").is_file():
                parts[name] = (load_dflash if is_dflash(folder) else load)(folder, target)
            elif name == "mtp" and (modules := load_mtp_modules(target)):
                parts[name] = modules
        except SpecvizError as error:
            if name in named:
                raise error.at("draft") from error
            # A copy: the error itself holds on to the frames it passed through.
            flaws[name] = error.at("drafter")
    return parts, flaws
