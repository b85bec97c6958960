#!/usr/bin/env python3
"""Measures a card of a family of models beside transformers, and writes docs/families/TYPE.md and the tables that are made of cards.

    TESSERA=build/host/tessera TEST_PARITY=build/host/validation/parity/test_parity make_cards.py [TYPE ...]

A card's model is tiny and has random weights. Of it are compared, in fp32: logits token by token, the loss, every gradient, ten AdamW steps (test_parity, on a fixture
made here); an import and its export, byte by byte, in bf16; texts that take the likeliest token each time. The rate is of training steps of a larger shape, in bf16."""
import datetime
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

import cards
import check_import
import families
import make_fixtures
from check_import import EXPERTS, MODELS
from models import DEFAULTS, SHAPES, model_keys

PARITY = os.environ.get("TEST_PARITY", os.path.join(cards.ROOT, "build/host/validation/parity/test_parity"))
WINDOWS = {"pattern": "GL", "kinds": [{"name": "G"}, {"name": "L", "window": 5}], "layers": 3}
# Keys of the model of each card, as models.py has them.
KEYS = {
    "llama": model_keys("rope_llama3"), "mistral": model_keys("window"), "ministral": {**DEFAULTS, "kv_heads": 2, **WINDOWS, "class": "ministral"},
    "cwm": MODELS["cwm"][0], "smollm3": model_keys("no_rope"), "gemma": MODELS["gemma"][0], "gemma2": model_keys("gemma2"), "gemma3_text": model_keys("gemma3"),
    "olmo2": MODELS["olmo2"][0], "olmo3": model_keys("olmo3"), "exaone4": MODELS["exaone4_windows"][0], "granite": model_keys("granite"),
    "granitemoe": {**model_keys("granitemoe"), "attention_scale": 0.2, "router_aux_loss": 0.05, "router_z_loss": 0.0}, "granitemoeshared": {**model_keys("granitemoeshared"), "attention_scale": 0.2, "router_aux_loss": 0.05, "router_z_loss": 0.0},
    "granitemoehybrid": model_keys("granite4"), "phi3": model_keys("phi3_long"),
    # What is not rotated of a key's bias moves all scores of a query alike: its gradient is zero but for rounding, which AdamW makes as large as others.
    "glm": {**MODELS["glm"][0], "qkv_bias": False}, "glm4": {**MODELS["glm4"][0], "qkv_bias": False},
    "glm4_moe": {**model_keys("glm4_moe"), "router_z_loss": 0.0}, "dots1": model_keys("dots1"), "minimax_m2": model_keys("minimax_m2"), "gpt_oss": model_keys("gpt_oss"), "starcoder2": model_keys("starcoder2"), "apertus": model_keys("apertus"), "gpt2": model_keys("gpt2"),
    "cohere": MODELS["cohere"][0], "cohere2": model_keys("cohere2"),
    "seed_oss": {**model_keys("qkv_bias"), "class": "seed_oss"}, "qwen2": MODELS["qwen2_windows"][0], "qwen3": model_keys("windows"),
    "mixtral": model_keys("mixtral"), "qwen2_moe": model_keys("qwen_moe"), "qwen3_moe": model_keys("qwen_sparse"),
    "olmoe": {**MODELS["olmoe"][0], "router_aux_loss": 0.05, "router_z_loss": 0.0},
} | {kind: {**DEFAULTS, **family.KEYS} for kind, family in families.ALL.items()}
RATE = ["model.width=512", "model.heads=8", "model.kv_heads=4", "model.head_dim=64", "model.ff_width=1408", "model.layers=4", "model.vocab=8192",
        "batch.sequence_length=512", "batch.global=2", "batch.micro=2", "run.steps=5", "learning_rate.warmup_steps=1", "precision.compute=bf16", "run.log_every=1",
        "checkpoint.every=0", "run.init=\"\""]
RATE_EXPERTS = ["model.expert_ff_width=704"]
RATE_POSITIONS = ["model.learned_positions=512"]


