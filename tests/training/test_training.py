"""The recipes: each lowers its held-out loss, goes on where it stopped, never learns what it is measured on."""

import copy
import gzip
import json
import lzma
import math
import pathlib
import random
import re
from dataclasses import replace

import pytest
import torch
from refusal import refused
from tiny import byte_tokenizer, save_model, tiny_model
from transformers import AutoModelForCausalLM

from specviz.models.loading import load_pair
from specviz.models.placement import Place
from specviz.models.trained_parts import load_part
from specviz.parts.head_passes import HeadModel
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import Stopwatch
from specviz.records.errors import SpecvizError
from specviz.training import __main__ as command
from specviz.training import dspark, losses, models, parts
from specviz.training import forecast as forecasts
from specviz.training.data import (
    BLOCK_SIZE,
    ROWS,
    Corpus,
    Text,
    batches_to_write,
    continue_texts,
    held_out_blocks,
    read_corpus,
    with_target_text,
)
from specviz.training.heads import Eagle3Recipe
from specviz.training.loop import Schedule, checkpoint_of, learning_rate_factor, orthogonalised, train, validate
from specviz.training.losses import agreement, distillation
from specviz.training.models import DraftRecipe, small_llama


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A text with some pattern to it: three-word sentences over a small lexicon."""
    rng = random.Random(0)
    who, what, how = (["the fox", "a girl", "my king"], ["ran", "sang", "slept"], ["home.", "well.", "long."])
    text = " ".join(" ".join(map(rng.choice, (who, what, how))) for _ in range(1200))
    file = tmp_path_factory.mktemp("text") / "story.txt"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def corpus(story):
    return read_corpus([story], byte_tokenizer())


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory):
    """A target that writes something other than noise: a tiny random one whose distributions are soft."""
    target = tiny_model("llama")
    with torch.no_grad():
        target.lm_head.weight.mul_(0.4)
    return save_model(tmp_path_factory.mktemp("model") / "target", target)


@pytest.fixture
def target(target_folder):
    return AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32)


def schedule(folder, steps, every=10_000):
    return Schedule(tokens=steps * 2 * BLOCK_SIZE, rows=2, lr=5e-3, folder=folder, every=every)


def run(*arguments):
    return command.main([str(argument) for argument in arguments])


STEPS = 24
SMALL = ("--batch", 2, "--device", "cpu", "--dtype", "float32", "--held-out", 512, "--lr", 0.02)
SMALL = (*SMALL, "--tokens", STEPS * 2 * BLOCK_SIZE, "--every", 8)


def held_out_losses(text):
    """Predictor -> its losses in the order in which they were printed."""
    losses = {}
    for name, value in re.findall(r"story\.txt +(.+?) +loss ([\d.]+)", text):
        losses.setdefault(name, []).append(float(value))
    return losses


@pytest.mark.parametrize(
    ("name", "multiplies", "dtype"), [("target", True, torch.bfloat16), ("medusa", False, torch.float32)]
)
def test_auto_trains_in_what_the_processor_multiplies_in(
    name, multiplies, dtype, target_folder, story, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: multiplies)
    taken = []
    monkeypatch.setattr(command, "train", lambda recipe, *rest: taken.append(recipe.dtype))
    monkeypatch.setattr(command, "forecast", lambda *given: "")
    own = ("--tokenizer", target_folder) if name == "target" else ("--target", target_folder, "--continuations", 0)
    assert run(name, *own, "--text", story, "--out", tmp_path, "--device", "cpu") == 0
    assert taken == [dtype]


@pytest.mark.parametrize("name", ["eagle", "medusa", "mtp", "parallel", "draft"])
def test_a_recipe_for_a_target_learns_and_says_how_well(name, target_folder, target, story, tmp_path, capsys):
    sizes = ("--width", 64, "--layers", 1) if name == "draft" else ()
    text = ("--target", target_folder, "--text", story, "--continuations", 0, "--out", tmp_path / name)
    assert run(name, *text, *SMALL, *sizes) == 0
    printed = capsys.readouterr()
    losses = held_out_losses(printed.out)
    assert all(values[-1] < 0.9 * values[0] for values in losses.values()), losses
    last = printed.out[printed.out.rindex(f"{name} in ") :]
    rates = [float(rate) for rate in re.findall(r"(?:Σ min\(p, q\)|agree) ([\d.]+)", last)]
    assert len(rates) == 2 * {"eagle": 5, "medusa": 4, "mtp": 5, "parallel": 8, "draft": 1}[name]
    assert all(0 <= rate <= 1 for rate in rates)
    assert f"{STEPS}/{STEPS}" in printed.err
    if name == "draft":
        AutoModelForCausalLM.from_pretrained(tmp_path / name)
    else:
        load_part(name, tmp_path / name, target)
    assert not list(tmp_path.glob("**/*.checkpoint.pt"))
    if name in ("medusa", "mtp"):  # a head that is there learns on
        assert run(name, *text[:-1], tmp_path / "second", *SMALL, "--start", tmp_path / name) == 0
        for predictor, values in held_out_losses(capsys.readouterr().out).items():
            assert values[0] == pytest.approx(losses[predictor][-1], rel=0.02)  # saved in bfloat16
            assert values[-1] < values[0]


def test_the_target_recipe_trains_a_model_with_early_exits_from_nothing(story, target_folder, tmp_path, capsys):
    sizes = ("--width", 64, "--layers", 4, "--tokenizer", target_folder, "--out", tmp_path)
    assert run("target", "--text", story, *SMALL, *sizes) == 0
    losses = held_out_losses(capsys.readouterr().out)
    assert set(losses) == {"last layer", "exit at 2", "exit at 3"}
    assert all(values[-1] < 0.9 * values[0] for values in losses.values())
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (model.config.num_hidden_layers, model.dtype) == (4, torch.bfloat16)


def test_a_target_is_compiled_trained_on_and_saved(target_folder, target, story, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: compiled.append(type(self)))
    start = ("--tokenizer", target_folder, "--start", target_folder, "--compile")
    few = ("--batch", 1, "--tokens", 2 * BLOCK_SIZE, "--held-out", 512, "--device", "cpu", "--dtype", "float32")
    assert run("target", "--text", story, *few, *start, "--out", tmp_path) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.hidden_size == target.config.hidden_size
    assert compiled == [type(target)]


@pytest.mark.parametrize("name", ["eagle", "parallel"])
def test_a_resumed_run_ends_where_one_that_never_stopped_ends(name, target, corpus, tmp_path):
    whole, broken = command._PARTS[name](target), command._PARTS[name](target)
    train(whole, corpus, schedule(tmp_path / "whole", 4), tmp_path / "a")
    train(broken, corpus, schedule(tmp_path / "broken", 4), tmp_path / "b", stop_after=2)
    checkpoint = load_part(name, tmp_path / "b", target)
    for weight, learnt in zip(checkpoint.state_dict().values(), broken.student.state_dict().values()):
        assert torch.equal(weight, learnt.bfloat16())  # half of a training is a head, too
    resumed = command._PARTS[name](target)
    train(resumed, corpus, schedule(tmp_path / "broken", 4), tmp_path / "b")
    for weight, expected in zip(resumed.student.state_dict().values(), whole.student.state_dict().values()):
        assert torch.equal(weight, expected)
    assert not torch.equal(broken.student.norm.weight, whole.student.norm.weight)


def test_what_is_read_while_a_checkpoint_is_written_is_the_one_before(target, corpus, tmp_path, monkeypatch):
    recipe, out = command._PARTS["eagle"](target), tmp_path / "eagle"
    train(recipe, corpus, schedule(tmp_path / "work", 4), out, stop_after=2)
    before = load_part("eagle", out, target).state_dict()
    save = type(recipe).save

    def interrupted(self, folder):
        save(self, folder)
        (folder / "model.safetensors").write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(type(recipe), "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, corpus, schedule(tmp_path / "work", 4), out)
    after = load_part("eagle", out, target).state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_a_result_in_fewer_shards_leaves_none_of_the_former(target, corpus, tmp_path):
    others = {"model_before.safetensors", "model-q8.safetensors.gz", "notes.txt"}
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json", *others):
        (tmp_path / name).write_bytes(b"")
    train(command._PARTS["medusa"](target), corpus, schedule(tmp_path / "work", 1), tmp_path / "out")
    for name in others:
        (tmp_path / name).rename(tmp_path / "out" / name)
    (tmp_path / "model-00001-of-00002.safetensors").rename(tmp_path / "out" / "model-00001-of-00002.safetensors")
    train(command._PARTS["medusa"](target), corpus, schedule(tmp_path / "again", 1), tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors", *others}
    for name in others:
        (tmp_path / "out" / name).unlink()
    load_part("medusa", tmp_path / "out", target)


def test_the_target_finds_a_head_beside_what_its_training_left(target, story, tmp_path, monkeypatch):
    monkeypatch.setitem(ROWS, "cpu", 2)
    folder = save_model(tmp_path / "target", target)
    few = (*SMALL, "--tokens", 2 * BLOCK_SIZE, "--continuations", 1)
    assert run("medusa", "--target", folder, "--text", story, *few) == 0
    weights = sorted(file.name for file in (folder / "medusa").glob("*.safetensors"))
    assert weights == ["model.safetensors"]  # servers read whatever lies there
    assert set(load_pair(folder, device="cpu", dtype="float32", passes="plain").parts) == {"medusa"}
    (own,) = folder.glob("medusa/**/continuations.safetensors")
    own.rename(folder / "medusa" / own.name)  # where earlier versions put it
    load_part("medusa", folder / "medusa", target)


def test_how_long_it_takes_is_said_first(target_folder, story, tmp_path, capsys):
    given = ("--target", target_folder, "--text", story, "--continuations", 0, "--out", tmp_path)
    assert run("medusa", *given, *SMALL, "--tokens", 2 * 2 * BLOCK_SIZE) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert "2 steps of 512 tokens, about 1 minute" in first


@pytest.mark.parametrize("name", ["eagle", "parallel"])
def test_to_time_a_step_changes_nothing(name, target, corpus, tmp_path):
    recipe, untouched = command._PARTS[name](target), command._PARTS[name](target)
    assert forecasts.seconds_a_step(recipe, corpus, schedule(tmp_path, 4)) > 0
    for weight, expected in zip(recipe.student.state_dict().values(), untouched.student.state_dict().values()):
        assert torch.equal(weight, expected)
    assert all(weight.grad is None for weight in recipe.student.parameters())


def test_the_forecast_counts_steps_and_batches(target, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(forecasts, "seconds_a_step", lambda *given: 10.0)
    monkeypatch.setattr(forecasts, "seconds_a_batch", lambda *given: 120.0)
    recipe = command._PARTS["medusa"](target)
    alone = forecasts.forecast(recipe, corpus, schedule(tmp_path, 360), target, 0)
    assert "360 steps of 512 tokens, about 1 hour to 1.5 hours" in alone and "writes" not in alone
    after = forecasts.forecast(recipe, corpus, schedule(tmp_path, 360), target, 30)
    assert "writes 491,520 tokens, then 360 steps" in after and "about 2 hours to 3.5 hours" in after


@pytest.mark.parametrize(
    ("span", "words"),
    [
        ((5, 20), "1 minute"),
        ((100, 200), "2 minutes to 3 minutes"),
        ((2300, 3500), "40 minutes to 1 hour"),
        ((3600 * 5, 3600 * 7.6), "5 hours to 8 hours"),
        ((3600 * 46, 3600 * 60), "46 hours to 2 days"),
    ],
)
def test_durations_are_said_in_round_numbers(span, words):
    assert forecasts.in_words(*span) == words


@pytest.mark.parametrize("name", ["eagle", "medusa", "mtp", "parallel", "draft"])
def test_a_processor_is_given_less_to_do_unless_somebody_says(name, monkeypatch):
    def filled(device, *more):
        monkeypatch.setattr(command, "place_named", lambda name: Place(torch.device(name)))
        options = command._parser().parse_args([name, "--text", "t", "--device", device, *more])
        command._fill_in(options)
        return options.tokens, options.continuations

    assert all(least < most for least, most in zip(filled("cpu"), filled("cuda")))
    given = ("--tokens", "7", "--continuations", "0")
    assert filled("cpu", *given) == filled("cuda", *given) == (7, 0)


def test_a_checkpoint_of_other_settings_is_not_taken_up(target, corpus, tmp_path):
    train(command._PARTS["medusa"](target), corpus, schedule(tmp_path, 6), tmp_path / "out", stop_after=2)
    other = copy.deepcopy(target)
    other.lm_head.weight.data += 0.1
    longer = replace(corpus, texts=(replace(corpus.texts[0], ids=corpus.texts[0].ids[1:]), *corpus.texts[1:]))
    drawn = replace(corpus, weights=(0.5,) * len(corpus.weights))
    written = replace(corpus, continuations=torch.ones(5, BLOCK_SIZE, dtype=torch.int32))
    for taught_by, text, tokens in (
        (target, corpus, 9),
        (other, corpus, 6),
        (target, longer, 6),
        (target, drawn, 6),
        (target, written, 6),
    ):
        with pytest.raises(SpecvizError, match="other settings"):
            train(command._PARTS["medusa"](taught_by), text, schedule(tmp_path, tokens), tmp_path / "out")
    train(command._PARTS["medusa"](target), corpus, schedule(tmp_path, 6), tmp_path / "out")
    folder = tmp_path / "drafts"
    folder.mkdir()
    (folder / "draft.checkpoint.pt").write_bytes(b"PK\x03\x04 cut short")
    with pytest.raises(SpecvizError, match="delete it, and the training begins anew"):
        recipe = DraftRecipe(target, small_llama(byte_tokenizer(), 1, 64), byte_tokenizer())
        train(recipe, corpus, schedule(folder, 6), folder / "out")
    torch.save({"done": 1}, folder / "draft.checkpoint.pt")
    with pytest.raises(SpecvizError, match="delete it, and the training begins anew"):
        train(recipe, corpus, schedule(folder, 6), folder / "out")
    (folder / "draft.checkpoint.pt").unlink()
    for width in (64, 128):
        recipe = DraftRecipe(target, small_llama(byte_tokenizer(), 1, width), byte_tokenizer())
        if width == 64:
            train(recipe, corpus, schedule(folder, 6), folder / "out", stop_after=1)
        else:
            with pytest.raises(SpecvizError, match="other settings"):
                train(recipe, corpus, schedule(folder, 6), folder / "out")


def reading(head, target):
    return CachedModel(HeadModel(head, target), Stopwatch(target.device), (-1,))


@torch.no_grad()
@pytest.mark.parametrize("name", ["eagle", "mtp"])
def test_the_unrolled_steps_are_what_drafting_computes(name, target, corpus):
    recipe = command._PARTS[name](target)
    for parameter in recipe.student.parameters():
        parameter.normal_(0, parameter.shape[-1] ** -0.5)
    ids = corpus.batch(1, 0, 0)
    unrolled = [drafted for drafted, _ in recipe.chains(ids, 3)]
    t, reader = 17, reading(recipe.student, target)
    features, tokens = recipe.student.fuse(recipe.target.read(ids).features[0, : t + 1]), ids[0, 1 : t + 2]
    for step in range(3):
        drafted = reader.forward(tokens, 1, inputs=features)
        torch.testing.assert_close(drafted, unrolled[step][:, t], rtol=1e-3, atol=1e-3)
        features, tokens = reader.features[-1:], ids[0, t + step + 2 : t + step + 3]


@torch.no_grad()
@pytest.mark.parametrize("name", ["eagle", "medusa"])
def test_a_predictor_is_held_to_the_targets_row_of_the_token_it_predicts(name, target, corpus):
    recipe = command._PARTS[name](target)
    ids = corpus.batch(2, 0, 0)
    logits = target(input_ids=ids).logits
    pairs = recipe.drafts(ids, None) if name == "medusa" else recipe.chains(ids, 4)
    for ahead, (_, wanted) in enumerate(pairs, start=1):
        torch.testing.assert_close(wanted.reshape(2, -1, 128), logits[:, ahead : BLOCK_SIZE - 4 + ahead])


@torch.no_grad()
@pytest.mark.parametrize("name", ["draft", "eagle", "medusa", "mtp", "parallel"])
def test_every_third_step_is_at_a_low_temperature(name, target, corpus, monkeypatch):
    recipe = DraftRecipe(target, one_layer_draft(), None) if name == "draft" else command._PARTS[name](target)
    seen = []
    for module in (dspark, models, parts):
        monkeypatch.setattr(module, "distillation", lambda *given: seen.append(given) or distillation(*given))
    for step, temperature in enumerate((1.0, 1.0, 0.35, 1.0, 1.0, 0.35)):
        recipe.loss(corpus.batch(2, 0, 0), step)
        assert seen and {used for _, _, used in seen} == {temperature}
        seen.clear()


#: A draft half as wide as the tests' target.
NARROW = {"hidden_size": 24, "head_dim": 6}


def one_layer_draft(**overrides):
    """A draft of the shape that an EAGLE head for the tests' target can begin with."""
    shape = {"layers": 1, "num_key_value_heads": 4, "tie_word_embeddings": True}
    return tiny_model("llama", seed=5, **shape | overrides)


