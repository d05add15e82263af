"""Sorts the names to draft with, a draft model and trained parts of the target, and loads the parts."""

import copy
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from huggingface_hub import snapshot_download
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from specviz.models.pair import Part
from specviz.models.refusals import Named, explaining, quantisation_of
from specviz.models.sources import is_hub_id, on_the_hub, quietly
from specviz.parts.dflash import load_dflash
from specviz.parts.eagle3 import load_eagle3
from specviz.parts.formats import PartFiles, recognise, settings_in
from specviz.parts.head_files import StoredWeights, load
from specviz.parts.heads import EagleHead, Head, MedusaHeads, MtpHead, ParallelHead
from specviz.parts.medusa import load_medusa
from specviz.parts.mlp_speculator import load_mlp_speculator
from specviz.parts.mtp_modules import MtpModules
from specviz.passes.devices import home_of, is_sharded, is_spread
from specviz.records.errors import SpecvizError, first_line

#: A name that is given: a folder, a file, or a Hub id.
Name = str | os.PathLike[str]

#: The class of a part of our own, by its drafter.
_PARTS: dict[str, type[Head | MedusaHeads]] = {
    part.kind: part for part in (MedusaHeads, EagleHead, MtpHead, ParallelHead)
}

#: Reads a part in a published format, by the format's name.
_LOADERS: dict[str, Callable[[PartFiles, PreTrainedModel], Part]] = {
    "DFlash": load_dflash,
    "Medusa": load_medusa,
    "MLP speculator": load_mlp_speculator,
    "EAGLE-3": load_eagle3,
    "P-EAGLE": load_eagle3,
}

#: The files of a part, whatever its format.
_FILES = ("*.json", "*.safetensors", "*.bin", "*.pt")


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
        folder = _folder(name, ["config.json"], revision, token)
        if is_hub_id(name) and _may_be_a_part(settings_in(folder)):
            folder = _folder(name, _FILES, revision, token)
        kind = _kind(folder, str(name)) or "draft_model"
        if kind in sorted_names:
            raise SpecvizError(
                "{first} and {second} draft in the same way ({kind}): name one of them.",
                "draft",
                first=str(sorted_names[kind]),
                second=str(name),
                kind=kind,
            )
        sorted_names[kind] = name
        if kind in _PARTS:
            folders[kind] = _folder(name, _FILES, revision, token)
    return sorted_names.get("draft_model"), folders


def _folder(named: Name, files: Sequence[str], revision: str | None, token: str | None) -> pathlib.Path:
    """The folder of that name; of one on the Hub, its place in the cache, once these `files` are there."""
    name = os.fspath(named).strip()
    if not is_hub_id(named) or name.endswith(".gguf"):
        return pathlib.Path(name).expanduser()
    options = on_the_hub(name, "draft", revision, token)
    with explaining("configuration", Named("draft", name)):
        return pathlib.Path(snapshot_download(name, allow_patterns=files, **options))


def _may_be_a_part(settings: dict[str, Any]) -> bool:
    """Whether its weights must be looked at: published heads call themselves models of a single layer."""
    return settings.get("num_hidden_layers", 1) == 1


def _kind(folder: pathlib.Path, name: str) -> str | None:
    """The drafter of the part that lies in `folder`; None for a model."""
    if (own := settings_in(folder).get("kind")) is not None:
        if own not in _PARTS:
            raise _unread(name, str(own))
        return own
    files = PartFiles.at(folder)
    form = recognise(files)
    if form is not None and form.drafter is None:
        raise _unread(name, form.name) if form.refusal is None else form.refusal(files)
    return None if form is None else form.drafter


def _unread(name: str, kind: str) -> SpecvizError:
    return SpecvizError(
        "{name} is a trained part in a format that is not read here ({kind}): name a draft model, a part made by "
        "python -m specviz.training, or a DFlash drafter.",
        "draft",
        name=name,
        kind=kind,
    )


def load_parts(
    target: PreTrainedModel, home: pathlib.Path, named: Mapping[str, pathlib.Path]
) -> tuple[dict[str, Part], dict[str, SpecvizError]]:
    """The trained parts by their drafters, and why any in the target's folder is unusable.

    home: the target's folder. named: folders of parts that are named, which take the places of those there; if one of
    them is unusable, that is an error (field ``draft``).
    """
    parts, flaws = {}, {}
    for name, part in _PARTS.items():
        folder = named.get(name, home / name)
        try:
            if name in named or (folder / "config.json").is_file():
                parts[name] = _load_part(part, folder, target)
            elif name == "mtp" and (modules := load_mtp_modules(target)):
                parts[name] = modules
        except SpecvizError as error:
            if name in named:
                raise error.at("draft") from error
            # A copy: the error itself holds on to the frames it passed through.
            flaws[name] = error.at("drafter")
    return parts, flaws


def _load_part(own: type[Head | MedusaHeads], folder: pathlib.Path, target: PreTrainedModel) -> Part:
    """The part in `folder`: in a published format, or one of our own of this class."""
    _kind(folder, str(folder))  # refuses what is not read
    files = PartFiles.at(folder)
    form = None if "kind" in files.settings else recognise(files)
    return load(own, folder, target) if form is None else _LOADERS[form.name](files, target)


def load_mtp_modules(target: PreTrainedModel) -> MtpModules | None:
    """The modules in this target's checkpoint, in evaluation mode, on its device and in its dtype; None if it has none,
    or if transformers does not know those of its family.

    Raises SpecvizError (field ``drafter``) if there are some that cannot be read here.
    """
    config = target.config.get_text_config()
    first, count = config.num_hidden_layers, getattr(config, "num_mtp_layers", None)
    stored = StoredWeights(target) if count else None
    if stored is None or stored.folder is None:
        return None
    # A twin that says where the files are, and what their weights are called: of families that count the modules as
    # further layers, transformers knows the numbers of the published sizes alone.
    source = copy.copy(target)
    source.config = copy.deepcopy(target.config)
    source.config.name_or_path = str(stored.folder)
    further = [rf"(^|\.)layers\.{layer}\." for layer in range(first, first + count)]
    source._keys_to_ignore_on_load_unexpected = [*(target._keys_to_ignore_on_load_unexpected or ()), *further]
    if not any(map(MtpModel.get_mtp_weights_regex(source).search, stored.names)):
        return None
    if quantisation_of(target.config) is not None or is_spread(target) or is_sharded(target):
        raise SpecvizError(
            "The MTP modules of a target that is quantised or lies on several devices are not read: choose another "
            "drafter.",
            "drafter",
        )
    try:
        with quietly():
            # To the CPU: transformers reads weights in threads of its own, where a lent GPU is not there.
            model = MtpModel.from_pretrained(source, device_map={"": torch.device("cpu")})
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        raise SpecvizError(
            "The MTP modules in {folder} cannot be read: {reason}.",
            "drafter",
            folder=stored.folder,
            reason=first_line(error),
        ) from error
    return MtpModules(model.eval().requires_grad_(False).to(home_of(target)), target)
