"""1-bit Adam as DeepSpeed 0.19.6 computes it (runtime/fp16/onebit/adam.py, runtime/comm/compressed.py), for ranks that are played one after the other, and which sequences of a
file each of Tessera's ranks takes in a step. DeepSpeed's first call of step prepares and updates nothing; it is left out here."""

import numpy as np
import torch

WORD = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    for _ in range(10):
        high, low = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [low >> 32 ^ counter[1] ^ key[0], low & WORD, high >> 32 ^ counter[3] ^ key[1], high & WORD]
        key = [key[0] + 0x9E3779B9 & WORD, key[1] + 0xBB67AE85 & WORD]
    return counter


def sample_at(seed, samples, cursor):
    """The order of the data (src/train/data/data_order.cpp): each epoch is a permutation, a Feistel network over the next power of four."""
    epoch, x, half = cursor // samples, cursor % samples, (samples.bit_length() + 1) // 2
    while True:
        left, right = x >> half, x & (1 << half) - 1
        for turn in range(6):
            key = seed ^ 0x6A09E667F3BCC908
            drawn = philox([right, 0, epoch * 6 + turn, 0], [key & WORD, key >> 32])
            left, right = right, left ^ (drawn[0] & (1 << half) - 1)
        x = left << half | right
        if x < samples:
            return x


def samples_of_ranks(seed, samples, step, ranks):
    """Of a step that takes all samples of a file, one a micro-batch."""
    order = [sample_at(seed, samples, step * samples + i) for i in range(samples)]
    each = -(-samples // ranks)
    return [order[rank * each:(rank + 1) * each] for rank in range(ranks)]


class OnebitAdam(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, eps, freeze_step, ranks, weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.freeze_step, self.ranks, self.steps, self.narrowest = freeze_step, ranks, 0, 1.0
        for group in self.param_groups:
            for p in group["params"]:
                if p.numel() % (32 * ranks):
                    raise ValueError(f"parts of {p.numel()} elements are others than DeepSpeed's")
                self.state[p] = {"m": torch.zeros(p.numel()), "v": torch.zeros(p.numel()), "worker": [torch.zeros(p.numel()) for _ in range(ranks)],
                                 "server": [torch.zeros(p.numel() // ranks) for _ in range(ranks)]}

    def tensors(self):
        return [(group, p, self.state[p]) for group in self.param_groups for p in group["params"] if p.requires_grad]

    def take(self, backward, samples, clipping):
        """Each rank's own gradient, of whose mean the whole one is made: a term of it, times their number. Returns the norm: of what is added up, and after freeze_step the root
        mean square of the ranks'."""
        self.own = []
        for mine in samples_of_ranks(1, samples, self.steps, self.ranks):
            self.zero_grad()
            backward(mine)
            self.own.append([p.grad.detach().flatten() * self.ranks for _, p, _ in self.tensors()])
        if self.steps < self.freeze_step:
            self.own = [[sum(terms) / self.ranks for terms in zip(*self.own)]]
        norm = (sum(float(g.double().square().sum()) for own in self.own for g in own) / len(self.own)) ** 0.5
        factor = min(1.0, clipping / (norm + 1e-6))
        self.own = [[g * factor for g in own] for own in self.own]
        return norm

    def compress(self, x, error):
        """The scale and signs of x and its error, which becomes what they take. How near to 0 a number came is noted: another rounding would turn its sign there."""
        x = x + error
        scale = torch.linalg.norm(x) / np.sqrt(x.numel())
        signs = (x >= 0).float() * 2 - 1
        error.copy_(x - scale * signs)
        nonzero = x[x != 0].abs()
        if nonzero.numel() and scale > 0:
            self.narrowest = min(self.narrowest, float(nonzero.min() / scale))
        return scale, signs

    def mean_by_signs(self, momenta, state):
        sent = [self.compress(m, error) for m, error in zip(momenta, state["worker"])]
        part = momenta[0].numel() // self.ranks
        means = []
        for rank, error in enumerate(state["server"]):
            mean = sum(signs[rank * part:(rank + 1) * part] * (scale * (1 / self.ranks)) for scale, signs in sent)
            scale, signs = self.compress(mean, error)
            means.append(scale * signs)
        return torch.cat(means)

    @torch.no_grad()
    def step(self):
        for number, (group, p, state) in enumerate(self.tensors()):
            b1, b2 = group["betas"]
            momenta = [b1 * state["m"] + (1 - b1) * own[number] for own in self.own]
            if self.steps < self.freeze_step:
                state["m"] = momenta[0]
                state["v"] = b2 * state["v"] + (1 - b2) * self.own[0][number] ** 2
            else:
                state["m"] = self.mean_by_signs(momenta, state)
            update = state["m"] / (state["v"].sqrt() + group["eps"]) + group["weight_decay"] * p.flatten()
            p.sub_((group["lr"] * update).view_as(p))
        self.steps += 1
