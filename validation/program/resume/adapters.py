#!/usr/bin/env python3
"""Runs with low-rank adapters ([lora]): gradients against those of the whole matrices, exports with the adapter in the weights and beside them, adapters
that come back to the bit on any layout, evaluation, and adapters that are refused before the first step. No Python packages."""
import array
import json
import math
import os
import re
import shutil
import sys

import runs
from imported import consolidate, contents, of_step, tensors_of

USAGE, DATA = 2, 3
check = runs.Checks()
SHARDED = {"zero__stage": 3, "zero__param_persistence_threshold": 0}
MODEL = {"model__kv_heads": 2, "model__qkv_bias": True}
STEADY = {"batch__global": 4, "optimizer__gradient_clipping": 0, "optimizer__weight_decay": 0, "learning_rate__schedule": "constant", "run__reproducible": True,
          "precision__compute": "fp32", "learning_rate__warmup_steps": 0}
RANK, ALPHA = 4, 6.0
# The first step of a logarithmic warmup has a learning rate of 0: what is saved after it is what the run began with.
STILL = {**STEADY, **MODEL, "run__steps": 2, "learning_rate__schedule": "cosine", "learning_rate__warmup_steps": 2, "learning_rate__warmup_type": "log", "checkpoint__every": 1,
         "checkpoint__keep": 0}
LORA = {"lora__rank": RANK, "lora__alpha": ALPHA}
LAYOUTS = [(1, {}), (2, SHARDED), (2, {"mesh__tp": 2}), (4, {"mesh__tp": 4}), (2, {"mesh__pp": 2}), (4, {"mesh__tp": 2, **SHARDED})]
EXPERTS = {**MODEL, "model__experts": 4, "model__experts_per_token": 2, "model__expert_ff_width": 40, "model__shared_ff_width": 24, "model__normalize_top_k": False,
           "model__router_aux_loss": 0, "model__router_z_loss": 0}
ALL = {**LORA, "lora__targets": '["all-linear"]'}
EXPERT_LAYOUTS = [(1, {}), (2, {"mesh__ep": 2}), (2, SHARDED), (2, {"mesh__tp": 2}), (4, {"mesh__ep": 2, **SHARDED}), (2, {"mesh__pp": 2})]


def floats(data):
    return array.array("f", data)


def product(a, b, rows, inner, columns, a_transposed=False, b_transposed=False):
    """(rows, columns) of two flat row-major matrices."""
    at_a = (lambda i, k: a[k * rows + i]) if a_transposed else (lambda i, k: a[i * inner + k])
    at_b = (lambda k, j: b[j * inner + k]) if b_transposed else (lambda k, j: b[k * columns + j])
    return [math.fsum(at_a(i, k) * at_b(k, j) for k in range(inner)) for i in range(rows) for j in range(columns)]


def distance(ours, theirs):
    if not any(theirs):
        return 1.0 if any(ours) else 0.0  # of an expert that no token has chosen
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(ours, theirs)) / math.fsum(b * b for b in theirs))


def module_of(matrix):
    """The module at Hugging Face of one of our matrices."""
    for ours, theirs in ((r"attention\.w(.)$", r"self_attn.\1_proj"), (r"moe\.shared\.w_(\w+)$", r"mlp.shared_expert.\1_proj"),
                         (r"moe\.experts\.(\d+)\.w_(\w+)$", r"mlp.experts.\1.\2_proj"), (r"mlp\.w_(\w+)$", r"mlp.\1_proj")):
        matrix = re.sub(ours, theirs, matrix)
    return "base_model.model.model." + matrix