@torch.no_grad()
@pytest.mark.parametrize(
    "shape",
    [{}, NARROW, {"head_dim": 8, "num_key_value_heads": 2, "tie_word_embeddings": False}],
    ids=["as wide as the target", "narrower", "its own shape"],
)
def test_a_head_that_begins_with_a_draft_model_reads_embeddings_as_that_does(shape, target):
    draft, ids = one_layer_draft(**shape), torch.arange(1, 21)
    for weight in draft.parameters():
        weight.copy_(weight.bfloat16())  # as files hold it
    head, layer, attended = Eagle3Recipe(target, draft).student, draft.model.layers[0], []
    head.fc.weight.zero_()  # nothing of the target
    drafted = reading(head, target).forward(ids, 20, inputs=head.fuse(torch.ones(20, head.fc.in_features)))
    layer.self_attn.register_forward_hook(lambda part, given, output: attended.append(output[0]))
    draft(input_ids=ids[None])
    hidden = attended[0] + layer.mlp(layer.post_attention_layernorm(attended[0]))
    torch.testing.assert_close(drafted, draft.lm_head(draft.model.norm(hidden))[0], rtol=1e-3, atol=1e-3)


def test_an_eagle_head_learns_on_from_a_draft_model(target_folder, target, story, tmp_path, capsys):
    start = save_model(tmp_path / "draft", one_layer_draft(vocab=136, **NARROW))
    text = ("--target", target_folder, "--text", story, "--continuations", 0, "--out", tmp_path / "eagle")
    assert run("eagle", *text, *SMALL, "--start", start) == 0
    assert all(values[-1] < 0.9 * values[0] for values in held_out_losses(capsys.readouterr().out).values())
    assert load_part("eagle", tmp_path / "eagle", target).config.hidden_size == NARROW["hidden_size"]


