#!/usr/bin/env python3
"""Models of transformers, fine-tuned on prompts and completions here and by a loop of PyTorch: ten steps of AdamW (of OPTIMIZERS another) on the mean
loss over the tokens of completions, from the same weights. Where documents are kept apart, in sequences cut out of the file's tokens, packed, or packed of two files, the loop
takes them one by one.

    TESSERA=build/host/tessera check_finetuning.py [NAME ...]

Each step takes all sequences of the files, so no order of them matters. Losses, gradient norms and the weights after the last step must agree.
Without a NAME a third of the models, others at each commit; with TESSERA_TEST_FULL=1 all.
Exit status: 0 all agree, 1 not, 77 when torch, transformers or h5py is not installed.
"""

import json
import os
import random
import re
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program", "resume"))
import drawn  # noqa: E402
from exports import fail, read_export, read_tensor
from models import DEFAULTS, make_model, model_keys
from onebit import OnebitAdam

TESSERA = os.environ.get("TESSERA", "build/host/tessera")
MPIEXEC = os.environ.get("MPIEXEC", "mpiexec")
TOLERANCE, TOLERANCE_OF_OPTIMIZERS = 1e-4, 1e-5  # the second where the optimizer is what is compared
TOLERANCE_OF_MATRICES = 1e-3  # of Muon, whose matrices are bf16: sums in another order round to other neighbours
# Of a model: what model.freeze says, and how the names of the same tensors begin in transformers.
FROZEN = {"llama-frozen": (["embedding.*", "layers.0.*", "layers.1.attention.w?", "head.norm"],
                           ("model.embed_tokens.", "model.layers.0.", "model.layers.1.self_attn.", "model.norm."))}
