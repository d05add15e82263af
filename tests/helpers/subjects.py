"""What greedy text is tried on beside `matrix`: further architectures, files of a kind, parts that come with a file."""

import dataclasses
import pathlib
from collections.abc import Callable
from functools import partial

from assistant_files import gemma_folders, module_folders
from fast_passes import MAKERS, with_passes
from mtp_folders import save_with_modules
from tiny import MORE_ARCHITECTURES, byte_tokenizer, save_model, tiny_model, tiny_pair
from tiny_gguf import MERGES, SIZES, write_gguf

import specviz
from specviz.models.pair import ModelPair

#: What reads chains only. Windows: cohere2, gpt_oss, and gpt_neo with a mask of its own. A bias by place in the cache:
#: bloom and falcon_alibi, which take no such mask either, and mpt. Positions that begin at 2: roberta.
CHAINS_ONLY = {"bloom", "cohere2", "falcon_alibi", "gemma4", "gpt_neo", "gpt_oss", "llama4", "mpt", "roberta"}

#: What keeps its layers elsewhere than `exit_after` looks, or, as gemma4, has an input for each of them.
NO_EXIT = {"bert", "gemma4", "llama4", "opt", "roberta"}

#: Family and number of a checkpoint's own modules.
OWN_MODULES = [("deepseek_v3", 3), ("glm4_moe", 1), ("mellum", 1), ("mellum sliding", 1)]
OWN_MODULES += [("qwen3_next", 1), ("qwen3_5", 1)]

#: What writes a pair's files into a folder and loads it, and its ways to draft: drafter and branches -> the parameter
#: to put right, where it cannot draft in this way.
Subject = tuple[Callable[[pathlib.Path], ModelPair], dict[tuple[str, int | None], str | None]]


def endless(pair: ModelPair) -> ModelPair:
    """No token ends its texts."""
    return dataclasses.replace(pair, eos_ids=frozenset())


def further_pair(architecture: str) -> ModelPair:
    return endless(tiny_pair(architecture, seed=6, eos_token_id=None))


def loaded(*named: pathlib.Path, passes: str = "plain") -> ModelPair:
    pair = endless(specviz.load_pair(*named, device="cpu", dtype="float32"))
    return with_passes(pair, MAKERS[passes](pair))


def _architecture(name: str) -> Subject:
    chains, exits = name in CHAINS_ONLY, name not in NO_EXIT
    trees = "branches" if chains else None
    ways = {("draft_model", 1): None, ("draft_model", 3): trees, ("suffix", None): None}
    ways |= {("lookahead", None): "drafter" if chains else None, ("early_exit", 3): trees if exits else "drafter"}
    return lambda folder: further_pair(name), ways


def _gguf(folder: pathlib.Path) -> pathlib.Path:
    return write_gguf(folder / "tiny.Q8_0.gguf", tiny_model("llama", **SIZES))


def _gguf_for_a_folder(folder: pathlib.Path) -> ModelPair:
    target = save_model(folder / "target", tiny_model("llama", **SIZES), byte_tokenizer(MERGES))
    return loaded(target, _gguf(folder))


def _own_modules(family: str, modules: int) -> Subject:
    trees = "branches" if "sliding" in family or family.startswith("qwen") else None
    make = partial(save_with_modules, family=family, modules=modules)
    return lambda folder: loaded(make(folder)), {("mtp", 1): None, ("mtp", 3): trees}


def _part(write: Callable[[pathlib.Path], dict[str, pathlib.Path]], target: str, part: str, passes: str) -> Subject:
    def make(folder: pathlib.Path) -> ModelPair:
        folders = write(folder)
        return loaded(folders[target], folders[part], passes=passes)

    trees = {("mtp", 3): None} if (target, passes) == ("target", "plain") else {}
    return make, {("mtp", 1): None} | trees


SUBJECTS: dict[str, Subject] = {name: _architecture(name) for name in MORE_ARCHITECTURES}
SUBJECTS |= {f"{modules} modules of {family}": _own_modules(family, modules) for family, modules in OWN_MODULES}
SUBJECTS |= {
    "GGUF": (
        lambda folder: loaded(_gguf(folder)),
        dict.fromkeys((name, None) for name in ("prompt_lookup", "early_exit", "quantised_self", "lookahead")),
    ),
    "GGUF for itself": (lambda folder: loaded(*[_gguf(folder)] * 2), {("draft_model", None): None}),
    "GGUF for a folder": (_gguf_for_a_folder, {("draft_model", None): None}),
    "assistant, shared keys": _part(gemma_folders, "shared", "ordered", "plain"),
    "assistant, unified": _part(gemma_folders, "whole", "unified", "static"),
    "module in a file": _part(module_folders, "target", "qwen3", "plain"),
    "module in a file, on kernels": _part(module_folders, "target", "qwen3", "kernels"),
}
