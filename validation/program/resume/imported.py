#!/usr/bin/env python3
"""Runs that begin with a Hugging Face model (run.init): what was exported comes back to the bit on any layout, a resume needs the model no more,
`tessera deck from-hf` says the model's deck, and folders that are not whole are refused before the first step. No Python packages."""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys

import runs

USAGE, DATA = 2, 3
check = runs.Checks()
# The first step of a logarithmic warmup has a learning rate of 0: what is saved after it is what the run began with.
FROZEN = {"run__steps": 2, "learning_rate__warmup_steps": 2, "learning_rate__warmup_type": "log", "checkpoint__every": 1, "checkpoint__keep": 0,
          "batch__global": 4}
SHARDED = {"zero__stage": 3, "zero__param_persistence_threshold": 0}
MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {"model__tied": True, "model__qk_norm": True, "model__qkv_bias": True, "model__attention_out_bias": True}),
    "qwen2": ("Qwen2ForCausalLM", {"model__qkv_bias": True, "model__rope_theta": 1e6, "model__norm_eps": 1e-6}),
    "mixtral": ("MixtralForCausalLM", {"model__experts": 4}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {"model__experts": 4, "model__expert_ff_width": 24, "model__shared_ff_width": 40,
                                          "model__normalize_top_k": False, "model__qkv_bias": True}),
    # Its experts lie in fused tensors.
    "granitemoe": ("GraniteMoeForCausalLM", {"model__experts": 4, "model__residual_scale": 0.5, "model__attention_scale": 0.25}),
    # And turned ones, gates and what they multiply in turns.
    "gpt_oss": ("GptOssForCausalLM", {"model__experts": 4, "model__expert_bias": True, "model__attention_sinks": True, "model__qkv_bias": True,
                                      "model__attention_out_bias": True, "model__activation": "clamped_silu"}),
}
DENSE = [(1, {}), (2, SHARDED), (2, {"mesh__tp": 2}), (2, {"mesh__pp": 2}), (4, {"mesh__tp": 2, "mesh__pp": 2}), (4, {"mesh__tp": 2, **SHARDED})]
EXPERTS = [(1, {}), (2, {"mesh__ep": 2}), (4, {"mesh__ep": 2, **SHARDED}), (4, {"mesh__ep": 2, "mesh__tp": 2})]
LAYOUTS = {"llama": DENSE + [(2, {**SHARDED, "zero__offload_optimizer__device": "nvme"})], "qwen3": DENSE[1:5], "qwen2": DENSE[2:3],
           "mixtral": EXPERTS, "qwen2_moe": EXPERTS[1:2], "granitemoe": EXPERTS[2:3], "gpt_oss": EXPERTS[3:4]}
TYPES = {"llama": ("fp32", "bf16", "fp16"), "mixtral": ("fp32", "bf16")}  # of exports; others: fp32


def consolidate(folder, step, name, *options):
    out = os.path.join(folder.path, name)
    done = runs.tessera("consolidate", step, out, *options)
    if done.returncode:
        sys.exit(f"FAIL consolidate {step}: {done.stderr}")
    return out


def contents(path):
    found = {}
    for name in sorted(os.listdir(path)):
        with open(os.path.join(path, name), "rb") as file:
            found[name] = file.read()
    return found


def model_of(deck, *overrides):
    """[model] as values, without what says nothing of the trained function."""
    done = runs.tessera("deck", "check", deck, "--json", *overrides)
    if done.returncode:
        sys.exit(f"FAIL deck check {deck}: {done.stdout}")
    model = json.loads(done.stdout)["values"]["model"]
    return {key: value for key, value in model.items() if key not in ("init_std", "max_context") and not key.startswith("router_")}


def of_step(folder, name, step):
    return os.path.join(folder.run(name), "checkpoints", f"step-{step:08d}")