# Of a model: groups of the optimizer, by patterns of our names and by how theirs end.
GROUPS = {"llama-groups": [(["*mlp.w_up", "*mlp.w_gate"], ("up_proj.weight", "gate_proj.weight"), 3e-3, 0.0), (["*norm"], ("norm.weight",), 2e-3, 0.5)]}
LENGTH, STEPS = 48, 10
RATE, BETAS, EPS, DECAY, CLIPPING = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
# Of a model: the optimizer of both, where it is not AdamW.
OPTIMIZERS = {
    "llama-adam": (lambda rows: torch.optim.Adam(rows, lr=RATE, betas=BETAS, eps=EPS), ["optimizer.type=adam"]),
    "llama-lion": (lambda rows: Lion(rows, lr=RATE, betas=(0.9, 0.99)), ["optimizer.type=lion", "optimizer.beta2=0.99"]),
    "llama-lamb": (lambda rows: Lamb(rows, lr=RATE, betas=BETAS, eps=EPS), ["optimizer.type=lamb", "optimizer.beta2=0.95"]),
    "llama-adafactor": (lambda rows: transformers.optimization.Adafactor(rows, lr=1e-4, scale_parameter=False, relative_step=False),
                        ["optimizer.type=adafactor", "optimizer.learning_rate=1e-4"]),
    "llama-muon": (lambda rows: Muon(rows, QUINTIC, match_rms_adamw), ["optimizer.type=muon"]),
    "llama-muon-jordan": (lambda rows: Muon(rows, [(3.4445, -4.7750, 2.0315)] * 5, original), ["optimizer.type=muon", "optimizer.newton_schulz=simple", "optimizer.muon_scale=original"]),
    "llama-muon-polar": (lambda rows: Muon(rows, POLAR_EXPRESS, original, 1.01, 1e-6), ["optimizer.type=muon", "optimizer.newton_schulz=polar_express", "optimizer.muon_scale=original"]),
    # On two ranks, for gradients stay with them; of tensors whose parts are DeepSpeed's. A sign over a mean of squares near 0, as after so short a warmup, would be rounding:
    # hence eps.
    "llama-onebit": (lambda rows: OnebitAdam(rows, lr=RATE, betas=BETAS, eps=1e-2, freeze_step=4, ranks=2),
                     ["optimizer.type=onebit_adam", "optimizer.freeze_step=4", "optimizer.eps=1e-2"]),
    "llama-sgd": (lambda rows: torch.optim.SGD(rows, lr=0.1), ["optimizer.type=sgd", "optimizer.learning_rate=0.1"]),
    "llama-momentum": (lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9), ["optimizer.type=sgd", "optimizer.learning_rate=0.1", "optimizer.momentum=0.9"]),
    "llama-nesterov": (lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9, nesterov=True), ["optimizer.type=sgd", "optimizer.learning_rate=0.1", "optimizer.momentum=0.9", "optimizer.nesterov=true"]),
}
BYTES = {"vocab": 257}
PACKED = ((1, []), (3, ["zero.stage=3", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"]), (2, ["mesh.cp=2", "zero.stage=2"]))
# What becomes of the documents of a model's data; of the others whole sequences.
DOCUMENTS = {"llama-masked": "masked", "llama-packed": "packed", "qwen3-packed": "packed", "llama-mixture": "mixture", "gpt2-packed": "packed", "mixtral-packed": "packed"}
# name: (keys of models.py, launches: ranks and keys)
MODELS = {
    "llama": ({**DEFAULTS, **BYTES}, ((1, []), (3, ["zero.stage=3", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"]))),
    "smollm": ({**model_keys("gqa4"), **BYTES, "tied": True}, ((2, ["mesh.pp=2", "zero.stage=1"]),)),
    "qwen2": ({**model_keys("qkv_bias"), **BYTES}, ((2, ["mesh.cp=2", "zero.stage=2"]),)),
    "llama-frozen": ({**DEFAULTS, **BYTES}, ((1, []), (2, ["zero.stage=3", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"]))),
    "llama-groups": ({**DEFAULTS, **BYTES}, ((1, []), (2, ["zero.stage=3", "mesh.tp=1"]), (2, ["zero.stage=2", "zero.offload_optimizer.device=host"]))),
    **{name: ({**DEFAULTS, **BYTES}, ((1, []), (2, ["zero.stage=3", "zero.offload_optimizer.device=host", "zero.param_persistence_threshold=0"]))) for name in OPTIMIZERS},
    **{name: ({**DEFAULTS, **BYTES}, ((1, []), (2, ["zero.stage=3", "zero.offload_optimizer.device=host", "zero.param_persistence_threshold=0"]), (2, ["mesh.tp=2", "zero.stage=1"])))
       for name in ("llama-lamb", "llama-adafactor")},
    "llama-onebit": ({**DEFAULTS, **BYTES, "width": 64, "layers": 1}, ((2, ["batch.micro=1"]),)),
    "mixtral": ({**model_keys("mixtral"), **BYTES}, ((2, ["mesh.ep=2", "zero.stage=1", "model.router_aux_loss=0", "model.router_z_loss=0"]),)),
    "llama-masked": ({**DEFAULTS, **BYTES}, PACKED),
    "llama-packed": ({**DEFAULTS, **BYTES}, PACKED),
    "qwen3-packed": ({**model_keys("qk_norm"), **BYTES}, ((2, ["mesh.pp=2", "zero.stage=1"]),)),
    "llama-mixture": ({**DEFAULTS, **BYTES}, PACKED[:2]),
    "gpt2-packed": ({**model_keys("gpt2"), **BYTES, "learned_positions": 50}, (*PACKED, (2, ["mesh.pp=2", "zero.stage=1"]))),
    "mixtral-packed": ({**model_keys("mixtral"), **BYTES}, ((2, ["mesh.ep=2", "zero.stage=1", "model.router_aux_loss=0", "model.router_z_loss=0"]),)),
}


class Lion(torch.optim.Optimizer):
    """As its paper writes it (arXiv:2302.06675)."""

    def __init__(self, params, lr, betas, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Lamb(torch.optim.Optimizer):
    """As DeepSpeed 0.19.6's FusedLamb computes it in its CUDA kernel."""

    def __init__(self, params, lr, betas, eps, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"].mul_(b1).add_(p.grad, alpha=1 - b1)
                state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                update = state["m"] / (state["v"].sqrt() + group["eps"]) + group["weight_decay"] * p
                weight_norm, update_norm = p.norm().item(), update.norm().item()
                ratio = min(max(weight_norm / update_norm, 0.01), 10.0) if weight_norm > 0 and update_norm > 0 else 1.0
                p.sub_(update, alpha=ratio * group["lr"] * (1 - b2 ** state["t"]) ** 0.5 / (1 - b1 ** state["t"]))


QUINTIC = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]
POLAR_EXPRESS = [(8.15655, -22.48329, 15.87877), (4.04293, -2.80892, 0.50002), (3.89167, -2.77248, 0.50606), (3.28575, -2.36813, 0.46449), (2.34654, -1.70978, 0.42324)]


def match_rms_adamw(rows, columns):
    """Moonlight's (arXiv:2502.16982), and torch.optim.Muon's of this name."""
    return 0.2 * max(rows, columns) ** 0.5


def original(rows, columns):
    """Jordan's, and torch.optim.Muon's of this name."""
    return max(1.0, rows / columns) ** 0.5


class Muon(torch.optim.Optimizer):
    """Jordan's loop for hidden matrices, AdamW for the rest. Matrices are bf16, and products fp32 with their addends, rounded once: PyTorch's own in bf16 round a product
    and a sum apart on this processor."""

    def __init__(self, params, steps, scale, stretch=1.0, least=1e-7, momentum=0.95):
        super().__init__(params, {"lr": RATE, "weight_decay": 0.0})
        self.steps, self.scale, self.stretch, self.least, self.momentum = steps, scale, stretch, least, momentum
        hidden = lambda p: p.dim() == 2 and BYTES["vocab"] not in p.shape
        rest = [{**group, "params": [p for p in group["params"] if not hidden(p)]} for group in self.param_groups]
        self.rest = torch.optim.AdamW(rest, lr=RATE, betas=BETAS, eps=EPS)
        for group in self.param_groups:
            group["params"] = [p for p in group["params"] if hidden(p)]

    def zero_grad(self):
        super().zero_grad()
        self.rest.zero_grad()

    def orthogonal(self, update):
        rounded = lambda x: x.bfloat16().float()
        x = rounded(update)
        x = rounded(x / (x.norm() * self.stretch + self.least))
        x = x.T if x.shape[0] > x.shape[1] else x
        for a, b, c in self.steps:
            gram = rounded(x @ x.T)
            x = rounded(a * x + rounded(b * gram + c * gram @ gram) @ x)
        return x.T if update.shape[0] > update.shape[1] else x

    @torch.no_grad()
    def step(self):
        self.rest.step()
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - self.momentum)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(self.orthogonal(p.grad.lerp(m, self.momentum)), alpha=group["lr"] * self.scale(*p.shape))


def run(command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if done.returncode:
        fail(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def tokenize(work, name, lines):
    """A token file; its tokens, whether each counts in the loss, and where documents begin."""
    path = os.path.join(work, name + ".jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    run([TESSERA, "tokenize", path, os.path.join(work, name)])
    data = os.path.join(work, name, "train.h5")
    with h5py.File(data) as file:
        tokens = file["tokens"][:].astype(np.int64)
        counts = np.unpackbits(file["loss_mask"][:], bitorder="little")[:tokens.size].astype(bool) if "loss_mask" in file else np.ones(tokens.size, bool)
        return data, tokens, counts, file["documents"][:].tolist()


def texts_of(tokens, counts, spans):
    """Of each span of inputs: they, and the tokens one further on as targets, -100 where they do not count."""
    targets = np.where(counts, tokens, -100)
    return [(torch.from_numpy(tokens[None, begin:end]), torch.from_numpy(targets[None, begin + 1:end + 1])) for begin, end in spans if begin < end]


def make_data(work, kind):
    """Token files, the keys that say how they become sequences, and what PyTorch takes one by one: whole sequences, or documents that know of no others."""
    draw = random.Random(5)
    word = lambda least, most: "".join(draw.choice("abcdefgh ") for _ in range(draw.randrange(least, most)))
    files = [tokenize(work, "pairs", [{"prompt": word(4, 30) + "?", "completion": word(2, 20)} for _ in range(24)])]
    data, tokens, counts, documents = files[0]
    end = (tokens.size - 1) // LENGTH * LENGTH
    sequences = range(0, end + 1, LENGTH)
    if kind == "rows":
        return [data], [], texts_of(tokens, counts, zip(sequences, sequences[1:]))
    if kind == "masked":
        # Sequences and documents cut the stream; what a document ends with has no target.
        cuts = sorted({*sequences, *(at for at in documents if at < end)})
        return [data], ["data.document_mask=true"], texts_of(tokens, counts, [(a, b - (b in documents)) for a, b in zip(cuts, cuts[1:])])
    if kind == "mixture":
        files.append(tokenize(work, "texts", [{"text": word(1, 100)} for _ in range(10)]))
    texts = []
    for _, tokens, counts, documents in files:
        for begin, end in zip(documents, [*documents[1:], tokens.size]):
            texts += texts_of(tokens, counts, [(at, min(at + LENGTH, end - 1)) for at in range(begin, end - 1, LENGTH)])
    return [file[0] for file in files], ["data.document_mask=true", "data.packing=documents", "data.too_long=split"], texts


def adamw(rows):
    return torch.optim.AdamW(rows, lr=RATE, betas=BETAS, eps=EPS)


def of_torch(model, texts, groups, make):
    """Losses and norms of the steps; the model has the weights after them."""
    rows = [{"params": [], "lr": rate, "weight_decay": decay} for _, _, rate, decay in groups] + [{"params": [], "weight_decay": DECAY}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        mine = [row for row, group in zip(rows, groups) if name.endswith(group[1])]
        (mine[0] if mine else rows[-2] if parameter.dim() > 1 else rows[-1])["params"].append(parameter)
    optimizer = make(rows)
    count = sum(int((targets != -100).sum()) for _, targets in texts)
    rows = []
    for _ in range(STEPS):
        losses = []

        def backward(some):
            for inputs, targets in (texts[number] for number in some):
                logits = model(input_ids=inputs, use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum") / count
                loss.backward()
                losses.append(loss.item())

        optimizer.zero_grad()
        if isinstance(optimizer, OnebitAdam):
            norm = optimizer.take(backward, len(texts), CLIPPING)
        else:
            backward(range(len(texts)))
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPING).item()
        optimizer.step()
        rows.append((sum(losses), norm))
    if isinstance(optimizer, OnebitAdam):
        print(f"     the number nearest to 0 whose sign was sent was {optimizer.narrowest:.1e} of its scale")
    return rows


def sequences_of(work, deck, path):
    """How many sequences Tessera makes of a file."""
    done = subprocess.run([TESSERA, "train", deck, f"data.train={path}", "data.weights=[]", "run.steps=1", "batch.global=1", f"run.output_dir={path}.count",
                           "run.overwrite=true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    said = re.search(r" passes over its (\d+)\n", done.stderr)
    if done.returncode or not said:
        fail(f"{path}: status {done.returncode}\n{done.stderr}")
    return int(said[1])


def make_deck(work, folder, files, keys):
    """A deck of which each step takes all sequences of all files, once: as many as their weights say."""
    deck = os.path.join(work, "deck.toml")

    def write(*more):
        with open(deck, "w", encoding="utf-8") as file:
            file.write(run([TESSERA, "deck", "from-hf", folder, f"run.steps={STEPS}", f"optimizer.learning_rate={RATE}", "learning_rate.schedule=constant",
                            f"batch.sequence_length={LENGTH}", f"optimizer.beta2={BETAS[1]}", f"optimizer.weight_decay={DECAY}",
                            f"optimizer.gradient_clipping={CLIPPING}", "precision.compute=fp32", "run.device=host", "zero.stage=0", *keys, *more]))

    write(f"data.train={files[0]}", "batch.global=1")
    counts = [sequences_of(work, deck, path) for path in files]
    write(f"data.train={json.dumps(files)}", f"data.weights={json.dumps(counts)}", f"batch.global={sum(counts)}")
    return deck


def of_tessera(work, deck, ranks, keys):
    """Losses, norms and targets of the steps, and the weights after them as an export."""
    name = os.path.join(work, re.sub("[^a-z0-9_-]", "", "-".join([f"run{ranks}", *keys])))
    train = [TESSERA, "train", deck, f"run.output_dir={name}", *keys]
    run(train if ranks == 1 else [MPIEXEC, "-n", str(ranks), *train])
    with open(os.path.join(name, "metrics.jsonl"), encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    run([TESSERA, "consolidate", os.path.join(name, "checkpoints", "latest"), os.path.join(name, "out")])
    return [(row["loss"], row["grad_norm"], row["targets"]) for row in rows if "loss" in row], read_export(os.path.join(name, "out"))


def check(name, keys, launches, work):
    torch.manual_seed(len(name))
    folder = os.path.join(work, "model")
    made = make_model(keys)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    made.save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
    before = {key: value.detach().clone() for key, value in model.state_dict().items()}
    files, data_keys, texts = make_data(work, DOCUMENTS.get(name, "rows"))
    patterns, prefixes = FROZEN.get(name, ([], ()))
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not key.startswith(tuple(prefixes)))
    groups = GROUPS.get(name, [])
    make, of_optimizer = OPTIMIZERS.get(name, (adamw, []))
    theirs = of_torch(model, texts, groups, make)
    tables = ", ".join(f"{{ tensors = {json.dumps(ours)}, learning_rate = {rate}, weight_decay = {decay} }}" for ours, _, rate, decay in groups)
    after, count, places = model.state_dict(), sum(int((targets != -100).sum()) for _, targets in texts), sum(targets.numel() for _, targets in texts)
    deck = make_deck(work, folder, files, data_keys)
    good = True
    for ranks, more in launches:
        ours, export = of_tessera(work, deck, ranks, [*more, f"model.freeze={json.dumps(patterns)}", f"optimizer.groups=[{tables}]", *of_optimizer])
        loss = max(abs(a[0] - b[0]) / b[0] for a, b in zip(ours, theirs))
        norm = max(abs(a[1] - b[1]) / b[1] for a, b in zip(ours, theirs))
        weights = moved = 0.0
        for tensor, row in export.items():
            # Experts are stacked in transformers, where losses and norms speak for them; a softmax over keys hardly feels a bias of all of them, so its
            # gradient is rounding, which Adam makes a step of.
            if tensor not in after or tensor.endswith("k_proj.bias"):
                continue
            values = torch.from_numpy(read_tensor(row).astype(np.float32).reshape(after[tensor].shape))
            want = after[tensor]
            if tensor.endswith("c_attn.bias"):
                values, want = (torch.cat([t[:len(t) // 3], t[2 * len(t) // 3:]]) for t in (values, want))
            weights = max(weights, (torch.linalg.norm(values - want) / torch.linalg.norm(want)).item())
            if tensor.startswith(tuple(prefixes)) and not torch.equal(values, before[tensor]):
                fail(f"{name} on {ranks}: {tensor} is frozen and moved")
            moved = max(moved, (torch.linalg.norm(before[tensor] - after[tensor]) / torch.linalg.norm(after[tensor])).item())
        most = TOLERANCE_OF_MATRICES if "muon" in name else TOLERANCE_OF_OPTIMIZERS if name in OPTIMIZERS else TOLERANCE
        fine = len(ours) == STEPS and max(loss, norm, weights) < most and moved > TOLERANCE and all(row[2] == count for row in ours)
        good &= fine
        print(f"{'ok  ' if fine else 'FAIL'} {name} on {ranks} {' '.join(more)}: {count} of {places} targets of {len(texts)} texts count; relative differences: loss {loss:.1e}, "
              f"norm {norm:.1e}, weights {weights:.1e} (moved by {moved:.1e})", flush=True)
    return good


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    good = True
    for name in sys.argv[1:] or drawn.third(MODELS):
        with tempfile.TemporaryDirectory() as work:
            good &= check(name, *MODELS[name], work)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
