#!/usr/bin/env python3
"""Computes every fixture a second time: the model written out in fp64 from the deck's keys, without transformers.

    check_reference.py [NAME ...]

Shows how far the stored fp32 numbers are from exact ones (2-norm of the difference over the 2-norm, the worst tensor), so that a test's
tolerance can be judged, and that the fixtures mean what README.md says. Exit status: 0 within the limits, 1 not, 77 without torch or h5py.
"""

import json
import math
import os
import sys

try:
    import h5py
    import numpy as np
    import torch
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")
# Two to five times what was measured: noise of the reference, far under the tolerances that Tessera is held to. "moves" is how far a weight
# went in ten steps: Adam divides by the gradient's size, so where gradients are small (key biases) their noise shows.
LIMITS = {"logits": 2e-6, "loss": 5e-7, "gradients": 1e-5, "losses": 1e-6, "grad_norms": 3e-6, "moves": 2e-3}


def frequencies(a, length, layer):
    """Angle per position of each pair; Llama 3 stretches the long waves and blends the middle ones, as YaRN does by pairs."""
    turned = int(a["head_dim"] * a.get("rotary_fraction", 1.0))
    base = layer["rope_theta"] ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    if layer["rope_scaling"] == "none":
        return base
    if layer["rope_scaling"] == "longrope":
        factors = json.loads(a["rope_long_factors" if length > a["rope_original_context"] else "rope_short_factors"])
        return base / torch.tensor(factors, dtype=torch.float64)
    if layer["rope_scaling"] == "linear":
        return base / a["rope_factor"]
    if layer["rope_scaling"] == "yarn":
        def pair(turns):
            return a["head_dim"] * math.log(a["rope_original_context"] / (turns * 2 * math.pi)) / (2 * math.log(layer["rope_theta"]))
        floor, ceil = (math.floor, math.ceil) if a.get("rope_truncate", True) else (float, float)
        low, high = max(floor(pair(32)), 0), min(ceil(pair(1)), a["head_dim"] - 1)
        kept = 1 - ((torch.arange(a["head_dim"] // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
        return base * (kept + (1 - kept) / a["rope_factor"])
    turns = a["rope_original_context"] * base / (2 * math.pi)  # how often a wave fits into the original context
    low, high = a["rope_low_freq_factor"], a["rope_high_freq_factor"]
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return base * (blend + (1 - blend) / a["rope_factor"])


def layers_of(a):
    """Of each layer, in the words of names.py; texts of attributes are bytes."""
    plain = {"window": 0, "positions": "rope", "rope_theta": a["rope_theta"], "rope_scaling": a["rope_scaling"], "experts": True} | {
        key: a[key] for key in ("window", "positions") if key in a}
    kinds = {kind["name"]: plain | kind for kind in json.loads(a.get("kinds", "[]"))}
    pattern = a.get("pattern", "")
    return [kinds[pattern[n % len(pattern)]] if pattern else plain for n in range(a["layers"])]


def norm(x, weight, a, bias=None):
    if a.get("norm_form", "").startswith("layer_norm"):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + a["norm_eps"]) * weight + (0 if bias is None else bias)
    factor = 1 + weight if a.get("norm_form") == "one_plus_weight" else weight
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + a["norm_eps"]) * factor


def act(x, a):
    kind = a.get("activation", "silu")
    return x * torch.sigmoid(x) if kind == "silu" else torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def activated(x, p, a):
    """Without a gate."""
    if a.get("activation") != "xielu":
        return act(x, a)
    positive, negative = (torch.nn.functional.softplus(p[f"mlp.alpha_{side}"]) for side in "pn")
    return 0.5 * x + torch.where(x > 0, positive * x.square(), (0.5 + negative) * (torch.expm1(x.clamp(max=-1e-6)) - x))


def cap(x, most):
    return most * torch.tanh(x / most) if most else x


def rotate(x, angle, scale, neighbours=False):
    """RoPE on the first 2 n features of (B, T, heads, D), by n angles: dim i pairs with dim i + n, or 2 i with 2 i + 1."""
    turned = 2 * angle.shape[-1]
    if neighbours:
        halves = torch.cat([x[..., :turned:2], x[..., 1:turned:2], x[..., turned:]], -1)
        halves = rotate(halves, angle, scale)
        return torch.cat([halves[..., :turned].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2), halves[..., turned:]], -1)
    first, second = x[..., :turned].chunk(2, -1)
    cos, sin = torch.cos(angle)[:, None] * scale, torch.sin(angle)[:, None] * scale
    return torch.cat([first * cos - second * sin, second * cos + first * sin, x[..., turned:]], -1)


