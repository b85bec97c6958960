#!/usr/bin/env python3
"""Tries inputs on a reader, each made of others by what they reach in it (libFuzzer): it must refuse them or take them whole, without a crash or a hang.
    fuzz.py NAME PROGRAM [--runs 500] [--seed 1] [--corpus FOLDER]      FOLDER: inputs of earlier runs, which grows
With TESSERA_TEST_FULL=1 100,000 inputs. An input that ends the program is kept beside it, as crash-NAME-DIGEST: give it to PROGRAM to see it again."""
import argparse
import glob
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
HANG_SECONDS = 60  # for one input, of a busy machine


def config(kind, **more):
    return json.dumps({"model_type": kind, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 300,
                       "max_position_embeddings": 512, "hidden_act": "silu", **more}).encode()


def config_seeds():
    yield config("llama", architectures=["LlamaForCausalLM"], rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                                            "high_freq_factor": 4.0, "original_max_position_embeddings": 256})
    yield config("llama", rope_parameters={"rope_type": "yarn", "factor": 4, "rope_theta": 1e6, "beta_fast": 16, "mscale": 1, "mscale_all_dim": 1})
    yield config("mistral", sliding_window=None, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True)
    yield config("qwen3", attention_bias=True, use_sliding_window=False, layer_types=["full_attention"] * 2)
    yield config("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    yield config("qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=16, norm_topk_prob=True)


def adapter_seeds():
    """As PEFT writes them: of the section's rank and scale, with features that are not used, and with some that are."""
    unused = {"auto_mapping": None, "base_model_name_or_path": "models/a", "bias": "none", "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True,
              "layers_to_transform": None, "lora_dropout": 0.0, "modules_to_save": None, "peft_type": "LORA", "rank_pattern": {}, "alpha_pattern": {},
              "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "use_dora": False}
    yield b"s" + json.dumps({**unused, "r": 8, "lora_alpha": 12.5}).encode()
    yield b"r" + json.dumps({**unused, "r": 8, "lora_alpha": 16, "use_rslora": True}, indent=2).encode()
    yield b"s" + json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 12.5, "init_lora_weights": "gaussian"}).encode()
    yield b"r" + json.dumps({**unused, "r": 4, "lora_alpha": 8, "init_lora_weights": "pissa", "bias": "all", "use_dora": True, "rank_pattern": {"q_proj": 2}}).encode()
    yield b"s" + json.dumps({"peft_type": "IA3"}).encode()


def safetensors_seeds():
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
                         "b": {"dtype": "BF16", "shape": [7], "data_offsets": [48, 62]}, "c": {"dtype": "F16", "shape": [], "data_offsets": [62, 64]}}).encode()
    yield struct.pack("<Q", len(header)) + header + bytes(range(64))
    yield b"h" + header


def llmc_seeds():
    """Headers alone, whose files a first `h` makes as long as they say: fp32, bf16, with a vocabulary that is not padded; one that is whole; tokens."""
    def header(version, context, vocab, layers, heads, width, padded, magic=20240326):
        return struct.pack("<8i", magic, version, context, vocab, layers, heads, width, padded)
    yield b"h" + header(3, 16, 50, 2, 2, 8, 64)
    yield b"h" + header(5, 1024, 50257, 12, 12, 768, 50304)
    yield b"h" + header(3, 1, 1, 1, 1, 1, 1)
    whole = header(5, 4, 5, 1, 1, 2, 8)
    yield b"w" + whole + bytes(1024 - len(whole) + 2 * ((8 + 4) * 2 + 12 * 4 + 13 * 2 + 2 * 2))
    yield b"h" + header(1, 40, 0, 0, 0, 0, 0, magic=20240520)


def program():
    """The program, which makes seeds as users make files; None where only the readers were built, and the tests' own writer makes them."""
    return os.environ["TESSERA"] if os.path.exists(os.environ["TESSERA"]) else None


def make_files(folder, what):
    subprocess.run([os.environ["MAKE_CHECKPOINT"], folder, what], check=True)
    return folder


def token_seeds(work):
    if program():
        for number, lines in enumerate(([{"text": "one two three"}, {"text": "four"}], [{"prompt": "2 + 2 = ", "completion": "4"}] * 3)):
            source = f"{work}/lines{number}.jsonl"
            with open(source, "w") as out:
                out.writelines(json.dumps(line) + "\n" for line in lines)
            subprocess.run([program(), "tokenize", source, f"{work}/tokens{number}"], check=True, capture_output=True)
        made = [f"{work}/tokens{number}/train.h5" for number in (0, 1)]
    else:
        made = sorted(glob.glob(f"{make_files(f'{work}/tokens', 'tokens')}/*.h5"))
    for path in made:
        with open(path, "rb") as file:
            yield b"5" + file.read()
    yield b"b" + struct.pack("<40H", *range(40))
    yield b"b" + struct.pack("<3i", 20240520, 1, 40) + bytes(1024 - 12) + struct.pack("<40H", *range(40))


