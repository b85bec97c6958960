#!/usr/bin/env python3
"""Documents of a sequence that are kept apart, cut out of the stream or put into sequences whole: the same bits on any layout and across resumes, as many
targets as the documents have, and losses that do not depend on which documents share a sequence.
    documents.py [--device host|cuda]"""
import argparse
import json
import os
import random
import sys

import runs
from drawn import third

check = runs.Checks()
MODEL = {"model__vocab": 257, "model__heads": 4, "model__kv_heads": 4, "model__layers": 4, "batch__global": 10, "batch__micro": 1, "batch__sequence_length": 48,
         "run__steps": 6, "run__log_every": 1, "checkpoint__every": 3, "checkpoint__keep": 0, "evaluate__every": 6, "evaluate__batches": 3,
         "data__document_mask": True}
PACKED = {"data__packing": "documents", "data__too_long": "split"}
LEARNED = {"model__positions": "none", "model__learned_positions": 48}
PIPELINE = {"mesh__pp": 2, "run__lanes": "threads"}
LAYOUTS = {
    "host": [(2, {"zero__stage": 1}), (3, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (4, {**PIPELINE, "zero__stage": 2}),
             (2, {**PIPELINE, "pipeline__schedule": "zero_bubble"}), (2, {**PIPELINE, "pipeline__schedule": "interleaved", "pipeline__virtual_stages": 2}),
             (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), (1, {"activation__recompute": "full", "activation__every": 2})],
    "cuda": [(2, {"zero__stage": 3, "zero__param_persistence_threshold": 0})],
}
RING = {"mesh__cp": 2, "context__method": "ring"}
NEAR = {"host": [(2, {"mesh__tp": 2}), (2, {"mesh__cp": 2}), (2, RING), (4, {**RING, "mesh__tp": 2, "zero__stage": 3})], "cuda": [(2, {"mesh__tp": 2})]}


def tokenize(folder, name, texts):
    path = os.path.join(folder.path, name + ".jsonl")
    with open(path, "w") as out:
        out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    done = runs.tessera("tokenize", path, os.path.join(folder.path, name))
    check(f"{name} is tokenized", done.returncode == 0, done.stderr)
    return os.path.join(folder.path, name, "train.h5")


def rows(folder, name, key):
    return {row["step"]: row[key] for row in folder.metrics(name) if key in row}


def evaluate(checkpoint, data, device):
    done = runs.tessera("evaluate", checkpoint, "--data", data, "--device", device, "--json")
    check(f"{os.path.basename(os.path.dirname(data))} is evaluated", done.returncode == 0, done.stderr)
    return json.loads(done.stdout)


def check_layouts(folder, kind, common, device):
    """The bits of one rank on all layouts and across a resume; near them where sums have another order."""
    exact = {**common, "run__reproducible": True}
    folder.train(kind, 1, **exact)
    steps = common["run__steps"]
    wanted = {key: rows(folder, kind, key) for key in ("targets", "document_squares", "val_loss")}
    tokens = common["batch__global"] * common["batch__sequence_length"]
    check(f"{kind}: each step counts its targets", len(wanted["targets"]) == steps and all(0 < n < tokens for n in wanted["targets"].values()), str(wanted))

    def same(name, ranks, after=0, **keys):
        folder.train(name, ranks, **{**exact, **keys})
        later = lambda values: {step: value for step, value in values.items() if step > after}
        check(f"{name}: the bits of one rank", folder.losses(name) == later(folder.losses(kind)) and folder.hashes(name) == folder.hashes(kind)
              and all(rows(folder, name, key) == later(values) for key, values in wanted.items()), f"{folder.losses(name)} instead of {folder.losses(kind)}")

    for ranks, keys in third(LAYOUTS[device], device == "cuda"):
        same("-".join([kind, f"ranks{ranks}"] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()]), ranks, **keys)
    middle = common["checkpoint__every"]
    same(f"{kind}-resumed", 2, middle, run__resume=folder.run(kind) + f"/checkpoints/step-{middle:08d}", zero__stage=2)
    fast = {**common, "precision__compute": "fp32"}
    folder.train(f"{kind}-fast", 1, **fast)
    for ranks, keys in NEAR[device]:
        name = "-".join([f"{kind}-fast"] + [f"{key.split('__')[-1]}={value}" for key, value in keys.items()])
        folder.train(name, ranks, **{**fast, **keys})
        pairs = [(folder.losses(name)[step][0], loss[0]) for step, loss in folder.losses(f"{kind}-fast").items()]
        check(f"{name}: near one rank", all(abs(a / b - 1) < (1e-5 if device == "host" else 1e-4) for a, b in pairs)
              and all(rows(folder, name, key) == rows(folder, f"{kind}-fast", key) for key in ("targets", "document_squares")), str(pairs))


