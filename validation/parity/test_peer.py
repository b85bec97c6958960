#!/usr/bin/env python3
"""Tests of this folder's scripts: exports that transformers itself writes must pass, and damaged ones must be named.

Exit status 77: torch, transformers, safetensors or h5py is not installed.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import unittest

try:
    import h5py
    import numpy as np
    import safetensors.numpy
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

import check_checkpoint
import check_export
from exports import bf16_bits, read_export
from models import SHAPES, make_model, model_keys, our_parameters
from names import fused_table, tensor_table

FOLDER = os.path.dirname(os.path.abspath(__file__))
transformers.utils.logging.disable_progress_bar()


def fixture(name):
    return os.path.join(FOLDER, "fixtures", f"{name}.h5")


def export(name, out, **options):
    """What transformers writes for the initial weights of a fixture."""
    keys = model_keys(name)
    model = make_model(keys)
    with h5py.File(fixture(name)) as file, torch.no_grad():
        for tensor, parameter in our_parameters(model, keys).items():
            parameter.copy_(torch.from_numpy(file["weights"][tensor][()]))
    model.to(options.pop("dtype", torch.float32)).save_pretrained(out, **options)


def write_checkpoint(name, folder, shards=3):
    """A checkpoint as Tessera lays it out: one flat unit over the shards, a virtual dataset a tensor, in rows that cross the cuts."""
    table = tensor_table(model_keys(name))
    with h5py.File(fixture(name)) as file:
        values = {tensor: file["weights"][tensor][()] for tensor, _, _ in table}
    flat = np.concatenate([v.ravel() for v in values.values()])
    size = -(-flat.size // shards)
    for rank in range(shards):
        with h5py.File(os.path.join(folder, f"shard-{rank:05d}.h5"), "w") as file:
            file["master/unit"] = flat[rank * size:(rank + 1) * size]
    with h5py.File(os.path.join(folder, "checkpoint.h5"), "w") as file:
        begin = 0
        for tensor, value in values.items():
            rows = value.reshape(-1, value.shape[-1])
            layout = h5py.VirtualLayout(rows.shape if value.ndim > 1 else value.shape, "<f4")
            for row in range(rows.shape[0]):
                at, end = begin + row * rows.shape[1], begin + (row + 1) * rows.shape[1]
                while at < end:
                    rank = at // size
                    stop = min(end, (rank + 1) * size)
                    elements = min(size, flat.size - rank * size)
                    source = h5py.VirtualSource(f"shard-{rank:05d}.h5", "master/unit", (elements,))[at - rank * size:stop - rank * size]
                    columns = slice(at - begin - row * rows.shape[1], stop - begin - row * rows.shape[1])
                    if value.ndim > 1:
                        layout[row, columns] = source
                    else:
                        layout[columns] = source
                    at = stop
            file.create_virtual_dataset(f"master/{tensor}", layout)
            begin += value.size


def run(script, *arguments):
    """(exit status, all that was printed) of a script's main."""
    text, before = io.StringIO(), sys.argv
    sys.argv = [script.__name__, *arguments]
    try:
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            status = script.main()
    except SystemExit as stop:
        status = stop.code
    finally:
        sys.argv = before
    return status, text.getvalue()


class Folder(unittest.TestCase):
    def setUp(self):
        self.out = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.out)

    def rewrite(self, change):
        path = os.path.join(self.out, "model.safetensors")
        tensors = safetensors.numpy.load_file(path)
        change(tensors)
        safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