def trained_checkpoint(work):
    with open(f"{work}/text.txt", "w") as out:
        out.write("a text to learn from. " * 100)
    subprocess.run([program(), "tokenize", f"{work}/text.txt", f"{work}/data"], check=True, capture_output=True)
    keys = {"run.output_dir": f"{work}/run", "run.steps": 1, "run.device": "host", "data.train": f"{work}/data/train.h5", "data.validation": f"{work}/data/train.h5",
            "model.layers": 1, "model.width": 16, "model.heads": 2, "model.kv_heads": 1, "model.ff_width": 16, "batch.global": 2, "batch.micro": 1,
            "batch.sequence_length": 16, "learning_rate.warmup_steps": 0, "evaluate.every": 0, "zero.stage": 0}
    subprocess.run([program(), "train", f"{ROOT}/inputs/quickstart.toml", *(f"{key}={value}" for key, value in keys.items())], check=True, capture_output=True)
    return f"{work}/run/checkpoints/latest"


def checkpoint_seeds(work):
    folder = trained_checkpoint(work) if program() else f"{make_files(f'{work}/made', '1')}/latest"
    for kind, name in ((b"i", "checkpoint.h5"), (b"s", "shard-00000.h5")):
        with open(f"{folder}/{name}", "rb") as file:
            head = file.read(160).decode()
            directory = file.read(int(head.split("directory ")[1].split(",")[0]))
            file.seek(0)
            yield b"f" + file.read()
        yield kind + directory


def files(*patterns):
    for pattern in patterns:
        for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
            with open(path, "rb") as file:
                yield file.read()


SEEDS = {
    "deck": lambda work: files("inputs/*.toml", "validation/program/decks/*.toml"),
    "deepspeed": lambda work: files("validation/program/decks/deepspeed/*.json"),
    "config": lambda work: config_seeds(),
    "adapter": lambda work: adapter_seeds(),
    "safetensors": lambda work: safetensors_seeds(),
    "llmc": lambda work: llmc_seeds(),
    "tokens": token_seeds,
    "checkpoint": checkpoint_seeds,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SEEDS)
    parser.add_argument("program")
    parser.add_argument("--runs", type=int, default=100000 if os.environ.get("TESSERA_TEST_FULL") else 500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-fuzz-") as work:
        corpus = options.corpus or os.path.join(work, "corpus")
        seeds = os.path.join(work, "seeds")
        os.makedirs(corpus, exist_ok=True)
        os.mkdir(seeds)
        count = 0
        for count, content in enumerate(SEEDS[options.name](work), 1):
            with open(f"{seeds}/{count:03}", "wb") as out:
                out.write(content)
        if count == 0:
            sys.exit("FAIL there are no seeds")
        artifacts = os.path.join(work, "found-")
        done = subprocess.run([options.program, corpus, seeds, f"-runs={options.runs}", f"-seed={options.seed}", f"-timeout={HANG_SECONDS}", "-rss_limit_mb=4096",
                               "-max_len=16384",  f"-artifact_prefix={artifacts}", "-use_value_profile=1", "-print_final_stats=1"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})  # HDF5 forgets memory of files that it refuses
        found = glob.glob(artifacts + "*")
        for path in found:
            kept = os.path.join(os.path.dirname(options.program), f"{os.path.basename(path)[6:].split('-')[0]}-{options.name}-{path[-8:]}")
            shutil.copy(path, kept)
            print(f"FAIL an input is kept as {kept}")
        tail = done.stderr.splitlines()
        print("\n".join(line for line in tail if line.startswith("stat::number_of_executed") or "INITED" in line or "DONE" in line or "Done " in line))
        if done.returncode != 0 or found:
            print("\n".join(tail[-60:]))
            sys.exit(1)
        print(f"{count} seeds, {len(os.listdir(corpus))} inputs that reach more")
        # Seeds alone reach more than one: else the readers are not instrumented, and inputs are made blindly.
        if len(os.listdir(corpus)) < 5:
            sys.exit("FAIL no input reached more than another: the readers are not instrumented")


if __name__ == "__main__":
    main()