def test_what_is_no_head_is_nothing_to_train_on(target_folder, story, tmp_path, capsys):
    given = ("--target", target_folder, "--text", story, "--continuations", 0, "--out", tmp_path, "--held-out", 512)
    assert run("mtp", *given, "--start", tmp_path / "nowhere") == 2
    assert "There is no folder or file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, shape, sentence",
    [
        ("eagle", {"layers": 2}, None),
        ("eagle", {"attention_bias": True}, None),
        ("mtp", {}, "not from a draft model"),
        ("medusa", {}, "not from a draft model"),
    ],
)
def test_a_draft_of_another_shape_or_for_what_does_not_grow_is_nothing_to_begin_with(name, shape, sentence, target):
    with refused("start", sentence):
        command._PARTS[name](target, one_layer_draft(**shape))


def test_a_part_of_another_kind_is_nothing_to_begin_with(target, tmp_path):
    Eagle3Recipe(target).save(tmp_path)
    with refused("start", "holds no part that the recipe mtp trains"):
        command._PARTS["mtp"](target, tmp_path)


@pytest.mark.parametrize("name", ["target", "target.gguf"])
def test_a_part_says_what_its_target_is_called_and_not_where_it_lay(name, target, tmp_path):
    (tmp_path / name).mkdir() if name == "target" else (tmp_path / name).touch()
    target.name_or_path = str(tmp_path / name)
    assert Eagle3Recipe(target).settings["speculators_config"]["verifier"]["name_or_path"] == name