def parity(kind, keys, work):
    """Errors of test_parity on a fixture of the model."""
    SHAPES["card"] = (40 + list(KEYS).index(kind), 20, (0.3, 0.3), keys)
    _, data = make_fixtures.compute("card")
    make_fixtures.write(os.path.join(work, "card.h5"), "card", {**DEFAULTS, **keys}, data)
    out = os.path.join(work, "parity.json")
    done = subprocess.run([PARITY, "--gtest_filter=*/card_fp32", f"--gtest_output=json:{out}"], env={**os.environ, "TESSERA_FIXTURES": work},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{kind}: {done.stdout[-4000:]}")
    with open(out, encoding="utf-8") as file:
        tests = [test for suite in json.load(file)["testsuites"] for test in suite["testsuite"]]
    return {name: value for test in tests for name, value in test.items() if name in NAMES}


NAMES = {"logits": "logits", "loss": "loss", "gradients": "all gradients together", "worst_gradient": "worst gradient of a tensor", "ten_steps_loss": "loss of ten steps",
         "ten_steps_weights": "worst weight of a tensor after them"}


def texts(keys, work):
    """Whether a text of the likeliest tokens is transformers' own; of the model that check_import has left, in fp32."""
    folder = os.path.join(work, "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True).eval()
    prompt = [3, 1, 4, 1, 5]
    with torch.no_grad():
        ids = torch.tensor([prompt])
        for _ in range(20):
            ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)], 1)
    ours = check_import.tessera("generate", os.path.join(work, "run/checkpoints/step-00000001"), "--prompt-tokens", ",".join(map(str, prompt)), "--tokens", "20",
                                "--temperature", "0", "--device", "host")
    got = [int(word) for word in ours.replace(",", " ").split()]
    return got[-20:] == ids[0, len(prompt):].tolist()


def rate(work, keys):
    """Tokens a second of training steps, the median of all but the first."""
    run, data = os.path.join(work, "rate"), os.path.join(work, "rate.bin")
    factors = [1.0] * int(32 * keys.get("rotary_fraction", 1))
    more = list(RATE_EXPERTS) if keys.get("experts", 0) > 0 else [f"model.rope_{kind}_factors={factors}" for kind in ("short", "long") if "rope_long_factors" in keys]
    np.random.default_rng(1).integers(0, 8192, 20000).astype("<u2").tofile(data)
    more += RATE_POSITIONS if "learned_positions" in keys else []
    check_import.tessera("train", os.path.join(work, "deck.toml"), *RATE, *more, f"data.train={data}", f"run.output_dir={run}")
    with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as lines:
        rates = sorted(row["tokens_per_second"] for row in map(json.loads, lines) if "loss" in row and row["step"] > 1)
    return rates[len(rates) // 2]


def measure(kind):
    keys = KEYS[kind]
    with tempfile.TemporaryDirectory() as work:
        figures = {NAMES[name]: value for name, value in parity(kind, keys, work).items()}
        if not check_import.check(kind, keys, "float32", work):
            sys.exit(f"{kind}: an import does not come back")
        figures["texts of the likeliest tokens"] = "the same 20" if texts(keys, work) else "no"
        speed = rate(work, keys)
    with tempfile.TemporaryDirectory() as work:
        figures["import and export in bf16"] = "the same bytes" if check_import.check(kind, keys, "bfloat16", work) else "no"
    return figures, speed


def write(kind, figures, speed, llama, processor):
    title, notes = cards.FAMILIES[kind]
    lines = [f"# {title}", "", f"`model_type` `{kind}`{': ' + notes if notes else ''}. [Models of Hugging Face](../huggingface.md#which-models) says how it is used.", "",
             "| beside transformers, in fp32 | relative difference |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in figures.items()]
    lines += ["", f"Training steps of 4 layers of 512 features in bf16: {speed:.0f} tokens a second, {speed / llama:.2f} times a Llama's in the same run.", "",
              f"Measured {datetime.date.today()} with transformers {transformers.__version__} and torch {torch.__version__.split('+')[0]}, "
              f"{len(os.sched_getaffinity(0))} cores of {processor}, by `validation/parity/make_cards.py {kind}`.", ""]
    keys = cards.figures_of(kind)[1].partition(cards.KEYS)[2] if os.path.exists(cards.card_of(kind)) else cards.NO_KEYS
    lines += [cards.KEYS + keys]
    os.makedirs(cards.CARDS, exist_ok=True)
    with open(cards.card_of(kind), "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        processor = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "a processor")
    _, llama = measure("llama")
    for kind in sys.argv[1:] or cards.FAMILIES:
        figures, speed = measure(kind)
        write(kind, figures, speed, llama, processor)
        print(f"card {kind}: {figures}, {speed:.0f} tokens/s", flush=True)
    return subprocess.run([sys.executable, cards.__file__, "--tables"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