def round_trips(folder, name, architecture, keys):
    """The folder of the model in fp32."""
    folder.train(name, 1, **{**keys, "run__steps": 2, "batch__global": 4})
    exports = {}
    for dtype in TYPES.get(name, ("fp32",)):
        options = ["--dtype", dtype] + (["--max-file-bytes", "9000"] if dtype == "bf16" else [])
        exports[dtype] = consolidate(folder, folder.latest(name), f"{name}-{dtype}", *options)
        done = runs.tessera("inspect", folder.latest(name), "--diff", exports[dtype])
        check(f"{name} {dtype}: the export is its checkpoint, rounded", done.returncode == 0 and "of the weights have the same bits" in done.stdout, done.stdout)
        deck = os.path.join(folder.path, f"{name}-{dtype}.toml")
        done = runs.tessera("deck", "from-hf", exports[dtype], f"data.train={folder.data}")
        with open(deck, "w") as file:
            file.write(done.stdout)
        check(f"{name} {dtype}: deck from-hf says its [model]", done.returncode == 0 and model_of(deck) == model_of(folder.deck, *runs.overrides(keys)),
              f"{done.stderr}{done.stdout}")
        planned = runs.tessera("plan", deck, "--ranks", "2")
        check(f"{name} {dtype}: tessera plan takes that deck", planned.returncode == 0, planned.stderr)
        for ranks, layout in LAYOUTS[name]:
            run = f"{name}-{dtype}-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
            done = folder.train(run, ranks, **{**FROZEN, **keys, **layout, "run__init": exports[dtype]})
            again = consolidate(folder, of_step(folder, run, 1), run + "-again", *options)
            want, got = contents(exports[dtype]), contents(again)
            check(f"{run}: the same files", want == got, f"they differ: {[file for file in set(want) | set(got) if want.get(file) != got.get(file)]}")
            line = re.search(r"initial weights: (\S+) \((\w+), (\d+) tensors, .*\) read in [\d.]+ s", done.stderr)
            check(f"{run}: the log says what was read", bool(line) and line[1] == exports[dtype] and line[2] == architecture and int(line[3]) > 10,
                  done.stderr)
            after = consolidate(folder, of_step(folder, run, 2), run + "-after", *options)
            check(f"{run}: and it learns from there", contents(after) != want)
    return exports["fp32"]


def resumes(folder, model):
    """A run that is killed goes on without the model; another model is another run."""
    steady = {"run__reproducible": True, "run__threads": 1, "batch__global": 4, "checkpoint__every": 2, "learning_rate__schedule": "constant"}
    mine = shutil.copytree(model, os.path.join(folder.path, "mine"))
    folder.train("whole", 1, **steady, run__steps=8, run__init=mine)
    for ranks in (1, 2):
        name = f"killed-{ranks}"
        run = folder.start(name, ranks, **{**steady, **runs.ENDLESS, "run__init": mine})
        run.wait_for_step(3)
        check(f"{name}: it was on when it was killed", run.kill(), run.output())
        os.rename(mine, mine + "-gone")
        # Bits of two ranks are those of one.
        done = folder.train(name, ranks, **steady, run__steps=8, run__init=mine)
        check(f"{name}: went on without the model", "resumed from" in done.stderr and "initial weights" not in done.stderr, done.stderr)
        os.rename(mine + "-gone", mine)
        check(f"{name}: the state of a run that was not killed", folder.hashes(name) == folder.hashes("whole"))
        check(f"{name}: its losses too", folder.losses(name) == folder.losses("whole"))
    other = shutil.copytree(model, os.path.join(folder.path, "other"))
    for init in (other, '""'):
        done = folder.train("whole", 1, expect=USAGE, **steady, run__steps=8, run__init=init)
        check(f"run.init={init} in its folder is another run's", "holds a run of another deck" in done.stderr and "run.init = " in done.stderr, done.stderr)
    # A checkpoint goes before a model.
    done = folder.train("branch", 1, **steady, run__steps=9, run__init=mine, run__resume=folder.latest("whole"))
    check("run.resume names a checkpoint: it is loaded, not the model", "resumed from" in done.stderr and "initial weights" not in done.stderr, done.stderr)


def tensors_of(folder):
    """Name -> bytes, of all safetensors of a folder."""
    found = {}
    for name, data in contents(folder).items():
        if not name.endswith(".safetensors"):
            continue
        size = struct.unpack("<Q", data[:8])[0]
        for tensor, row in json.loads(data[8:8 + size]).items():
            if tensor != "__metadata__":
                found[tensor] = data[8 + size + row["data_offsets"][0]:8 + size + row["data_offsets"][1]]
    return found


def freezes(folder):
    """What is frozen of a model in bf16 comes back byte for byte, on any layout, while the rest learns."""
    folder.train("to-freeze", 1, run__steps=2, batch__global=4)
    model = consolidate(folder, folder.latest("to-freeze"), "to-freeze-bf16", "--dtype", "bf16")
    before = tensors_of(model)
    frozen = {name for name in before if name.startswith(("model.embed_tokens.", "model.layers.0."))}
    for ranks, layout in DENSE[:4]:
        name = f"freezes-{ranks}-" + "-".join(layout)
        folder.train(name, ranks, **layout, run__steps=3, batch__global=4, precision__compute="bf16", run__init=model,
                     model__freeze='["embedding.*", "layers.0.*"]')
        after = tensors_of(consolidate(folder, folder.latest(name), name + "-out", "--dtype", "bf16"))
        stayed = {tensor for tensor in before if before[tensor] == after.get(tensor)}
        check(f"{name}: the frozen tensors come back byte for byte, and no matrix else", len(frozen) == 10 and frozen <= stayed and
              not any(tensor.endswith("_proj.weight") for tensor in stayed - frozen), f"{sorted(stayed)}")