class CheckExport(Folder):
    def test_every_shape_agrees(self):
        for name in SHAPES:
            export(name, self.out)
            status, text = run(check_export, self.out, fixture(name))
            self.assertEqual(status, 0, text)

    def test_split_files_agree(self):
        export("gqa4", self.out, max_shard_size="30KB")
        self.assertTrue(os.path.exists(os.path.join(self.out, "model.safetensors.index.json")))
        self.assertEqual(run(check_export, self.out, fixture("gqa4"))[0], 0)

    def test_changed_weight_is_found(self):
        export("tied", self.out)
        self.rewrite(lambda t: t["model.layers.1.mlp.down_proj.weight"].__imul__(1.001))
        status, text = run(check_export, self.out, fixture("tied"))
        self.assertEqual(status, 1)
        self.assertIn("logits differ", text)

    def test_missing_and_unknown_tensors_are_named(self):
        export("tied", self.out)
        self.rewrite(lambda t: t.update({"model.layers.1.mlp.typo": t.pop("model.layers.1.mlp.down_proj.weight")}))
        status, text = run(check_export, self.out, fixture("tied"))
        self.assertEqual(status, 1)
        self.assertIn("model.layers.1.mlp.down_proj.weight", text)

    def test_truncated_file_is_named(self):
        export("tied", self.out)
        path = os.path.join(self.out, "model.safetensors")
        os.truncate(path, os.path.getsize(path) - 4)
        status, text = run(check_export, self.out, fixture("tied"))
        self.assertEqual(status, 1)
        self.assertIn("does not fit its bytes", text)

    def test_wrong_rope_is_found(self):
        export("rope_llama3", self.out)
        path = os.path.join(self.out, "config.json")
        with open(path) as file:
            config = json.load(file)
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
        with open(path, "w") as file:
            json.dump(config, file)
        self.assertEqual(run(check_export, self.out, fixture("rope_llama3"))[0], 1)

    def test_config_of_older_transformers_agrees(self):
        """rope_theta and rope_scaling at the top, as before transformers 5."""
        for name in ("rope_llama3", "qk_norm"):
            export(name, self.out)
            path = os.path.join(self.out, "config.json")
            with open(path) as file:
                config = json.load(file)
            rope = config.pop("rope_parameters")
            config["rope_theta"] = rope.pop("rope_theta")
            config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
            with open(path, "w") as file:
                json.dump(config, file)
            status, text = run(check_export, self.out, fixture(name))
            self.assertEqual(status, 0, text)


class CheckCheckpoint(Folder):
    def setUp(self):
        super().setUp()
        self.step = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.step)

    def check(self):
        return run(check_checkpoint, self.step, self.out)

    def test_equal(self):
        for name in SHAPES:
            export(name, self.out)
            write_checkpoint(name, self.step)
            status, text = self.check()
            self.assertEqual(status, 0, text)
            self.assertIn("3 shard files equal", text)

    def test_equal_in_bf16(self):
        export("qkv_bias", self.out, dtype=torch.bfloat16)
        write_checkpoint("qkv_bias", self.step)
        self.assertEqual({row[1] for row in read_export(self.out).values()}, {"BF16"})
        status, text = self.check()
        self.assertEqual(status, 0, text)

    def test_one_bit_is_named(self):
        export("tied", self.out)
        write_checkpoint("tied", self.step)

        def flip(tensors):
            tensors["model.layers.1.self_attn.k_proj.weight"].view(np.uint32)[3, 5] ^= 1

        self.rewrite(flip)
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("/master/layers.1.attention.wk: 1 of 1024 values differ, the first at [3, 5]", text)

    def test_missing_shard_is_named(self):
        export("tied", self.out)
        write_checkpoint("tied", self.step)
        os.remove(os.path.join(self.step, "shard-00001.h5"))
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("is mapped onto shard-00001.h5, missing", text)

    def test_other_model_is_named(self):
        export("untied", self.out)
        write_checkpoint("tied", self.step)
        status, text = self.check()
        self.assertEqual(status, 1)
        self.assertIn("/master/head.weight is missing", text)
        self.assertIn("/master/layers.0.mlp.w_up is (64, 32), its natural shape is (48, 32)", text)

    def test_rounding_is_torch_s(self):
        values = np.random.default_rng(1).standard_normal(10000).astype(np.float32)
        want = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        self.assertTrue(np.array_equal(bf16_bits(values), want))


class StoredLists(unittest.TestCase):
    def test_lists_are_the_table(self):
        lists = [f[:-4] for f in os.listdir(os.path.join(FOLDER, "exports")) if f.endswith(".txt")]
        self.assertGreaterEqual(len(lists), 2)
        for name in lists:
            want = sorted(f"{hf} F32 {'x'.join(map(str, shape))}".rstrip() for hf, shape in fused_table(model_keys(name)))
            with open(os.path.join(FOLDER, "exports", f"{name}.txt")) as file:
                self.assertEqual(file.read().splitlines(), want)


if __name__ == "__main__":
    unittest.main()
