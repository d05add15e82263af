"""Sorts the names to draft with, a draft model and trained parts of the target, and loads the parts."""

import contextlib
import copy
import os
import pathlib
import re
from collections.abc import Mapping, Sequence

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from specviz.models.pair import Part
from specviz.models.refusals import Named, explaining, quantisation_of
from specviz.models.sources import is_hub_id, on_the_hub, quietly
from specviz.passes.devices import home_of, is_sharded, is_spread
from specviz.passes.head_files import StoredWeights, load, settings_in
from specviz.passes.heads import EagleHead, Head, MedusaHeads, MtpHead, ParallelHead
from specviz.passes.published_heads import MtpModules, is_dflash, load_dflash
from specviz.records.errors import SpecvizError, first_line

#: A name that is given: a folder, a file, or a Hub id.
Name = str | os.PathLike[str]

#: The class of a part of our own, by its drafter.
_PARTS: dict[str, type[Head | MedusaHeads]] = {
    part.kind: part for part in (MedusaHeads, EagleHead, MtpHead, ParallelHead)
}

#: Published formats that are not read, by what only their configurations say: a key, a kind of model, a class.
_PUBLISHED = {
    "speculators": r"speculators_\w+|\w+Speculator",
    "PARD-2": r"pard2",
    "Medusa": r"medusa_num_heads|medusa|MedusaModel",
    "Hydra": r"hydra_num_heads",
    "MLP speculator": r"mlp_speculator|MLPSpeculator\w*",
    "Gemma 4 assistant": r"gemma4\w*_assistant",
    "DFlash for Muse": r"muse_glimmer_assistant",
    "DSpark": r"\w*DSpark\w*",
    "P-EAGLE": r"PEagle\w*",
    "EAGLE-3": r"draft_vocab_size|eagle_config|\w*Eagle3\w*",
}


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
        if kind in _PARTS:
            folders[kind] = _folder(name, ["*.json", "*.safetensors"], revision, token)
    return sorted_names.get("draft_model"), folders


def _folder(named: Name, files: Sequence[str], revision: str | None, token: str | None) -> pathlib.Path:
    """The folder of that name; of one on the Hub, its place in the cache, once these `files` are there."""
    name = os.fspath(named).strip()
    if not is_hub_id(named) or name.endswith(".gguf"):
        return pathlib.Path(name).expanduser()
    options = on_the_hub(name, "draft", revision, token)
    with explaining("configuration", Named("draft", name)):
        return pathlib.Path(snapshot_download(name, allow_patterns=files, **options))


def _kind(folder: pathlib.Path, name: Name) -> str | None:
    """The drafter of the part that lies in `folder`; None if it is not a part."""
    if is_dflash(folder):
        return "parallel"
    if found := _published_format(folder):
        raise _unread(str(name), found)
    return settings_in(folder).get("kind")


def _published_format(folder: pathlib.Path) -> str | None:
    """The format of the part in `folder` if it is none that is read; None for a part of our own, a model or nothing."""
    settings = settings_in(folder)
    if (kind := settings.get("kind")) is not None:
        return None if kind in _PARTS else str(kind)
    classes = settings.get("architectures")
    said = [*settings, settings.get("model_type"), settings.get("spd_type")]
    said += classes if isinstance(classes, list) else []
    for name, words in _PUBLISHED.items():
        if any(re.fullmatch(words, one) for one in said if isinstance(one, str)):
            return name
    # Published EAGLE heads call themselves Llama models; no such model begins with a layer that joins two inputs.
    for file in sorted(folder.glob("*.safetensors")):
        # A damaged file is reported where it is loaded.
        with contextlib.suppress(SafetensorError), safe_open(file, "pt") as opened:
            if "fc.weight" in opened.keys():  # noqa: SIM118
                return "EAGLE"
    return None


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
                if not is_dflash(folder) and (found := _published_format(folder)):
                    raise _unread(str(folder), found)
                parts[name] = load_dflash(folder, target) if is_dflash(folder) else load(part, folder, target)
            elif name == "mtp" and (modules := load_mtp_modules(target)):
                parts[name] = modules
        except SpecvizError as error:
            if name in named:
                raise error.at("draft") from error
            # A copy: the error itself holds on to the frames it passed through.
            flaws[name] = error.at("drafter")
    return parts, flaws


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