def imports(folder, model, sharded):
    """tessera import: a checkpoint of weights alone that gives the model back, and with which a run begins as it does with the model itself."""
    steady = {"run__reproducible": True, "batch__global": 4, "run__steps": 4, "learning_rate__schedule": "constant"}
    folder.train("with-the-model", 1, **steady, run__init=model)
    for name, source, dtype in (("base", model, "fp32"), ("base-sharded", sharded, "bf16")):
        done = runs.tessera("import", source, folder.run(name))
        check(f"{name}: tessera import", done.returncode == 0 and done.stdout.startswith(of_step(folder, name, 0) + " of " + source), done.stdout + done.stderr)
        done = runs.tessera("inspect", folder.latest(name), "--verify", "--json")
        said = json.loads(done.stdout or "{}")
        check(f"{name}: it holds weights alone", said.get("groups") == ["master"] and said["step"] == 0 and said["verified"], done.stderr)
        options = ["--dtype", dtype] + (["--max-file-bytes", "9000"] if dtype == "bf16" else [])
        check(f"{name}: the same files again", contents(consolidate(folder, folder.latest(name), name + "-again", *options)) == contents(source))
    for ranks, keys in ((1, {}), (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (2, {"mesh__pp": 2, "zero__stage": 1}),
                        (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"})):
        name = f"from-base-{ranks}-" + "-".join(keys)
        done = folder.train(name, ranks, **steady, **keys, run__resume=folder.latest("base"))
        check(f"{name}: the bits of the run that began with the model", folder.losses(name) == folder.losses("with-the-model")
              and folder.hashes(name) == folder.hashes("with-the-model") and "only weights" in done.stderr, f"{folder.losses(name)}")
    data = ["--data", folder.data, "--json", "--samples", "4"]
    losses = [json.loads(runs.tessera("evaluate", folder.latest(name), *data).stdout)["loss"] for name in ("base", "with-the-model")]
    check("tessera evaluate takes it", 0 < losses[0] != losses[1], f"{losses}")
    done = runs.tessera("import", model, folder.run("base"))
    check("a folder with checkpoints is left alone", done.returncode == USAGE and "it has checkpoints already" in done.stderr, done.stderr)
    done = runs.tessera("import", folder.path, folder.run("nothing"))
    check("a folder without a model", done.returncode == USAGE and "config.json" in done.stderr and not os.path.exists(folder.run("nothing")), done.stderr)
    os.makedirs(os.path.join(folder.path, "config-alone"))
    shutil.copy(os.path.join(model, "config.json"), os.path.join(folder.path, "config-alone"))
    done = runs.tessera("import", os.path.join(folder.path, "config-alone"), folder.run("nothing"))
    dangling = shutil.copytree(os.path.join(folder.path, "config-alone"), os.path.join(folder.path, "dangling"))
    os.symlink("/nowhere", os.path.join(dangling, "model.safetensors"))
    lost = runs.tessera("import", dangling, folder.run("nothing"))
    check("weights that are a link to nothing are named", lost.returncode == DATA and "model.safetensors: cannot open" in lost.stderr, lost.stderr)
    check("a model without weights", done.returncode == DATA and "no weights" in done.stderr and not os.path.exists(folder.run("nothing")), done.stderr)


def cached(folder, model):
    """Hugging Face's cache, whose snapshots are links; and what others' files are told."""
    hub = os.path.join(folder.path, "hub/models--org--tiny")
    snapshot, blobs = os.path.join(hub, "snapshots/0123abcd"), os.path.join(hub, "blobs")
    for path in (snapshot, os.path.join(hub, "refs")):
        os.makedirs(path)
    shutil.copytree(model, blobs)
    for name in os.listdir(model):
        os.symlink("../../blobs/" + name, os.path.join(snapshot, name))
    with open(os.path.join(hub, "refs/main"), "w") as main:
        main.write("0123abcd")
    done = runs.tessera("import", hub, folder.run("of-cache"))
    same = done.returncode == 0 and contents(consolidate(folder, folder.latest("of-cache"), "of-cache-again")) == contents(model)
    check("a model in the cache is taken by its snapshot", same and f"{hub}: the model is taken from {snapshot}" in done.stderr, done.stdout + done.stderr)
    done = runs.tessera("deck", "from-hf", os.path.dirname(hub))
    check("deck from-hf: the snapshot becomes run.init", done.returncode == 0 and f'init = "{snapshot}"' in done.stdout, done.stdout + done.stderr)
    foreign = os.path.join(folder.path, "foreign")
    os.makedirs(foreign + "/global_step4")
    for name in ("latest", "zero_to_fp32.py", "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        open(os.path.join(foreign, name), "w").close()
    done = runs.tessera("import", foreign, folder.run("nothing"))
    check("a checkpoint of DeepSpeed is named with its command", done.returncode == USAGE and f"`python3 {foreign}/zero_to_fp32.py {foreign} " in done.stderr, done.stderr)
    shutil.copy(os.path.join(model, "config.json"), foreign)
    open(foreign + "/pytorch_model.bin", "w").close()
    done = runs.tessera("import", foreign, folder.run("nothing"))
    check("a file of PyTorch is named with its command", done.returncode == DATA and "no weights" in done.stderr and
          f".save_pretrained(sys.argv[2])' {foreign} {foreign}-safetensors`" in done.stderr and not os.path.exists(folder.run("nothing")), done.stderr)
    done = runs.tessera("deck", "from-hf", foreign)
    check("deck from-hf: it says why run.init is left out", done.returncode == 0 and "init =" not in done.stdout and "run.init is left out. pytorch_model.bin" in done.stderr,
          done.stdout + done.stderr)


def large_model(folder, name, layers):
    """A Llama in bf16 whose weights are one hole: 33.6 MB a layer, of which the disk has nothing."""
    width, ff = 1024, 4096
    path = os.path.join(folder.path, name)
    os.mkdir(path)
    with open(path + "/config.json", "w") as out:
        json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width, "intermediate_size": ff, "num_hidden_layers": layers,
                   "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 256, "hidden_act": "silu", "max_position_embeddings": 64,
                   "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 10000.0}, out)
    shapes = {"model.embed_tokens.weight": [256, width], "model.norm.weight": [width]}
    for layer in range(layers):
        of = f"model.layers.{layer}"
        shapes.update({f"{of}.input_layernorm.weight": [width], f"{of}.post_attention_layernorm.weight": [width], f"{of}.mlp.down_proj.weight": [width, ff],
                       **{f"{of}.mlp.{part}_proj.weight": [ff, width] for part in ("gate", "up")},
                       **{f"{of}.self_attn.{part}_proj.weight": [width, width] for part in "qkvo"}})
    header, at = {}, 0
    for tensor, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        header[tensor], at = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(header).encode()
    with open(path + "/model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return path, at


def most_memory(*arguments):
    """The most bytes that a process of tessera held at a time."""
    running = subprocess.Popen([runs.TESSERA, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        sys.exit(f"FAIL {arguments}: status {running.returncode}")
    return used.ru_maxrss << 10


def bounded_memory(folder):
    """Import, verification and export take the same memory for a model that is seven times as large."""
    peaks = {}
    for name, layers in (("small", 2), ("large", 14)):
        path, size = large_model(folder, f"{name}-model", layers)
        step = of_step(folder, f"{name}-base", 0)
        peaks[name] = [size, *(most_memory(*arguments) for arguments in (("import", path, folder.run(f"{name}-base")), ("verify", step),
                                                                         ("consolidate", step, os.path.join(folder.path, f"{name}-out"), "--dtype", "bf16")))]
    more = [large - small for small, large in zip(peaks["small"], peaks["large"])]
    words = ", ".join(f"{what} {grown / 2**20:.1f} MiB" for what, grown in zip(("import", "verify", "consolidate"), more[1:]))
    check(f"a model of {more[0] / 2**20:.0f} MiB more takes at most 32 MiB more memory: {words}", more[0] > 300 << 20 and max(more[1:]) < 32 << 20, str(peaks))


def edit_header(path, change):
    """Rewrites the header of a safetensors file; `change` may give another text, or bytes of data, too."""
    with open(path, "rb") as file:
        whole = file.read()
    length = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8:8 + length]), whole[8 + length:]
    header, data = change(header, data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def refusals(folder, model, sharded):
    norm = "model.layers.1.post_attention_layernorm.weight"

    def without(header, data):
        """The last tensor goes, with its bytes."""
        last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][1])
        begin = header.pop(last)["data_offsets"][0]
        return header, data[:begin]

    def reshaped(header, data):
        header[norm]["shape"] = [4, 8]
        return header, data

    def retyped(header, data):
        header[norm]["shape"], header[norm]["dtype"] = [64], "F16"
        return header, data

    def unreadable(header, data):
        header[norm]["dtype"] = "I32"
        return header, data

    def renamed(header, data):
        header["model.layers.1.adapter.weight"] = header.pop(norm)
        return header, data

    def config(**keys):
        def change(path):
            with open(path + "/config.json") as file:
                values = json.load(file)
            with open(path + "/config.json", "w") as file:
                json.dump({**values, **keys}, file)
        return change

    def header(change):
        return lambda path: edit_header(path + "/model.safetensors", change)

    def spill(name, data):
        def change(path):
            with open(f"{path}/{name}", "wb") as file:
                file.write(data)
        return change

    def truncate(path):
        os.truncate(path + "/model.safetensors", os.path.getsize(path + "/model.safetensors") - 1)

    shard = sorted(name for name in os.listdir(sharded) if name.endswith(".safetensors"))[1]
    cases = [
        ("another vocabulary", USAGE, model, config(vocab_size=256), ["model.vocab = 211, but vocab_size is 256"]),
        ("two keys", USAGE, model, config(num_hidden_layers=3, rms_norm_eps=1e-6), ["model.layers = 2, but num_hidden_layers is 3", "model.norm_eps = 1e-05"]),
        ("an unknown class", USAGE, model, config(model_type="gpt_neo"), ["\"gpt_neo\" is not a model that a deck can describe"]),
        ("an unknown key", USAGE, model, config(logit_softcapping=30.0), ["logit_softcapping"]),
        ("quantized weights", USAGE, model, config(quantization_config={"quant_method": "awq"}), ["quantization_config"]),
        ("a config.json of garbage", USAGE, model, spill("config.json", b"\x00\xff{"), ["config.json:1:"]),
        ("no config.json", USAGE, model, lambda path: os.remove(path + "/config.json"), ["config.json", "No such file"]),
        ("a missing tensor", DATA, model, header(without), ["1 tensor is missing: "]),
        ("another shape", DATA, model, header(reshaped), [f"{norm} is 4 x 8 and must be 32"]),
        ("half the values", DATA, model, header(retyped), [f"{norm} is 64 and must be 32"]),
        ("a type that cannot be read", DATA, model, header(unreadable), [f"{norm} is I32"]),
        ("a tensor of something else", DATA, model, header(renamed), ["does not have: model.layers.1.adapter.weight", f"is missing: {norm}"]),
        ("a header of garbage", DATA, model, spill("model.safetensors", struct.pack("<Q", 4) + b"{a:b" + bytes(99)), ["its header cannot be parsed"]),
        ("a truncated file", DATA, model, truncate, ["truncated inside tensor"]),
        ("no weights", DATA, model, lambda path: os.rename(path + "/model.safetensors", path + "/pytorch_model.bin"),
         ["it has neither model.safetensors nor", "pytorch_model.bin is a file of PyTorch"]),
        ("a missing shard", DATA, sharded, lambda path: os.remove(f"{path}/{shard}"), ["are missing: " + shard]),
        ("an index of garbage", DATA, sharded, spill("model.safetensors.index.json", b"[1"), ["index.json: it cannot be parsed"]),
    ]
    for number, (what, status, source, change, words) in enumerate(cases):
        path = shutil.copytree(source, os.path.join(folder.path, f"bad-{number}"))
        change(path)
        name = f"refused-{number}"
        done = runs.tessera(*folder.arguments(name, **{**FROZEN, "run__init": path}), ranks=2)
        good = done.returncode == status and all(word in done.stderr for word in words) and done.stderr.count("error:") == 1
        check(f"{what}: status {done.returncode}, named, once, nothing made", good and not os.path.exists(folder.run(name)),
              f"expected {status} and {words}\n{done.stderr}")
    done = runs.tessera("deck", "from-hf", os.path.join(folder.path, "bad-2"))
    check("deck from-hf: an unknown class", done.returncode == USAGE and "gpt_neo" in done.stderr and not done.stdout, done.stderr)
    done = runs.tessera("deck", "from-hf", os.path.join(folder.path, "no such"))
    check("deck from-hf: no folder", done.returncode == USAGE and "No such file" in done.stderr, done.stderr)


def main():
    with runs.Folder() as folder:
        models = {name: round_trips(folder, name, architecture, keys) for name, (architecture, keys) in MODELS.items()}
        resumes(folder, models["llama"])
        freezes(folder)
        imports(folder, models["llama"], os.path.join(folder.path, "llama-bf16"))
        cached(folder, models["llama"])
        bounded_memory(folder)
        refusals(folder, models["llama"], os.path.join(folder.path, "llama-bf16"))
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