def block(a, x, gate, up, down, b_gate=0, b_up=0, b_down=0):
    gate, up = x @ gate.T + b_gate, x @ up.T + b_up
    if a.get("activation") == "clamped_silu":
        gate, up = gate.clamp(max=a["gate_limit"]), up.clamp(-a["gate_limit"], a["gate_limit"])
        return (gate * torch.sigmoid(1.702 * gate) * (up + 1)) @ down.T + b_down
    return (act(gate, a) * up) @ down.T + b_down


def experts(p, a, y):
    """What a layer's experts make of its normed tokens, and what its router loses. Each expert here takes every token, by a weight that is 0 for most."""
    count, k = a["experts"], a["experts_per_token"]
    logits = y @ p["moe.router"].T + p.get("moe.b_router", 0)
    scores = probabilities = logits.softmax(-1)
    by = logits
    if a.get("router_scores") == "sigmoid":
        scores = logits.sigmoid()
        probabilities = scores / scores.sum(-1, keepdim=True)
        by = (scores.detach() + p["moe.router_bias"]).unflatten(-1, (a.get("expert_groups", 1), -1))
        two = by.sort(-1, descending=True).values[..., :2].sum(-1)
        least = two.sort(-1, descending=True).values[..., a.get("groups_per_token", 1) - 1, None]
        by = torch.where((two >= least)[..., None], by, -math.inf).flatten(-2)
    chosen = torch.zeros_like(logits).scatter(-1, by.topk(k).indices, 1.0)
    weights = scores * chosen
    if a["normalize_top_k"]:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * a.get("router_scale", 1.0)
    parts = [f"{kind}_{m}" for kind in ("wb" if a.get("expert_bias") else "w") for m in ("gate", "up", "down")]
    out = sum(weights[..., e, None] * block(a, y, *(p[f"moe.experts.{e}.{part}"] for part in parts)) for e in range(count))
    if a["shared_ff_width"]:
        gate = torch.sigmoid(y @ p["moe.shared_gate"].T) if a.get("shared_gate", True) else 1
        out = out + gate * block(a, y, *(p[f"moe.shared.w_{m}"] for m in ("gate", "up", "down")))
    balance = count * ((chosen / k).mean((0, 1)) * probabilities.mean((0, 1))).sum()
    return out, a["router_aux_loss"] * balance + a["router_z_loss"] * logits.logsumexp(-1).square().mean()