def test_the_target_learns_nothing_from_training_its_parts(target, corpus, tmp_path):
    before = {name: weight.clone() for name, weight in target.state_dict().items()}
    train(command._PARTS["eagle"](target), corpus, schedule(tmp_path, 2), tmp_path / "out")
    assert all(torch.equal(weight, before[name]) for name, weight in target.state_dict().items())


def test_held_out_text_is_never_learnt_from(story):
    corpus = read_corpus([story], byte_tokenizer(), held_out=[1024])
    (text,) = corpus.texts
    whole = torch.tensor(byte_tokenizer()(story.read_text())["input_ids"])
    assert torch.equal(text.ids, whole[:-1024]) and torch.equal(text.held_out, whole[-1024:])
    # Every token names its place, so that a block tells where it was cut.
    numbered = Corpus((Text("n", torch.arange(len(text.ids)), torch.arange(1024) + len(text.ids)),), (1.0,))
    for step in range(200):
        blocks = numbered.batch(4, 0, step)
        assert blocks.shape == (4, BLOCK_SIZE) and blocks.max() < len(text.ids)
    measured = held_out_blocks(numbered.texts[0], 3)
    assert measured.shape == (3, BLOCK_SIZE) and measured.min() >= len(text.ids)
    assert len(measured.unique()) == measured.numel()


