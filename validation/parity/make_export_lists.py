#!/usr/bin/env python3
"""Writes exports/NAME.txt and exports/NAME.json: what save_pretrained of transformers writes for some models of models.py.

NAME.txt has one line a tensor, sorted by name: name, dtype as safetensors spells it, shape as 32x8. NAME.json is config.json.
CI compares Tessera's export of the same model with the list, without torch.
"""

import os
import shutil
import sys
import tempfile

from exports import read_export
from models import make_model, model_keys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exports")
NAMES = ("tied", "gqa4", "rope_llama3", "qk_norm", "qkv_bias", "mixtral", "qwen_moe", "gemma2", "gemma3", "olmo3", "granite", "granitemoe", "gpt_oss", "starcoder2", "apertus", "gpt2", "cohere2", "glm4_moe", "granitemoeshared", "granite4", "granite4_dense", "qwen_sparse", "dots1", "minimax_m2")  # gqa4 and rope_llama3 have their own head


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for name in NAMES:
        with tempfile.TemporaryDirectory() as out:
            make_model(model_keys(name)).save_pretrained(out)
            lines = [f"{tensor} {dtype} {'x'.join(map(str, shape))}".rstrip() for tensor, (_, dtype, shape, _, _) in sorted(read_export(out).items())]
            with open(os.path.join(FOLDER, f"{name}.txt"), "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
            shutil.copyfile(os.path.join(out, "config.json"), os.path.join(FOLDER, f"{name}.json"))
        print(f"{name}: {len(lines)} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