def check_squares(folder, texts, common):
    """A step that takes every sequence of the file once counts pairs of tokens of one document, as the texts say them."""
    T = common["batch__sequence_length"]
    starts = []  # of each token the one that its document begins with; all texts but the last are ended by a separator
    for i, text in enumerate(texts):
        starts += [len(starts)] * (len(text) + (i + 1 < len(texts)))
    samples = (len(starts) - 1) // T
    squares = sum(2 * (i - max(starts[i], i // T * T)) + 1 for i in range(samples * T))
    for ranks in 1, 3:
        folder.train(f"whole{ranks}", ranks, **{**common, "batch__global": samples, "run__steps": 1, "learning_rate__warmup_steps": 0, "checkpoint__every": 0, "evaluate__every": 0})
        check(f"squares of documents are counted on {ranks} ranks", rows(folder, f"whole{ranks}", "document_squares") == {1: squares}, f"not {squares}")
    folder.train("unmasked", 1, **{**common, "data__document_mask": False, "run__steps": 1, "learning_rate__warmup_steps": 0, "checkpoint__every": 0, "evaluate__every": 0})
    check("without a mask there are none", not rows(folder, "unmasked", "document_squares"))


EXPERTS = {"model__experts": 4, "model__experts_per_token": 2, "model__router_aux_loss": 1.0, "model__router_z_loss": 0.1}


def check_routers(folder, common, device):
    """Padding counts in no router: the same documents have the same numbers in longer sequences, whatever ranks share them."""
    draw = random.Random(5)
    data = tokenize(folder, "lonely", ["".join(draw.choice("abcdefgh ") for _ in range(39)) for _ in range(4)])
    keys = {**common, **PACKED, **EXPERTS, "data__train": data, "batch__global": 4, "run__steps": 3, "checkpoint__every": 0, "evaluate__every": 0,
            "learning_rate__warmup_steps": 0, "precision__compute": "fp32"}
    figures = ("loss", "grad_norm", "router_balance", "router_z", "dropped", "most_loaded")
    near = lambda a, b: abs(a - b) <= (2e-5 if device == "host" else 2e-4) * max(abs(a), abs(b))

    def same(name, one, ranks, **other):
        folder.train(name, ranks, **{**keys, **other})
        for figure in figures:
            a, b = rows(folder, one, figure), rows(folder, name, figure)
            check(f"{name}: {figure} without padding", len(a) == 3 and a.keys() == b.keys() and all(near(a[step], b[step]) for step in a), f"{b} instead of {a}")

        tokens = [{step: round(rate * rows(folder, run, "seconds")[step]) for step, rate in rows(folder, run, "tokens_per_second").items()} for run in (one, name)]
        check(f"{name}: tokens without padding", tokens == [rows(folder, run, "targets") for run in (one, name)] and tokens[0] == tokens[1], str(tokens))

    for kind, extra in ("dropless", {}), ("capacity", {"experts__capacity_factor": 1.0}):
        one = f"routers-{kind}"
        folder.train(one, 1, **{**keys, **extra, "batch__sequence_length": 40, "batch__micro": 2})
        same(one + "-long", one, 1, **extra, batch__sequence_length=72, batch__micro=2)
        # With ranks that share a sequence each gives its part of the tokens room for itself.
        layouts = [{"mesh__ep": 2}, {"mesh__pp": 2}] + ([] if extra else [{"mesh__tp": 2}, {"mesh__cp": 2}, RING])
        for layout in third(layouts, device == "cuda"):
            same("-".join([one] + [f"{key.split('__')[-1]}={value}" for key, value in layout.items()]), one, 2, **extra, **layout, batch__sequence_length=72,
                 batch__micro=2)


def check_scales(folder, common, device):
    """Padding has no number that documents have not, and so makes no scale of fp8: in longer sequences the losses are the same."""
    draw = random.Random(7)
    texts = ["".join(draw.choice("abcdefgh ") for _ in range(40 + (i == 7))) for i in range(8)]  # each a sequence of 40
    data = tokenize(folder, "scaled", texts)
    keys = {**common, **PACKED, "data__train": data, "model__width": 32, "model__ff_width": 64, "model__vocab": 272, "batch__global": 4,
            "batch__micro": 2, "run__steps": 3, "checkpoint__every": 0, "evaluate__every": 0,
            "learning_rate__warmup_steps": 0, "optimizer__learning_rate": 0.02, "precision__compute": "bf16"}
    for recipe in "tensorwise", "tensorwise_delayed", "rowwise":
        losses = []
        for length in 40, 72:
            folder.train(f"{recipe}-{length}", 1, **{**keys, "precision__fp8": recipe, "batch__sequence_length": length})
            losses.append(rows(folder, f"{recipe}-{length}", "loss"))
        same = len(losses[0]) == 3 and all(abs(losses[1][step] / loss - 1) < 1e-6 for step, loss in losses[0].items())
        check(f"{recipe}: losses without padding", same, str(losses))


def check_rotations(folder, common, device):
    """Rotations that depend on the length take that of the longest document, not of what it is packed into."""
    draw = random.Random(9)
    text = lambda n: "".join(draw.choice("abcdefgh ") for _ in range(n))
    data = {name: tokenize(folder, name, [text(n) for n in lengths]) for name, lengths in (("brief", (39,) * 4), ("mixed", (39, 60, 39, 39)))}
    pairs = 4 if device == "host" else 8  # of a head's features
    scaled = {"dynamic": {"model__rope_scaling": "dynamic", "model__rope_factor": 4.0},
              "longrope": {"model__rope_scaling": "longrope", "model__rope_short_factors": [1 + i / pairs for i in range(pairs)],
                           "model__rope_long_factors": [1 + 40 * i / pairs for i in range(pairs)]}}
    keys = {**common, **PACKED, "batch__global": 4, "run__steps": 2, "checkpoint__every": 0, "evaluate__every": 2, "evaluate__batches": 4, "learning_rate__warmup_steps": 0,
            "precision__compute": "fp32", "model__rope_original_context": 50, "optimizer__learning_rate": 0.1}
    near = lambda a, b: a.keys() == b.keys() and all(abs(x - y) < (1e-5 if device == "host" else 1e-4) * abs(x) for x, y in ((a[step], b[step]) for step in a))
    for kind, scaling in scaled.items():
        def train(name, ranks=1, of="brief", **other):
            folder.train(f"{kind}-{name}", ranks, **{**keys, **scaling, "data__train": data[of], "data__validation": data[of], **other})
            return rows(folder, f"{kind}-{name}", "loss") | rows(folder, f"{kind}-{name}", "val_loss")

        brief = train("brief", batch__sequence_length=40)
        check(f"{kind}: documents below the context, packed beyond it", near(train("packed", batch__sequence_length=72), brief))
        for ranks, layout in third([(2, {"zero__stage": 3}), (2, {"mesh__tp": 2}), (2, {"mesh__cp": 2}), (2, RING), (2, {"mesh__pp": 2})], device == "cuda"):
            name = "-".join(f"{key.split('__')[-1]}={value}" for key, value in layout.items())
            check(f"{kind}: the same with {name}", near(train(name, ranks, batch__sequence_length=72, **layout), brief))
        mixed = train("mixed", of="mixed", batch__sequence_length=64)
        check(f"{kind}: a longer one turns its batch", near(train("mixed-packed", of="mixed", batch__sequence_length=76), mixed))
        short = train("mixed-short", of="mixed", batch__sequence_length=64, model__rope_original_context=96)
        check(f"{kind}: and turns it otherwise than one within the context", mixed[2] != short[2], str(mixed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    draw = random.Random(11)
    text = lambda longest: "".join(draw.choice("abcdefgh ") for _ in range(draw.randrange(1, longest)))
    texts = [text(90 if i % 9 == 0 else 30) for i in range(500 if device == "host" else 60)]
    with runs.Folder() as folder:
        data = tokenize(folder, "texts", texts)
        common = {**MODEL, "data__train": data, "data__validation": data}
        if device == "cuda":
            common.update(runs.ON_GPUS, model__kv_heads=2, model__layers=2, run__steps=3, checkpoint__every=2, evaluate__every=3)
        check_layouts(folder, "masked", common, device)
        check_squares(folder, texts, common)
        check_routers(folder, common, device)
        check_scales(folder, common, device)
        check_rotations(folder, common, device)
        check_layouts(folder, "packed", {**common, **PACKED, **LEARNED}, device)
        # Whoever shares a sequence with a document, it has the targets and the loss that it has. The last one is ended by no separator.
        model = folder.latest("packed-fast")
        other = tokenize(folder, "shuffled", draw.sample(texts[:-1], len(texts) - 1) + texts[-1:])
        one, two = evaluate(model, data, device), evaluate(model, other, device)
        check("as many targets as documents have", one["targets"] == two["targets"] == sum(map(len, texts)) - 1, f"{one} {two}")
        check("losses of documents do not depend on their neighbours", abs(one["loss"] / two["loss"] - 1) < (2e-6 if device == "host" else 1e-4), f"{one} {two}")
        done = folder.train("padding", 1, **{**common, **PACKED, "run__steps": 3})
        check("what is padding is said", "% of them padding" in done.stderr + done.stdout, done.stderr)
        done = folder.train("refused", 1, expect=3, **{**common, **PACKED, "data__too_long": "refuse"})
        check("a document that is too long is named", "train.h5: document " in done.stderr and "data.too_long" in done.stderr, done.stderr)
        done = folder.train("no-documents", 1, expect=3, **{**common, "data__train": folder.data})
        check("a file without documents is refused", "train.bin does not store where its documents begin" in done.stderr, done.stderr)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