def test_texts_are_drawn_by_their_weights():
    texts = tuple(Text(str(sign), torch.full((600,), sign), torch.full((300,), sign)) for sign in (0, 1))
    drawn = torch.cat([Corpus(texts, (0.8, 0.2)).batch(8, 0, step)[:, 0] for step in range(100)])
    assert abs(drawn.float().mean() - 0.2) < 0.06


def test_half_of_a_batch_is_the_targets_own_text():
    text = Text("t", torch.zeros(600, dtype=torch.long), torch.zeros(300, dtype=torch.long))
    own = torch.ones(5, BLOCK_SIZE, dtype=torch.int32)
    mixed = Corpus((text,), (1.0,), own)
    assert mixed.batch(4, 0, 0).float().mean(1).tolist() == [0, 0, 1, 1]
    for rows in (1, 3):  # which have no half: over two steps
        assert sum(mixed.batch(rows, 0, step).float().mean(1).sum() for step in (4, 5)) == rows


def test_the_target_continues_training_text_once_and_keeps_it(target, corpus, tmp_path):
    file = tmp_path / "work" / "continuations.safetensors"
    blocks = continue_texts(target, corpus, 64 * BLOCK_SIZE, file)
    assert blocks.shape == (64, BLOCK_SIZE)
    prompt, text = blocks[0, :32].long(), corpus.texts[0].ids
    assert any(torch.equal(prompt, window) for window in text.unfold(0, 32, 1))
    # The first batch is greedy: each token is the target's first choice.
    with torch.inference_mode():
        logits = target(input_ids=blocks[:4].long()).logits[:, 31:-1]
    chosen = logits.gather(-1, blocks[:4, 32:, None].long()).squeeze(-1)
    torch.testing.assert_close(chosen, logits.amax(-1), rtol=0, atol=1e-4)
    written = file.stat().st_mtime_ns
    assert torch.equal(continue_texts(target, corpus, 64 * BLOCK_SIZE, file), blocks)
    assert file.stat().st_mtime_ns == written
    # A target that was trained on since writes its own.
    trained = copy.deepcopy(target)
    trained.lm_head.weight.data.neg_()
    assert len(batches_to_write(trained, 64 * BLOCK_SIZE, file)) == 1
    assert not torch.equal(continue_texts(trained, corpus, 64 * BLOCK_SIZE, file), blocks)
    file.write_bytes(bytes(10))  # cut off on a full disk
    assert torch.equal(continue_texts(target, corpus, 64 * BLOCK_SIZE, file), blocks)


