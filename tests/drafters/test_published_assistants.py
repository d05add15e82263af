"""Published drafters that go on from the target's last hidden state: assistants and modules in files of their own,
written here as they are published."""

import dataclasses
import math
import pickle
import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from assistant_files import (
    AT,
    FULL,
    SLIDING,
    assistant_config,
    assistant_weights,
    gemma_folders,
    module_config,
    module_folders,
    module_weights,
    saved,
)
from by_hand import attention, feed_forward, linear, norm
from fast_passes import MAKERS, with_passes
from published_heads import assert_rows, noted
from refusal import refusal, refused
from tiny import greedy_run
from transformers import AutoModelForCausalLM

import specviz
from specviz.drafters.heads import Mtp
from specviz.models import pass_checks
from specviz.passes import programs
from specviz.passes.kernels.chains import DraftsInOneCall
from specviz.passes.kernels.opened import OpenedProgram
from specviz.passes.roles import TARGET, Role
from specviz.records.settings import DraftParams, SamplingParams

HOT = SamplingParams(temperature=3.0)
PROMPT = [3, 5, 7, 11, 3, 5]


def loaded(target, draft, dtype="float32"):
    return dataclasses.replace(specviz.load_pair(target, draft, device="cpu", dtype=dtype), eos_ids=frozenset())


def drafts_of(monkeypatch, pair, branches):
    """(text, draft) of each round of a sampled run, some of which are kept."""
    looked, order = noted(monkeypatch, Mtp), {"drafter": "mtp", "drafting": DraftParams(branches=branches)}
    run = specviz.run(pair, PROMPT, sampling=HOT, num_draft_tokens=3, max_new_tokens=24, seed=4, **order)
    assert len(looked) > 5 and sum(one.accepted for one in run.rounds) > 1
    return looked


# Gemma 4 assistants


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return gemma_folders(tmp_path_factory.mktemp("gemma"))


@torch.inference_mode()
def row_in_transformers(assistant, target, text, branch):
    """Logits of what follows a branch after a text, from a pass over the text without its last token."""
    read = target(torch.tensor([text[:-1]]), output_hidden_states=True, return_shared_kv_states=True)
    held = {kind: read.shared_kv_states.get(kind, read.shared_kv_states[FULL]) for kind in (SLIDING, FULL)}
    held[SLIDING] = tuple(rows[:, :, -7:] for rows in held[SLIDING])  # the window without the token itself
    state = read.hidden_states[-1][:, -1:]
    for token in [text[-1], *branch]:
        inputs = torch.cat([target.get_input_embeddings()(torch.tensor([[token]])), state], -1)
        place = torch.tensor([[len(text) - 1]])
        made = assistant(inputs_embeds=inputs, position_ids=place, shared_kv_states=held)
        state = made.last_hidden_state
    row = made.logits[0, 0]
    # Tokens of groups that are not looked at all have the least.
    return row.masked_fill(row == row.min(), -math.inf) if assistant.config.use_ordered_embeddings else row


@pytest.mark.parametrize(
    "target, drafter, passes, branches",
    [
        ("shared", "ordered", "plain", None),
        ("shared", "ordered", "kernels", None),
        ("whole", "ordered", "static", None),
        ("whole", "unified", "kernels", None),
        ("shared", "ordered", "graphs", None),
        ("full", "all full", "plain", 3),
        ("full", "all full", "kernels", 3),
    ],
)
def test_an_assistant_drafts_from_the_targets_own_keys_and_values_as_in_transformers(
    gemma, target, drafter, passes, branches, monkeypatch
):
    assistant, info = AutoModelForCausalLM.from_pretrained(gemma[drafter], output_loading_info=True)
    assert not any(info.values())
    pair = prepared(loaded(gemma[target], gemma[drafter]), passes)
    looked = drafts_of(monkeypatch, pair, branches)
    assert len(looked[-1][0]) > 3 * 8, "far beyond the window"
    assert_rows(looked, partial(row_in_transformers, assistant, pair.target))
    assert all((draft.logits.isneginf().sum(-1) == (0 if drafter == "unified" else 10)).all() for _, draft in looked)


@pytest.mark.parametrize("drafter", ["ordered", "unified"])
def test_an_assistants_pass_is_right_and_can_be_compiled_in_another_process(gemma, drafter, tmp_path, monkeypatch):
    monkeypatch.setattr(pass_checks, "_refuse_slower", lambda *given: None)
    fast = prepared(loaded(gemma["whole"], gemma[drafter], "bfloat16"), "kernels").passes.fast
    static = fast[Role("mtp")].static
    assert pass_checks.on_kernels(static, fast[TARGET]).by_kernels
    with refused("passes", "The target has no fast passes"):
        pass_checks.on_kernels(static, None)
    (tmp_path / "pass").write_bytes(pickle.dumps(static))
    run = "import pickle, sys; from specviz.passes.programs import exported\n"
    run += "exported(pickle.load(open(sys.argv[1], 'rb')))"
    subprocess.run([sys.executable, "-c", run, tmp_path / "pass"], check=True)


@pytest.mark.wide
def test_an_assistants_program_drafts_chains_and_trees_in_one_call(gemma, tmp_path, monkeypatch):
    pair = prepared(loaded(gemma["full"], gemma["all full"]), "kernels")
    passes, (assistant, file) = pair.passes.fast[Role("mtp")], (gemma["all full"], tmp_path / "program.pt2")
    programs.build(pickle.loads(pickle.dumps(passes.static)), file)
    draft = DraftsInOneCall(passes.static, OpenedProgram.of(programs.Program(passes.static, file))).draft
    calls = []
    passes.draft = lambda *given: calls.append(given) or draft(*given)
    for branches in (None, 3):
        looked = drafts_of(monkeypatch, pair, branches)
        assert_rows(looked, partial(row_in_transformers, AutoModelForCausalLM.from_pretrained(assistant), pair.target))
        assert len(calls) == len(looked)
        calls.clear()


