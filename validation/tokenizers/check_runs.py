#!/usr/bin/env python3
"""A tokenizer's way through a run: a model of transformers with its tokenizer is fine-tuned on tokens of its own, asked, and exported.

    TESSERA=build/host/tessera check_runs.py

Token files of another tokenizer and of bytes are refused; the run's folder keeps the files, an export has them to the byte, and texts are those of
transformers' generate. Exit status: 0 all agree, 1 not, 77 when torch or transformers is not installed.
"""

import filecmp
import json
import os
import shutil
import sys
import tempfile

try:
    import h5py  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from make_tokenizers import KINDS, corpus, make
from program import fail, run, tessera, write_lines


def make_model(folder):
    """A model that says much: large random weights."""
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=640, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))


def check(folder, name):
    models = {kind: os.path.join(folder, kind) for kind in (name, "gpt2")}
    for kind, path in models.items():
        if not os.path.exists(path):
            make(kind, path)
    make_model(models[name])
    source = os.path.join(folder, "lines.jsonl")
    write_lines(source, ({"text": line} for line in corpus(400, 9)))
    data = {}
    for kind in (*models, "byte"):
        data[kind] = os.path.join(folder, f"data-{name}-{kind}")
        tessera("tokenize", "--tokenizer", models.get(kind, "byte"), source, data[kind])
    runs = os.path.join(folder, "run-" + name)
    deck = os.path.join(folder, name + ".toml")
    with open(deck, "w", encoding="utf-8") as file:
        file.write(tessera("deck", "from-hf", models[name], f"data.train={data[name]}/train.h5", f"run.output_dir={runs}", "run.steps=2", "batch.global=2",
                           "batch.sequence_length=128", "checkpoint.every=1", "run.device=host", "precision.compute=fp32", "optimizer.learning_rate=1e-6"))
    for kind, words in (("gpt2", "holds tokens of another tokenizer (gpt2, digest"), ("byte", "holds bytes, but this run's model has its own tokenizer")):
        status, _, errors = run("train", deck, f"data.train={data[kind]}/train.h5")
        if status != 3 or words not in errors:
            fail(f"{name}: tokens of {kind}: status {status}\n{errors}")
    if os.path.exists(runs):
        fail(f"{name}: a run that was refused has left its folder")
    tessera("train", deck)
    out, latest = os.path.join(folder, "out-" + name), os.path.join(runs, "checkpoints", "latest")
    tessera("consolidate", latest, out)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        for there in (os.path.join(runs, "tokenizer"), out):
            if not filecmp.cmp(os.path.join(models[name], file), os.path.join(there, file), shallow=False):
                fail(f"{name}: {there}/{file} is not the model's")
    check_digest(folder, name, models, data, latest, deck)
    compare_texts(name, latest, out)
    compare_tasks(name, folder, latest, out)
    imported = os.path.join(folder, "imported-" + name)
    tessera("import", models[name], imported)
    if not filecmp.cmp(os.path.join(models[name], "tokenizer.json"), os.path.join(imported, "tokenizer", "tokenizer.json"), shallow=False):
        fail(f"{name}: an import has another tokenizer.json")
    with open(os.path.join(runs, "tokenizer", "tokenizer.json"), "a", encoding="utf-8") as file:
        file.write("\n")
    status, _, errors = run("train", deck, "run.steps=3")
    if status != 2 or " differs from " not in errors:
        fail(f"{name}: another tokenizer in the run's folder: status {status}\n{errors}")
    print(f"{name}: refused, kept, exported, and the same texts")


def check_digest(folder, name, models, data, latest, deck):
    """A checkpoint knows its tokenizer without the run's folder; a deck may name it by folder or digest, for a run that begins with random weights too."""
    with h5py.File(os.path.join(data[name], "train.h5")) as file:
        digest = file.attrs["tokenizer.xxh3"]
    digest = digest.decode() if isinstance(digest, bytes) else str(digest)
    moved = os.path.join(folder, "moved-" + name)
    shutil.copytree(latest, moved)
    if "-" not in digest:
        fail(f"{name}: the digest of a token file, {digest}, says nothing of the files beside tokenizer.json")
    if f'tokenizer = "{digest}"' not in tessera("inspect", moved, "--deck"):
        fail(f"{name}: the checkpoint does not carry {digest}")
    again = ['run.init=""', f"run.output_dir={folder}/again-{name}", "run.steps=1"]
    refused = [(3, "holds tokens of another tokenizer (gpt2, digest", ["evaluate", moved, "--data", data["gpt2"] + "/train.h5", "--device", "host"]),
               (2, "differs from the tokenizer of", ["generate", moved, "--prompt", "a", "--tokenizer", models["gpt2"]]),
               (2, "differs from the tokenizer of", ["train", deck, *again, f"run.resume={moved}", f"data.tokenizer={models['gpt2']}"]),
               (3, "holds tokens of another tokenizer", ["train", deck, *again, f"data.tokenizer={models['gpt2']}"]),
               (3, "than data.tokenizer (digest 00000000)", ["train", deck, *again, "data.tokenizer=" + "0" * 32])]
    for status, words, command in refused:
        got, _, errors = run(*command)
        if got != status or words not in errors:
            fail(f"{name}: {' '.join(command)}: status {got}, expected {status} and '{words}'\n{errors[-2000:]}")
    tessera("evaluate", moved, "--data", data[name] + "/train.h5", "--device", "host")
    tessera("train", deck, *again, f"data.tokenizer={models[name]}")
    if not os.path.exists(f"{folder}/again-{name}/tokenizer/tokenizer.json"):
        fail(f"{name}: a tokenizer that data.tokenizer names is not kept")
    tessera("train", deck, *again, f"run.output_dir={folder}/unnamed-{name}")
    if "-" not in digest:
        fail(f"{name}: the digest of a token file, {digest}, says nothing of the files beside tokenizer.json")
    if f'tokenizer = "{digest}"' not in tessera("inspect", f"{folder}/unnamed-{name}/checkpoints/latest", "--deck"):
        fail(f"{name}: a checkpoint does not carry the digest of its token files")