def test_own_text_to_measure_on_begins_with_held_out_text(target, corpus, tmp_path):
    wider = with_target_text(target, corpus, 64 * BLOCK_SIZE, tmp_path / "continuations.safetensors")
    assert [text.name for text in wider.texts] == ["story.txt", "own, greedy", "own, sampled"]
    held_out = corpus.texts[0].held_out.unfold(0, 32, 1)
    for text in wider.texts[1:]:
        start = text.held_out[:32]
        assert any(torch.equal(start, window) for window in held_out)
    wider.batch(4, 0, 0)
    figures = validate(command._PARTS["medusa"](target), wider, blocks=2)
    assert set(figures) == {"story.txt", "own, greedy", "own, sampled"}


def test_xz_files_and_folders_are_read(story, tmp_path, corpus):
    packed = tmp_path / "story.txt.xz"
    packed.write_bytes(lzma.compress(story.read_bytes()))
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "b.py").write_text("pass\n" * 600)
    (tmp_path / "folder" / "a.txt").write_text("tale " * 300)
    (tmp_path / "again").mkdir()
    for name, raw in (
        ("story.gz", gzip.compress(story.read_bytes())),
        ("utf16.txt", story.read_text().encode("utf-16")),
    ):
        (tmp_path / "again" / name).write_bytes(raw)
        (same,) = read_corpus([tmp_path / "again" / name], byte_tokenizer()).texts
        assert torch.equal(same.ids, corpus.texts[0].ids)
    (tmp_path / "again" / "story.txt.xz").write_bytes(packed.read_bytes())
    alike = read_corpus([packed, tmp_path / "again" / "story.txt.xz"], byte_tokenizer())
    assert [text.name for text in alike.texts] == [str(packed), str(tmp_path / "again" / "story.txt.xz")]
    both = read_corpus([packed, tmp_path / "folder"], byte_tokenizer())
    assert torch.equal(both.texts[0].ids, corpus.texts[0].ids)
    whole = byte_tokenizer().decode(torch.cat([both.texts[1].ids, both.texts[1].held_out]).tolist())
    assert whole.startswith("tale ") and whole.endswith("pass\n")