# Modules in files of their own


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return module_folders(tmp_path_factory.mktemp("modules"))


@torch.inference_mode()
def module_by_hand(weights, target, text, branch):
    """Logits of what follows a branch after a text, over the whole of both at once."""

    def states_of(ids, states):
        embeddings = target.get_input_embeddings()(torch.tensor(ids))
        joined = [norm(weights, f"{AT}.token_layernorm", embeddings), norm(weights, f"{AT}.hidden_layernorm", states)]
        x = linear(weights, f"{AT}.input_proj", torch.cat(joined, -1))
        x = x + attention(weights, f"{AT}.self_attn", norm(weights, f"{AT}.input_layernorm", x), 8)
        x = x + feed_forward(weights, f"{AT}.mlp", norm(weights, f"{AT}.post_attention_layernorm", x))
        return norm(weights, f"{AT}.final_layernorm", x)

    last = []
    hook = target.model.norm.register_forward_pre_hook(lambda _, given: last.append(given[0][0]))
    target(torch.tensor([text[:-1]]))
    hook.remove()
    states, ids = last[0], [*text[1:], *branch]
    while True:
        found = states_of(ids[: len(states)], states)
        if len(states) == len(ids):
            return target.get_output_embeddings()(found[-1])
        states = torch.cat([states, found[-1:]])


@pytest.mark.parametrize(
    "family, passes, branches",
    [("qwen3", "plain", None), ("qwen2", "plain", 3), ("llama", "static", None), ("qwen3", "kernels", None)],
)
def test_a_module_in_a_file_of_its_own_goes_on_from_the_targets_last_layer(
    modules, family, passes, branches, monkeypatch
):
    pair, weights = prepared(loaded(modules["target"], modules[family]), passes), module_weights(family)
    assert_rows(drafts_of(monkeypatch, pair, branches), partial(module_by_hand, weights, pair.target))


# Both


def prepared(pair, passes):
    """The pair with passes of this kind (`fast_passes.MAKERS`)."""
    return with_passes(pair, MAKERS[passes](dataclasses.replace(pair, draft=pair.target)))


def test_beside_copies_they_draft_too(gemma, modules):
    for target, part in [(gemma["shared"], gemma["ordered"]), (modules["target"], modules["qwen3"])]:
        run = greedy_run(loaded(target, part), [*PROMPT, *PROMPT], 24, drafter="hybrid")
        assert len({token.source for one in run.rounds for token in one.drafted}) > 1


def test_half_precision_keeps_the_positions(gemma, modules):
    for target, part in [(gemma["shared"], gemma["ordered"]), (modules["target"], modules["qwen3"])]:
        pair = loaded(target, part, "bfloat16")
        own = pair.parts["mtp"]
        assert {weight.dtype for weight in own.parameters()} == {torch.bfloat16}
        assert {one.dtype for name, one in own.named_buffers() if "inv_freq" in name} == {torch.float32}
        assert specviz.run(pair, PROMPT, drafter="mtp", max_new_tokens=8).token_ids


def test_their_readings_and_neighbours_are_named(gemma, modules):
    own = loaded(gemma["shared"], gemma["ordered"]).parts["mtp"]
    assert own.facts()["keys_and_values"] == {SLIDING: 0, FULL: 1} and own.facts()["hidden_states"] == [4]
    assert own.facts()["place"] == "last token"
    module = loaded(modules["target"], modules["qwen3"]).parts["mtp"]
    assert module.facts()["state"] == "before the target's last norm"
    for part in (own, module):
        readings = [part.facts(), *(other.facts() for other in part.variants().values())]
        assert all(one not in readings[:index] for index, one in enumerate(readings))


def other_text(**changes):
    return lambda config, weights: config["text_config"].update(changes)


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda config, weights: config.update(backbone_hidden_size=64), "another target: hidden_size is 64"),
        (other_text(vocab_size=32), "another target: vocab_size is 32"),
        (other_text(global_head_dim=8), r"another target: head_dim \(full_attention\) is 8"),
        (other_text(sliding_window=4), "another target: sliding_window is 4"),
        (other_text(hidden_size="wide"), "does not describe an? .+ part"),
        (lambda config, weights: weights["masked_embedding.token_ordering"].fill_(3), "groups of tokens"),
        (lambda config, weights: config.update(centroid_intermediate_top_k=9), "groups of tokens"),
    ],
)
def test_a_bad_assistant_is_refused_by_what_is_wrong(gemma, change, sentence, tmp_path):
    config = assistant_config()
    weights = assistant_weights(config)
    change(config, weights)
    assert re.search(sentence, refusal("draft", loaded, gemma["whole"], saved(tmp_path / "bad", config, weights)))


def test_parts_of_other_targets_are_refused(gemma, modules, tmp_path):
    assert "keys and values of a Gemma 4 model" in refusal("draft", loaded, modules["target"], gemma["ordered"])
    config = module_config("qwen3", vocab=32)
    assert "another target: vocab_size is 32" in refusal(
        "draft", loaded, modules["target"], saved(tmp_path / "other", config, module_weights())
    )
    config = module_config("qwen3_next")
    assert "family qwen3_next" in refusal(
        "draft", loaded, modules["target"], saved(tmp_path / "hybrid", config, module_weights())
    )