def attention(p, a, layer, y):
    batch, length, _ = y.shape
    heads, kv_heads, dim = (a[k] for k in ("heads", "kv_heads", "head_dim"))
    q, k, v = (y @ p[f"attention.w{c}"].T + (p[f"attention.b{c}"] if a["qkv_bias"] else 0) for c in "qkv")
    wide = a.get("wide_qk_norm", False)
    qk = {**a, "norm_form": "weight"} if a.get("norm_form", "").startswith("layer_norm") else a  # theirs are RMSNorm
    if wide:
        q, k = norm(q, p["attention.q_norm"], qk), norm(k, p["attention.k_norm"], qk)
    q, k, v = q.view(batch, length, heads, dim), k.view(batch, length, kv_heads, dim), v.view(batch, length, kv_heads, dim)
    if a["qk_norm"] and not wide:
        q, k = norm(q, p["attention.q_norm"], qk), norm(k, p["attention.k_norm"], qk)
    at = torch.arange(length)
    if layer["positions"] == "rope":
        by = math.log(a["rope_factor"])
        scale = {"yarn": 0.1 * by + 1, "longrope": math.sqrt(1 + by / math.log(a["rope_original_context"]))}.get(layer["rope_scaling"], 1)
        angle = at[:, None].double() * frequencies(a, length, layer)
        neighbours = a.get("rope_pairs") == "neighbours"
        q, k = rotate(q, angle, scale, neighbours), rotate(k, angle, scale, neighbours)
    k, v = (t.repeat_interleave(heads // kv_heads, 2) for t in (k, v))
    scores = cap(torch.einsum("bthd,bshd->bhts", q, k) * (a.get("attention_scale") or 1 / math.sqrt(dim)), a.get("attention_softcap", 0))
    unseen = at[None] > at[:, None]
    if layer["window"]:
        unseen |= at[None] <= at[:, None] - layer["window"]
    scores = scores.masked_fill(unseen, -math.inf)
    if a.get("attention_sinks"):  # a logit more, of no value
        scores = torch.cat([scores, p["attention.sinks"][None, :, None, None].expand(batch, -1, length, 1)], -1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("bhts,bshd->bthd", weights, v).reshape(batch, length, heads * dim) @ p["attention.wo"].T + p.get("attention.bo", 0)


def mlp(p, a, y):
    if a.get("gated", True):
        return block(a, y, p["mlp.w_gate"], p["mlp.w_up"], p["mlp.w_down"])
    return activated(y @ p["mlp.w_up"].T + p.get("mlp.b_up", 0), p, a) @ p["mlp.w_down"].T + p.get("mlp.b_down", 0)


def forward(w, a, tokens):
    """Logits, and what routers lose."""
    lost = 0
    a = {key: value.decode() if isinstance(value, bytes) else value for key, value in a.items()}
    scale = a.get("embedding_scale", 1.0)
    x = w["embedding.weight"][tokens] * (math.sqrt(a["width"]) if scale == "sqrt_width" else scale)

    if "embedding.positions" in w:
        x = x + w["embedding.positions"][:tokens.shape[-1]]

    def join(x, p, name, made):
        made = norm(made, p[f"{name}.post_norm"], a) if f"{name}.post_norm" in p else made
        return x + a.get("residual_scale", 1.0) * made

    for n, layer in enumerate(layers_of(a)):
        p = {k.removeprefix(f"layers.{n}."): v for k, v in w.items() if k.startswith(f"layers.{n}.")}
        enter = lambda x, name: norm(x, p[f"{name}.norm"], a, p.get(f"{name}.norm_bias")) if f"{name}.norm" in p else x  # noqa: E731
        if a.get("norm_placement") == "parallel":
            y = enter(x, "attention")
            x = x + attention(p, a, layer, y) + mlp(p, a, y)
            continue
        x = join(x, p, "attention", attention(p, a, layer, enter(x, "attention")))
        if "experts" in a and n >= a.get("dense_layers", 0) and layer["experts"]:
            out, loss = experts(p, a, enter(x, "moe"))
            x, lost = join(x, p, "moe", out), lost + loss
            continue
        x = join(x, p, "mlp", mlp(p, a, enter(x, "mlp")))
    logits = norm(x, w["head.norm"], a, w.get("head.norm_bias")) @ w["embedding.weight" if a["tied"] else "head.weight"].T + w.get("head.bias", 0)
    return cap(logits * a.get("logit_scale", 1.0), a.get("logit_softcap", 0)), lost


def gradients_of(w, a, tokens, targets):
    logits, lost = forward(w, a, torch.from_numpy(tokens).long())
    chosen = logits.gather(-1, torch.from_numpy(targets).long()[..., None])[..., 0]
    loss = (logits.logsumexp(-1) - chosen).mean()
    trained = {name: value for name, value in w.items() if value.requires_grad}
    return loss.item(), logits.detach(), dict(zip(trained, torch.autograd.grad(loss + lost, list(trained.values()))))


def adamw(w, moments, gradients, step, a):
    """One update in place; returns the gradient norm before clipping."""
    total = math.sqrt(sum(g.square().sum().item() for g in gradients.values()))
    scale = min(1.0, a["gradient_clipping"] / (total + 1e-6))
    for name, value in w.items():
        if name not in gradients:
            continue
        first, second = moments[name]
        g = gradients[name] * scale
        first.mul_(a["beta1"]).add_(g, alpha=1 - a["beta1"])
        second.mul_(a["beta2"]).add_(g.square(), alpha=1 - a["beta2"])
        update = first / (1 - a["beta1"] ** step) / ((second / (1 - a["beta2"] ** step)).sqrt() + a["eps"])
        with torch.no_grad():
            if value.dim() > 1:
                value.mul_(1 - a["learning_rate"] * a["weight_decay"])
            value.sub_(update, alpha=a["learning_rate"])
    return total


def error(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if not want.any() and not got.any():
        return 0.0  # an expert that no token has chosen
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def moves_nothing(name, a):
    """A bias of keys that are not rotated moves all scores of a query alike: its gradient is rounding alone."""
    if name.endswith(".router_bias"):
        return True
    return name.endswith(".attention.bk") and layers_of(a)[int(name.split(".")[1])]["positions"] == "none"


def compare(file):
    """What differs by how much: kind -> (error, tensor)."""
    a = {key: value.decode() if isinstance(value, bytes) else value for key, value in file.attrs.items()}
    start = {name: torch.from_numpy(file["weights"][name][()]).double() for name in file["weights"]}
    w = {name: value.clone().requires_grad_(not name.endswith(".router_bias")) for name, value in start.items()}
    loss, logits, gradients = gradients_of(w, a, file["tokens"][()], file["targets"][()])
    found = {"logits": (error(file["logits"][()], logits), ""), "loss": (abs(file["loss"][()] - loss) / loss, "")}
    found["gradients"] = max((error(file["gradients"][n][()], g), n) for n, g in gradients.items() if not moves_nothing(n, a))
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in start.items()}
    losses, norms = [], []
    for step in range(10):
        loss, _, gradients = gradients_of(w, a, file["steps/tokens"][step], file["steps/targets"][step])
        losses.append(loss)
        norms.append(adamw(w, moments, gradients, step + 1, a))
    found["losses"] = max((abs(x - y) / y, f"step {n}") for n, (x, y) in enumerate(zip(file["steps/losses"][()], losses)))
    found["grad_norms"] = max((abs(x - y) / y, f"step {n}") for n, (x, y) in enumerate(zip(file["steps/grad_norms"][()], norms)))
    found["moves"] = max((error(file["final_weights"][n][()] - start[n].numpy(), (w[n] - start[n]).detach()), n) for n in w if not moves_nothing(n, a))
    return found


def main():
    names = sys.argv[1:] or sorted(f[:-3] for f in os.listdir(FOLDER) if f.endswith(".h5"))
    torch.set_num_threads(1)
    bad = 0
    for name in names:
        with h5py.File(os.path.join(FOLDER, f"{name}.h5")) as file:
            found = compare(file)
        print(f"{name:12}" + "  ".join(f"{kind} {value:.1e}{f' ({where})' if where else ''}" for kind, (value, where) in found.items()))
        for kind, (value, where) in found.items():
            if not value < LIMITS[kind]:
                print(f"{name}: {kind} {where} differ by {value:.1e}, more than {LIMITS[kind]:.0e}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