def gradients(folder, base, adapter, model, lora, layouts, count):
    """After a step from zero moments Adam's first one is (1 - beta1) times the gradient. Of y = x (W + s B A)^T it is s B^T G for A and s G A^T for B,
    where G is that of the whole matrix at W + s B A, which a run of the merged model has."""
    first = {**STEADY, **model, "run__steps": 1}
    merged = consolidate(folder, folder.latest(f"tuned-{count}"), f"merged-{count}")
    folder.train(f"whole-{count}", 1, **first, run__init=merged)
    whole = runs.read_state(folder.latest(f"whole-{count}"))
    for ranks, layout in layouts:
        name = f"gradients-{count}-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
        folder.train(name, ranks, **first, **lora, **layout, run__init=base, lora__init=adapter)
        ours, worst, seen = runs.read_state(folder.latest(name)), 0.0, 0
        before = tensors_of(adapter)
        for (group, tensor), (shape, data) in ours.items():
            if group != "adam_m" or not tensor.endswith(".lora_a"):
                continue
            matrix = tensor[:-len(".lora_a")]
            (n, k), scale = whole[group, matrix][0], ALPHA / RANK
            g = floats(whole[group, matrix][1])
            theirs = module_of(matrix)
            a, b = floats(before[theirs + ".lora_A.weight"]), floats(before[theirs + ".lora_B.weight"])
            of_a = [scale * x for x in product(b, g, RANK, n, k, a_transposed=True)]
            of_b = [scale * x for x in product(g, a, n, k, RANK, b_transposed=True)]
            worst = max(worst, distance(floats(data), of_a), distance(floats(ours[group, matrix + ".lora_b"][1]), of_b))
            seen += 1
        check(f"{name}: gradients of {seen} adapters are those of the merged matrices, within {worst:.1e}", seen == count and worst < 1e-4)


def of_experts(folder):
    """Adapters of every matrix of a model with experts and one that takes all tokens: gradients on any layout, exports, and one that comes back."""
    folder.train("experts-base", 1, **STEADY, **EXPERTS, run__steps=4)
    base = consolidate(folder, folder.latest("experts-base"), "experts-model")
    folder.train("tuned-38", 2, **STEADY, **EXPERTS, **ALL, mesh__ep=2, run__steps=6, run__init=base, optimizer__learning_rate=0.02)
    step = folder.latest("tuned-38")
    adapter, merged = consolidate(folder, step, "experts-adapter", "--adapter"), consolidate(folder, step, "experts-merged")
    with open(os.path.join(adapter, "adapter_config.json")) as file:
        config = json.load(file)
    check("experts: PEFT knows the modules by seven names", sorted(config["target_modules"]) ==
          sorted(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]), str(config["target_modules"]))
    check("experts: the adapter is two matrices beside each of 38", len(tensors_of(adapter)) == 76 and
          all(module_of(f"layers.1.moe.experts.{e}.w_down") + ".lora_B.weight" in tensors_of(adapter) for e in range(4)))
    done = runs.tessera("inspect", step, "--diff", merged)
    check("experts: inspect --diff: the export is its checkpoint with the adapter in it", done.returncode == 0 and "same bits" in done.stdout, done.stdout + done.stderr)
    losses = []
    folder.train("experts-merged-once", 1, **{**STILL, **EXPERTS}, run__init=merged)
    for where in (step, of_step(folder, "experts-merged-once", 1)):
        done = runs.tessera("evaluate", where, "--data", folder.data, "--json")
        losses.append(json.loads(done.stdout)["loss"] if done.returncode == 0 else math.nan)
    check(f"experts: evaluate: {losses[0]} with adapters beside the model and {losses[1]} with them in it", abs(losses[0] - losses[1]) < 1e-5 * abs(losses[1]))
    gradients(folder, base, adapter, EXPERTS, ALL, EXPERT_LAYOUTS, 38)
    for ranks, layout in EXPERT_LAYOUTS:
        name = f"experts-back-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
        folder.train(name, ranks, **{**STILL, **EXPERTS}, **ALL, **layout, run__init=base, lora__init=adapter)
        check(f"{name}: the adapter's bytes", tensors_of(consolidate(folder, of_step(folder, name, 1), name + "-a", "--adapter")) == tensors_of(adapter))
    done = runs.tessera(*folder.arguments("some", **STEADY, **EXPERTS, **{**LORA, "lora__targets": '["layers.0.moe.experts.1.*"]'}))
    check("experts: adapters of some of a layer are refused", done.returncode == USAGE and "all experts of a layer have adapters, or none" in done.stderr, done.stderr)