def compare_texts(name, checkpoint, out):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), AutoTokenizer.from_pretrained(out)
    end = tokenizer.convert_tokens_to_ids(KINDS[name][1])

    def theirs(ids):
        with torch.no_grad():
            made = model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False, eos_token_id=end, pad_token_id=end)
        return tokenizer.decode(made[0][len(ids) :], skip_special_tokens=True, clean_up_tokenization_spaces=False)

    for text in ("the world 😀 café", "你好 one"):
        ours = tessera("generate", checkpoint, "--prompt", text, "--temperature", "0", "--tokens", "40")
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids, skip_special_tokens=True) + theirs(ids)
        if ours.rstrip("\n").replace(" ", "") != whole.rstrip("\n").replace(" ", ""):
            fail(f"{name}: {text!r} goes on as {ours!r}, and with transformers {whole!r}")
    if KINDS[name][3]:
        turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the first?"}]
        ours = tessera("generate", checkpoint, "--chat", "the first?", "--system", "be brief", "--temperature", "0", "--tokens", "40")
        want = theirs(tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=True, return_dict=True)["input_ids"])
        if ours.rstrip("\n").strip() != want.rstrip("\n").strip():
            fail(f"{name}: the answer is {ours!r}, and with transformers {want!r}")


def compare_tasks(name, folder, checkpoint, out):
    """Log-likelihoods of choices and documents, of the tokens that transformers' tokenizer makes."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), AutoTokenizer.from_pretrained(out)
    end = tokenizer.convert_tokens_to_ids(KINDS[name][1])

    def likelihood(context, text, rendered=False):
        encoded = tokenizer(context + text, return_offsets_mapping=True, add_special_tokens=not rendered)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        counts = [last > len(context) for first, last in offsets]
        if all(counts):
            ids, counts = [end, *ids], [False, *counts]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        return sum(logits[t - 1, ids[t]].item() for t in range(1, len(ids)) if counts[t]), sum(counts[1:])

    questions = [("the first of ", ["the world", "caf\u00e9 \U0001f600"]), ("", ["one", "two three"]), ("one and two are", [" three", "\u4f60\u597d"])]
    text = "the world goes on"
    task, details = os.path.join(folder, f"task-{name}.jsonl"), os.path.join(folder, f"details-{name}.jsonl")
    write_lines(task, [*({"context": context, "choices": choices, "answer": 0} for context, choices in questions), {"text": text}])
    tessera("evaluate", checkpoint, "--task", task, "--details", details, "--device", "host")
    with open(details, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for (context, choices), row in zip(questions, rows):
        want = [likelihood(context, choice)[0] for choice in choices]
        if any(abs(a - b) > 1e-3 + 1e-4 * abs(b) for a, b in zip(row["log_likelihoods"], want)):
            fail(f"{name}: {context!r} {choices}: {row['log_likelihoods']}, and with transformers {want}")
    if KINDS[name][3]:
        turns = [{"role": "user", "content": "the first?"}]
        write_lines(task, [{"messages": turns, "choices": questions[0][1], "answer": 1}])
        tessera("evaluate", checkpoint, "--task", task, "--details", f"{details}-chat", "--device", "host")
        with open(f"{details}-chat", encoding="utf-8") as file:
            ours = json.loads(file.readline())["log_likelihoods"]
        context = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        if len(tokenizer(context)["input_ids"]) > 120:
            fail(f"{name}: {context!r} does not fit the model's sequences, so the comparison is none")
        theirs = [likelihood(context, choice, True)[0] for choice in questions[0][1]]
        if any(abs(a - b) > 1e-3 + 1e-4 * abs(b) for a, b in zip(ours, theirs)):
            fail(f"{name}: choices after messages: {ours}, and with transformers {theirs}")
    want, tokens = likelihood("", text)
    if rows[-1]["tokens"] != tokens or abs(rows[-1]["loss"] + want / tokens) > 1e-4 * abs(want):
        fail(f"{name}: {rows[-1]} of {text!r}, and with transformers {tokens} tokens of {-want / tokens}")


with tempfile.TemporaryDirectory() as scratch:
    for kind in ("llama3", "smollm"):
        check(scratch, kind)
