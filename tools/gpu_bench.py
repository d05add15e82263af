"""What a GPU makes of speculation, with nothing downloaded: ``python -m tools.gpu_bench OUT``.

Makes a pair of a large one's shape with random weights: a dense pass takes the same time whatever they are. The
target's later layers say little, so its first ones, as a draft model, are usually right; how often says nothing about
real models. The commands `bench` and `check` then measure it and the embedded pair, as far as the budget goes: each
writes OUT/STEP.json and OUT/STEP.txt, also when it is interrupted. ``--shape tiny`` tries all of it without a GPU.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from specviz.models.placement import device_named
from specviz.records.assets import EMBEDDED
from specviz.records.streams import carried_out
from tools.bench_table import table


@dataclass(frozen=True, slots=True)
class Shape:
    """A target and how many of its layers draft. passes: as `bench` knows them; compiling takes a minute on a CPU."""

    name: str
    sizes: dict[str, int]
    draft_layers: int
    dtype: torch.dtype
    passes: str

    def config(self, layers: int) -> LlamaConfig:
        """No token ends a text, so that every run is as long as it is asked to be."""
        ends = {"bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False}
        rope = {"rope_type": "default", "rope_theta": 500_000.0}
        sizes = self.sizes | {"num_hidden_layers": layers}
        return LlamaConfig(**sizes, **ends, rope_parameters=rope, rms_norm_eps=1e-5, max_position_embeddings=8192)


#: config.json of meta-llama/Meta-Llama-3-8B (Llama-3.1-8B has the same numbers): 8,030,261,248 parameters.
LLAMA_3_8B = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA_3_8B |= {"head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256}
TINY = {"num_hidden_layers": 6, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY |= {"head_dim": 16, "intermediate_size": 128, "vocab_size": 8192}

SHAPES = {
    "8b": Shape("Llama 3 8B", LLAMA_3_8B, 4, torch.bfloat16, "auto"),
    "tiny": Shape("tiny Llama", TINY, 2, torch.float32, "plain"),
}

#: The factors of the matrices with which a later layer adds to the hidden state, and of the head, whose likeliest
#: tokens would lie too close together.
QUIET, LOUD = 0.01, 6.0

#: What is measured: whether of the made pair, and the command.
STEPS = {
    "made": (True, "bench --quick --only draft_model,early_exit,prompt_lookup --max-new-tokens 128"),
    "embedded": (False, "bench --quick --only draft_model,eagle,parallel,mtp,medusa --max-new-tokens 256"),
    "made_check": (True, "check --minutes 0.5"),
    "embedded_check": (False, "check --minutes 0.5"),
}

#: Seconds that a step gets at least, and that an interrupted command has to write what it measured.
LEAST, LAST_WORDS = 10.0, 30.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_bench", description="What a GPU makes of speculation.")
    parser.add_argument("out", type=pathlib.Path, help="the folder for the results")
    parser.add_argument("--shape", choices=SHAPES, default="8b", help="of the pair that is made (default: %(default)s)")
    parser.add_argument("--steps", default=",".join(STEPS), help="what to measure (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for all of it (default: %(default)s)")
    options = parser.parse_args(arguments)
    until, shape = time.perf_counter() + options.budget, SHAPES[options.shape]
    options.out.mkdir(parents=True, exist_ok=True)
    steps = {name: STEPS[name] for name in options.steps.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        pair_needed = any(is_made for is_made, _ in steps.values())
        pair_options = make_pair(shape, pathlib.Path(folder)) if pair_needed else []
        for name, (is_made, command) in steps.items():
            passes = [f"--passes={shape.passes}"] if command.startswith("bench") else []
            full_command = [*command.split(), *passes, *(pair_options if is_made else [])]
            measure(full_command, options.out / name, until - time.perf_counter())


def make_pair(shape: Shape, folder: pathlib.Path) -> list[str]:
    """Writes the models, with the embedded pair's tokenizer, and returns the options that name them."""
    device, tokenizer = device_named("auto"), AutoTokenizer.from_pretrained(EMBEDDED / "target")
    tokenizer.eos_token = None
    torch.manual_seed(0)
    with torch.device(device), torch.no_grad():
        target, draft = (
            AutoModelForCausalLM.from_config(shape.config(layers), dtype=shape.dtype)
            for layers in (shape.sizes["num_hidden_layers"], shape.draft_layers)
        )
        target.lm_head.weight.mul_(LOUD)
        for layer in target.model.layers[shape.draft_layers :]:
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                last.weight.mul_(QUIET)
        draft.load_state_dict(target.state_dict(), strict=False)
    names = {"target": f"shape of {shape.name}", "draft": f"its first {shape.draft_layers} layers"}
    for name, model in zip(names.values(), (target, draft)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    del target, draft, model
    torch.cuda.empty_cache()  # the commands are processes of their own
    return [f"--{role}={folder / name}" for role, name in names.items()]


def measure(command: Sequence[str], result: pathlib.Path, seconds: float) -> None:
    """Runs a command of ``python -m specviz`` and interrupts it when its time is over; prints a benchmark's table."""
    if seconds < LEAST:
        print(f"{result.name}: left out, the budget is spent")
        return
    written, log = result.with_suffix(".json"), result.with_suffix(".txt")
    written.unlink(missing_ok=True)  # an earlier one
    with log.open("w", encoding="utf-8") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "specviz", *command, f"--json={written}"], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            status = running.wait(seconds)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            try:
                status = running.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                running.kill()
                status = running.wait()
    print(f"{result.name}: status {status}, {log}", flush=True)
    if command[0] == "bench" and written.exists():
        print(table(json.loads(written.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    sys.exit(carried_out(main))