def exports(folder, base):
    """The run `tuned-14`, and the folder of its adapter."""
    folder.train("tuned-14", 2, **STEADY, **MODEL, **LORA, **SHARDED, run__steps=6, run__init=base, optimizer__learning_rate=0.02)
    step = folder.latest("tuned-14")
    adapter, merged = consolidate(folder, step, "adapter", "--adapter"), consolidate(folder, step, "model")
    with open(os.path.join(adapter, "adapter_config.json")) as file:
        config = json.load(file)
    check("adapter_config.json says the deck's [lora]", (config["r"], config["lora_alpha"], config["use_rslora"], config["base_model_name_or_path"]) ==
          (RANK, ALPHA, False, base) and sorted(config["target_modules"]) == sorted(["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    check("the adapter is 28 tensors, and no other", len(tensors_of(adapter)) == 28 and all(".lora_" in name for name in tensors_of(adapter)))
    check("the merged model has the model's tensors", set(tensors_of(merged)) == set(tensors_of(base)))
    done = runs.tessera("inspect", step, "--diff", merged)
    check("inspect --diff: the export is its checkpoint with the adapter in it", done.returncode == 0 and "same bits" in done.stdout, done.stdout + done.stderr)
    done = runs.tessera("inspect", step, "--diff", base)
    check("inspect --diff: of the model that it began with, what has no adapter is the same", done.returncode == 4 and "13 of 27 tensors of the weights" in done.stdout, done.stdout)
    losses = {}
    folder.train("merged-once", 1, **STILL, run__init=merged)
    for name, where in (("adapters beside", step), ("adapters merged", of_step(folder, "merged-once", 1))):
        done = runs.tessera("evaluate", where, "--data", folder.data, "--json")
        check(f"evaluate: {name}", done.returncode == 0, done.stderr)
        losses[name] = json.loads(done.stdout)["loss"] if done.returncode == 0 else math.nan
    first, second = losses.values()
    check(f"evaluate: {first} with adapters beside the model and {second} with them in it", abs(first - second) < 1e-5 * abs(second))
    done = runs.tessera("generate", step, "--prompt-tokens", "1,2,3", "--tokens", "8", "--temperature", "0")
    check("generate takes a checkpoint with adapters", done.returncode == 0, done.stderr)
    done = runs.tessera("consolidate", step, os.path.join(folder.path, "part"), "--adapter", "--tensor", "head.*")
    check("consolidate --adapter with --tensor is refused", done.returncode == USAGE and "--adapter writes the whole adapter" in done.stderr, done.stderr)
    folder.train("plain", 1, **STEADY, **MODEL, run__steps=1)
    done = runs.tessera("consolidate", folder.latest("plain"), os.path.join(folder.path, "none"), "--adapter")
    check("consolidate --adapter of a run without [lora] is refused", done.returncode == USAGE and "has no adapter" in done.stderr, done.stderr)
    return adapter


def with_dropout(folder, base):
    """lora.dropout: the losses of one rank on any layout and with what is made again; evaluations drop nothing; PEFT is told."""
    keys = {**STEADY, **MODEL, **LORA, "lora__dropout": 0.3, "run__init": base, "run__steps": 4, "optimizer__learning_rate": 0.02,
            "batch__micro": 1}
    folder.train("dropout", 1, **keys)
    folder.train("no-dropout", 1, **{**keys, "lora__dropout": 0.0})
    losses = folder.losses("dropout")
    check("dropout changes what is learnt", losses[3] != folder.losses("no-dropout")[3], str(losses))
    for ranks, layout in [*LAYOUTS[1:], (2, {"mesh__cp": 2}), (1, {"batch__micro": 4}), (1, {"activation__recompute": "full"}),
                          (2, {"zero__stage": 2, "batch__micro": 2})]:
        name = f"dropout-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
        folder.train(name, ranks, **{**keys, **layout})
        apart = max(abs(a[0] / b[0] - 1) for a, b in zip(folder.losses(name).values(), losses.values()))
        check(f"{name}: the same features are dropped, losses within {apart:.1e}", apart < 1e-5)
        if not any(key in layout for key in ("mesh__tp", "mesh__cp", "batch__micro")):  # whose products have other shapes
            check(f"{name}: the same bits", folder.hashes(name) == folder.hashes("dropout"))
    folder.train("dropout-cut", 1, **{**keys, "run__steps": 2})
    folder.train("dropout-cut", 2, **{**keys, **SHARDED})
    check("a resume on another layout drops the same", folder.hashes("dropout-cut") == folder.hashes("dropout"))
    step = folder.latest("dropout")
    values = [json.loads(runs.tessera("evaluate", step, "--data", folder.data, "--json").stdout)["loss"] for _ in range(2)]
    merged = consolidate(folder, step, "dropout-merged")
    folder.train("dropout-merged-once", 1, **STILL, run__init=merged)
    plain = json.loads(runs.tessera("evaluate", of_step(folder, "dropout-merged-once", 1), "--data", folder.data, "--json").stdout)["loss"]
    check(f"evaluate drops nothing: {values[0]}, and {plain} merged", values[0] == values[1] and abs(values[0] - plain) < 1e-5 * plain)
    evaluated = {**keys, "data__validation": folder.data, "evaluate__every": 4, "evaluate__batches": 8}
    folder.train("dropout-evaluated", 1, **evaluated)
    folder.train("dropout-evaluated-2", 2, **{**evaluated, **SHARDED})
    rows = [[row["val_loss"] for row in folder.metrics(name) if "val_loss" in row] for name in ("dropout-evaluated", "dropout-evaluated-2")]
    left = folder.hashes("dropout-evaluated") == folder.hashes("dropout")
    check("evaluations of a run leave its dropout as it is", rows[0] == rows[1] and left, str(rows))
    adapter = consolidate(folder, step, "dropout-adapter", "--adapter")
    with open(os.path.join(adapter, "adapter_config.json")) as file:
        check("adapter_config.json has lora_dropout", json.load(file)["lora_dropout"] == 0.3)
    done = folder.train("dropout-less", 1, **{**STILL, **LORA, "run__init": base, "lora__init": adapter})
    check("another dropout than the adapter's is said", "lora_dropout 0.3 (lora.dropout is 0" in done.stderr, done.stderr)


def whole_modules(folder, base):
    """lora.modules_to_save: trained beside adapters, saved with them by PEFT's names, loaded by lora.init, merged by consolidate."""
    keys = {**STEADY, **MODEL, **LORA, "lora__targets": '"q_proj"', "lora__modules_to_save": '["lm_head", "model.norm"]', "run__init": base}
    folder.train("modules", 1, **keys, run__steps=4, optimizer__learning_rate=0.02)
    for ranks, layout in LAYOUTS[1:3]:
        name = f"modules-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
        folder.train(name, ranks, **keys, **layout, run__steps=4, optimizer__learning_rate=0.02)
        apart = max(abs(a[0] / b[0] - 1) for a, b in zip(folder.losses(name).values(), folder.losses("modules").values()))
        check(f"{name}: losses within {apart:.1e}", apart < 1e-5)
    step = folder.latest("modules")
    adapter, merged = consolidate(folder, step, "modules-adapter", "--adapter"), consolidate(folder, step, "modules-merged")
    tensors, before, after = tensors_of(adapter), tensors_of(base), tensors_of(merged)
    whole = {"base_model.model.lm_head.weight", "base_model.model.model.norm.weight"}
    beside = {name for name in tensors if ".lora_" not in name}
    check("the adapter has the modules by PEFT's names", beside == whole and len(tensors) == 4 + 2, str(sorted(tensors)))
    with open(os.path.join(adapter, "adapter_config.json")) as file:
        check("adapter_config.json names them", sorted(json.load(file)["modules_to_save"]) == ["lm_head", "model.norm"])
    check("they were trained, and are in the merged model", all(after[name[17:]] == tensors[name] != before[name[17:]] for name in whole))
    others = [name for name in before if "q_proj" not in name and "base_model.model." + name not in whole]
    check("all else without an adapter stayed", all(after[name] == before[name] for name in others))
    folder.train("modules-back", 2, **{**keys, **STILL, **SHARDED}, lora__init=adapter)
    back = consolidate(folder, of_step(folder, "modules-back", 1), "modules-a", "--adapter")
    check("lora.init brings them back to the byte", tensors_of(back) == tensors)
    without = {**keys, "lora__modules_to_save": "[]", "lora__init": adapter, "run__steps": 1}
    done = runs.tessera(*folder.arguments("modules-none", **without))
    named = "lm_head.weight" in done.stderr and "lora.modules_to_save" in done.stderr
    check("without lora.modules_to_save their tensors are refused by name", done.returncode == DATA and named, done.stderr)
    done = runs.tessera(*folder.arguments("modules-typo", **{**keys, "lora__modules_to_save": '"lm_haed"', "run__steps": 1}))
    refused = done.returncode == USAGE and "no module of this model is called" in done.stderr
    check("a module of no such name is refused", refused, done.stderr)


def comes_back(folder, base, adapter):
    still = {**STILL, **LORA, "run__init": base}
    want = tensors_of(adapter)
    for ranks, layout in LAYOUTS:
        name = f"back-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
        done = folder.train(name, ranks, **still, **layout, lora__init=adapter)
        check(f"{name}: the log says the adapter", f"and adapter {adapter} (28 tensors" in done.stderr and "rank 4, alpha 6 (scale 1.5), on 14 matrices" in done.stderr, done.stderr)
        check(f"{name}: the adapter's bytes", tensors_of(consolidate(folder, of_step(folder, name, 1), name + "-a", "--adapter")) == want)
        check(f"{name}: the model's bytes", tensors_of(base) == {**tensors_of(base), **of_base(folder, of_step(folder, name, 1), name)})
    drawn = {}
    for ranks, layout in LAYOUTS[:3]:
        name = f"drawn-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
        folder.train(name, ranks, **still, **layout)
        drawn[name] = tensors_of(consolidate(folder, of_step(folder, name, 1), name + "-a", "--adapter"))
        zeros = all(not any(data) for tensor, data in drawn[name].items() if "lora_B" in tensor)
        values = floats(drawn[name]["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"])
        bound = 1 / math.sqrt(len(values) // RANK)
        check(f"{name}: B is zero, and A within its bound", zeros and max(map(abs, values)) < bound and max(map(abs, values)) > 0.9 * bound)
    first, *others = drawn.values()
    check("adapters are drawn alike on any layout", all(other == first for other in others))
    done = runs.tessera("import", base, folder.run("imported"))
    check("tessera import", done.returncode == 0, done.stderr)
    for ranks, layout in LAYOUTS[:3]:
        name = f"imported-{ranks}-" + "-".join(f"{key.split('__')[-1]}{value}" for key, value in layout.items())
        folder.train(name, ranks, **{**still, "run__init": '""'}, **layout, run__resume=folder.latest("imported"))
        step = of_step(folder, name, 1)
        check(f"{name}: beside an imported model the same", tensors_of(consolidate(folder, step, name + "-a", "--adapter")) == first)
        check(f"{name}: and its bytes", tensors_of(base) == {**tensors_of(base), **of_base(folder, step, name)})
    done = folder.train("no-adapters", 1, expect=4, **{**still, "run__init": '""'}, run__resume=folder.latest("base"))
    check("a checkpoint of training without adapters is another model", "it has no tensor layers.0.attention.wq.lora_a" in done.stderr, done.stderr)


def of_base(folder, step, name):
    """The tensors of the model beside which the adapters stand, unmerged, under Hugging Face's names: those without an adapter."""
    out = tensors_of(consolidate(folder, step, name + "-m"))
    return {tensor: data for tensor, data in out.items() if "_proj.weight" not in tensor}


def refusals(folder, base, adapter):
    def edited(**keys):
        def change(path):
            file = path + "/adapter_config.json"
            config = {**json.load(open(file)), **keys}
            json.dump({key: value for key, value in config.items() if value != "drop"}, open(file, "w"))
        return change

    def spill(path):
        with open(path + "/adapter_model.safetensors", "r+b") as file:
            file.truncate(os.path.getsize(path + "/adapter_model.safetensors") - 5)

    wide = {**MODEL, "model__ff_width": 64}
    folder.train("wide", 1, **STEADY, **wide, run__steps=1)
    other = consolidate(folder, folder.latest("wide"), "wide-model")
    cases = [
        ("another rank", USAGE, edited(r=8), {}, ["r is 8, and lora.rank = 4"]),
        ("another alpha and rsLoRA", USAGE, edited(lora_alpha=8, use_rslora=True), {}, ["lora_alpha is 8, and lora.alpha = 6", "use_rslora is true"]),
        ("DoRA", USAGE, edited(use_dora=True), {}, ["use_dora is true"]),
        ("another method", USAGE, edited(peft_type="IA3"), {}, ['peft_type is "IA3"']),
        ("trained biases", USAGE, edited(bias="lora_only"), {}, ['bias is "lora_only"']),
        ("PiSSA", USAGE, edited(init_lora_weights="pissa"), {}, ["path_initial_model_for_weight_conversion"]),
        ("ranks by pattern", USAGE, edited(rank_pattern={"q_proj": 2}), {}, ["rank_pattern is"]),
        ("a configuration without r", USAGE, edited(r="drop"), {}, ["r is missing"]),
        ("other targets", DATA, edited(), {"lora__targets": '["wq"]'}, ["that lora.targets and lora.modules_to_save do not name"]),
        ("another base", DATA, edited(), {**wide, "run__init": other}, ["the adapter was made for another model", "gate_proj.lora_B.weight is 48 x 4 and must be 64 x 4"]),
        ("a truncated file", DATA, spill, {}, ["truncated inside tensor"]),
        ("no weights", DATA, lambda path: os.remove(path + "/adapter_model.safetensors"), {}, ["it has neither adapter_model.safetensors nor"]),
        ("no configuration", DATA, lambda path: os.remove(path + "/adapter_config.json"), {}, ["adapter_config.json"]),
        ("no model", USAGE, edited(), {"run__init": '""'}, ["an adapter fits only the model that it was made for"]),
    ]
    for number, (what, status, change, keys, words) in enumerate(cases):
        path = shutil.copytree(adapter, os.path.join(folder.path, f"bad-{number}"))
        change(path)
        name = f"refused-{number}"
        done = runs.tessera(*folder.arguments(name, **{**STEADY, **MODEL, **LORA, "run__steps": 1, "run__init": base, "lora__init": path, **keys}), ranks=2)
        good = done.returncode == status and all(word in done.stderr for word in words)
        check(f"{what}: status {done.returncode}, named, nothing made", good and not os.path.exists(folder.run(name)), f"expected {status} and {words}\n{done.stderr}")


def main():
    with runs.Folder() as folder:
        folder.train("base", 1, **STEADY, **MODEL, run__steps=4)
        base = consolidate(folder, folder.latest("base"), "base-model")
        adapter = exports(folder, base)
        gradients(folder, base, adapter, MODEL, LORA, LAYOUTS, 14)
        comes_back(folder, base, adapter)
        with_dropout(folder, base)
        whole_modules(folder, base)
        refusals(folder, base, adapter)
        of_experts(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