def whole_distillation(student_logits, target_logits, temperature=1.0):
    """As the docstring of `distillation` says it, over all rows at once."""
    log_p, log_q = ((logits / temperature).log_softmax(-1) for logits in (target_logits, student_logits))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    return temperature * (0.5 * kl + 0.5 * (log_q.exp() - log_p.exp()).abs().sum(-1)).mean()


@pytest.mark.parametrize("piece", [1, 70, 10_000], ids=["row by row", "two rows", "whole"])
@pytest.mark.parametrize("shape", [(7, 33), (2, 7, 33)])
@pytest.mark.parametrize("temperature", [1.0, 0.35])
def test_the_loss_in_pieces_is_the_loss_and_has_its_gradient(shape, piece, temperature, monkeypatch):
    monkeypatch.setitem(losses._PIECES, "cpu", piece)
    generator = torch.Generator().manual_seed(0)
    student, target = (3 * torch.randn(shape, generator=generator) for _ in range(2))
    pieces, whole = student.clone().requires_grad_(), student.double().requires_grad_()
    loss, expected = distillation(pieces, target, temperature), whole_distillation(whole, target.double(), temperature)
    torch.testing.assert_close(loss.double(), expected)
    # A factor, as the loss of each depth has.
    (0.8 * loss).backward()
    (0.8 * expected).backward()
    torch.testing.assert_close(pieces.grad.double(), whole.grad, rtol=1e-4, atol=1e-7)
    assert agreement(student, target).tolist() == pytest.approx(
        agreement(student.flatten(0, -2), target.flatten(0, -2)).tolist()
    )


def test_of_the_loss_only_its_gradient_is_kept():
    kept = []
    student = torch.randn(4, 9, 50, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        distillation(student, torch.randn(4, 9, 50))
    assert sum(kept) == student.numel()


def test_distillation_is_half_kl_plus_total_variation():
    p, q = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.25, 0.5]])
    kl = math.log(2)
    assert distillation(q.log(), p.log()).item() == pytest.approx(0.5 * kl + 0.5)
    measured = agreement(q.log(), p.log())
    assert measured.tolist() == pytest.approx([kl, 0.5, 0.0])
    assert agreement(q.log(), q.log()).tolist() == pytest.approx([0.0, 1.0, 1.0])


@pytest.mark.parametrize("shape", [(3, 24, 48), (48, 24), (24, 24)])
def test_muon_steps_are_nearly_orthogonal(shape):
    values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
    assert values.max() < 1.3 and values.median() > 0.6


