#!/usr/bin/env python3
"""The cards of families of models (docs/families) and the table that is made of them. Needs no torch.

    cards.py --check       each family that the program names has a card, and the tables in docs are those of the cards
    cards.py --tables      writes the tables

make_cards.py measures the figures of a card and writes it."""
import json
import os
import re
import subprocess
import sys
import tempfile

import families

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CARDS = os.path.join(ROOT, "docs", "families")
TESSERA = os.environ.get("TESSERA", os.path.join(ROOT, "build/host/tessera"))
KEYS = "## Keys of config.json\n"
# Of a new card; test_families writes the table.
NO_KEYS = """
[Keys of all families](README.md#keys-of-configjson) stand on one page. Beside them:

<!-- keys: TESSERA_WRITE_CARDS=1 test_families -->
<!-- end of keys -->
"""
BEGIN, END = "<!-- families: validation/parity/cards.py --tables -->", "<!-- end of families -->"

# model_type: (what it is, what there is to say of it)
FAMILIES = {
    "llama": ("Llama 2, 3, 3.1, 3.2; SmolLM; others that are Llamas", "`tie_word_embeddings`, `attention_bias`"),
    "mistral": ("Mistral", "with a window on all layers (7B v0.1), or none"),
    "ministral": ("Ministral", "windows on the layers that `layer_types` names; exported as the Mistral or CWM that it is"),
    "cwm": ("CWM", "windows on the layers that `layer_types` names"),
    "smollm3": ("SmolLM3", "layers without a rotation (`no_rope_layers`); without windows"),
    "gemma": ("Gemma", "`hidden_act` `gelu` is the tanh form, as its class takes it"),
    "gemma2": ("Gemma 2", ""),
    "gemma3_text": ("Gemma 3", "of a model of text and images (`gemma3`) the text model"),
    "olmo2": ("OLMo 2", ""),
    "olmo3": ("OLMo 3", ""),
    "exaone4": ("EXAONE 4", ""),
    "glm": ("GLM-4 9B", ""),
    "glm4": ("GLM-4-0414, GLM-Z1", ""),
    "glm4_moe": ("GLM-4.5, GLM-4.5-Air, GLM-4.6", "without the layers that predict further tokens, which the log says"),
    "dots1": ("dots.llm1", ""),
    "minimax_m2": ("MiniMax-M2", "of weights in BF16; without the layers that predict further tokens, which the log says"),
    "granite": ("Granite 3, dense", ""),
    "granitemoe": ("Granite 3 with experts", ""),
    "granitemoeshared": ("Granite with a shared expert", ""),
    "granitemoehybrid": ("Granite 4 without Mamba's layers (micro, 350M, 1B)", "with positions exported as the Granite that it is"),
    "phi3": ("Phi-3, Phi-4, Phi-4-mini", "longrope too; one that is rotated as a Llama is exported as the Llama, or with a window the Mistral, that it is"),
    "seed_oss": ("Seed-OSS", "exported as the Qwen2 that it is; its dropout is told of and left out"),
    "qwen2": ("Qwen2, Qwen2.5", "windows where `use_sliding_window` is true"),
    "qwen3": ("Qwen3", "`attention_bias`"),
    "mixtral": ("Mixtral", ""),
    "qwen2_moe": ("Qwen1.5-MoE, Qwen2-MoE", "`decoder_sparse_step`, `mlp_only_layers`"),
    "qwen3_moe": ("Qwen3-MoE", "`decoder_sparse_step`, `mlp_only_layers`"),
    "olmoe": ("OLMoE", "without `clip_qkv`"),
    "apertus": ("Apertus", "with xIELU or another activation"),
    "starcoder2": ("StarCoder2", "its dropout is told of and left out"),
    "gpt2": ("GPT-2", "its dropout is told of and left out; llm.c's checkpoints too"),
    "cohere": ("Command R, Aya 23 and Expanse", "without `use_qk_norm` (Command R+)"),
    "cohere2": ("Command R7B, Command A", "layers without a window are not rotated"),
    "gpt_oss": ("GPT-OSS 20B, 120B", "weights of experts are decoded from MXFP4 too, and written in the type of the export"),
} | {kind: (family.TITLE, family.NOTES) for kind, family in families.ALL.items()}


def card_of(kind):
    return os.path.join(CARDS, f"{kind}.md")


def figures_of(kind):
    """The figures that stand in a card, by their names."""
    with open(card_of(kind), encoding="utf-8") as file:
        text = file.read()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text.partition(KEYS)[0], re.M)
    return {name.strip(): value.strip() for name, value in rows}, text


def table():
    lines = ["| family | `model_type` | notes | logits, worst gradient, ten steps beside transformers |", "|---|---|---|---|"]
    for kind, (title, notes) in FAMILIES.items():
        figures, _ = figures_of(kind)
        far = ", ".join(figures[name] for name in ("logits", "worst gradient of a tensor", "loss of ten steps"))
        lines.append(f"| {title} | [`{kind}`]({kind}.md) | {notes} | {far} |")
    return "\n".join(lines)


def documents():
    """Path, its text, and the text with the table that the cards make."""
    path = os.path.join(CARDS, "README.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return [(path, text, text[:begin] + "\n\n" + table() + "\n\n" + text[end:])]


def types_of_program():
    """The model types that it reads, as its refusal of another one names them."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"model_type": "no such type"}, file)
        done = subprocess.run([TESSERA, "deck", "from-hf", folder], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        named = re.search(r"that a deck can describe; (.*) are", done.stderr)
        if not named:
            sys.exit(f"the program does not say which types it reads:\n{done.stderr}")
        return named[1].split(", ")


def main():
    if sys.argv[1:] == ["--tables"]:
        for path, text, wanted in documents():
            if text != wanted:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(wanted)
        return 0
    if sys.argv[1:] != ["--check"]:
        print(__doc__, file=sys.stderr)
        return 2
    faults = [f"the program reads {kind}, and there is no card of it: make_cards.py {kind}" for kind in types_of_program() if not os.path.exists(card_of(kind))]
    faults += [f"docs/families/{name} is no card of a family of cards.py" for name in os.listdir(CARDS) if name[:-3] not in FAMILIES and name != "README.md"]
    if not faults:
        faults = [f"{os.path.relpath(path, ROOT)} has another table than the cards make: cards.py --tables" for path, text, wanted in documents() if text != wanted]
        for kind in FAMILIES:
            figures, _ = figures_of(kind)
            faults += [f"the card of {kind} says {name}: {value}" for name, value in figures.items() if value.startswith("no")]
    for fault in faults:
        print(f"FAIL {fault}")
    print(f"{len(FAMILIES)} families")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