def test_the_learning_rate_warms_up_stays_and_falls_to_zero():
    factors = [learning_rate_factor(step, 1000) for step in range(1000)]
    assert factors[0] < 0.1 and factors[100:500] == [1.0] * 400
    assert factors[750] == pytest.approx(0.5) and factors[-1] == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--text", "nowhere.txt"), "cannot be read"),
        (("--tokens", 0), "positive"),
        (("--out", "/dev/null/x"), "Nothing can be written to /dev/null/x"),
        (("--work", "/dev/null"), "Nothing can be written to /dev/null"),
        (("--measure", "figures.json"), "name it with --start"),
        (("--start", "x", "--measure", "/dev/null/x.json"), "cannot be written"),
        (("--held-out", 1024, 1024), "one number for each --text"),
        (("--held-out", 10_000_000), "too few"),
        (("--weights", 0), "positive numbers"),
        (("--weights", "nan"), "positive numbers"),
        (("--weights", "inf"), "positive numbers"),
        (("--lr", "nan"), "positive number"),
        (("--seed", 10**16), "at most 12 digits"),
        (("--text", "EMPTY"), ".txt and .py files are read"),
        (("--text", "PACKED"), "This is a zip file"),
        (("--out", "TARGET"), "whose files would be overwritten"),
        (("--target", "SHORT"), "reads at most 64 tokens"),
        (("--target", "./nowhere", "--out", "x"), "no folder"),
    ],
)
def test_bad_input_ends_in_a_sentence(arguments, words, target_folder, story, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "packed.txt").write_bytes(b"PK\x03\x04")
    short = save_model(tmp_path / "short", tiny_model("llama", max_position_embeddings=64))
    places = {"EMPTY": tmp_path / "empty", "PACKED": tmp_path / "packed.txt", "TARGET": target_folder, "SHORT": short}
    arguments = [places.get(one, one) for one in arguments]
    plain = ("--target", target_folder, "--text", story, "--out", tmp_path, "--continuations", 0)
    assert run("medusa", *plain, "--dtype", "float32", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


def test_on_a_full_disk_a_training_ends_in_a_sentence_and_keeps_its_checkpoint(target, corpus, tmp_path, monkeypatch):
    recipe, out, plan = command._PARTS["medusa"](target), tmp_path / "out", schedule(tmp_path / "work", 4)
    train(recipe, corpus, plan, out, stop_after=1)
    whole = checkpoint_of(recipe, plan).read_bytes()

    def full(state, file):
        file.write_bytes(b"half")
        raise RuntimeError("unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", full)
    with refused("out", "Nothing can be written to .*work"):
        train(recipe, corpus, plan, out, stop_after=2)
    assert checkpoint_of(recipe, plan).read_bytes() == whole
    assert [*(tmp_path / "work").iterdir()] == [checkpoint_of(recipe, plan)]


def test_what_is_there_is_measured_and_nothing_is_learnt(target_folder, story, tmp_path, capsys):
    plain = ("--target", target_folder, "--text", story, "--dtype", "float32")
    assert run("medusa", *plain, *SMALL, "--tokens", BLOCK_SIZE, "--continuations", 0, "--out", tmp_path / "head") == 0
    before = {file: file.read_bytes() for file in (tmp_path / "head").glob("*.*")}
    capsys.readouterr()
    assert run("medusa", *plain, "--start", tmp_path / "head", "--measure", tmp_path / "figures.json") == 0
    told = capsys.readouterr().out
    report = json.loads((tmp_path / "figures.json").read_text())
    assert (report["recipe"], report["dtype"]) == ("medusa", "float32")
    assert set(report["texts"]) == {story.name, "own, greedy", "own, sampled"}
    head = report["texts"][story.name]["head 1"]
    assert set(head) == {"loss", "accepted", "agreement"} and f"Σ min(p, q) {head['accepted']:.3f}" in told
    assert {file: file.read_bytes() for file in (tmp_path / "head").glob("*.*")} == before


def test_trained_parts_land_where_loading_looks(target_folder):
    options = command._parser().parse_args(["eagle", "--text", "t", "--target", str(target_folder)])
    assert command._default_out(options) == pathlib.Path(target_folder) / "eagle"
    options = command._parser().parse_args(["medusa", "--text", "t"])
    with refused("out", "Name the folder"):  # or those that come with the page would be gone
        command._default_out(options)


def test_an_option_that_is_given_again_adds_to_it():
    given = ("--text", "a", "--text", "b", "c", "--weights", "1", "--weights", "2", "3")
    options = command._parser().parse_args(["draft", *given])
    assert list(map(str, options.text)) == ["a", "b", "c"] and options.weights == [1, 2, 3]


def test_the_target_recipe_continues_a_llama_only(story, tmp_path, capsys):
    other = save_model(tmp_path / "other", tiny_model("gpt2"))
    told = ("--tokenizer", other, "--start", other, "--text", story, "--out", tmp_path / "out", "--device", "cpu")
    assert run("target", *told, "--dtype", "float32") == 2
    assert "this recipe continues a Llama" in capsys.readouterr().err
