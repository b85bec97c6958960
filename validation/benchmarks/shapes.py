"""Llama shapes that are timed on GPUs, ours and the peer's: width C, feed-forward width, sequences of a step on one GPU, tokens of a sequence."""

SHAPES = {
    "124m": dict(layers=12, width=768, heads=12, kv_heads=12, ff=2048, vocab=50304, tied=True, length=1024, batch=16),
    "1.5b": dict(layers=28, width=2048, heads=16, kv_heads=16, ff=5632, vocab=50304, tied=True, length=2048, batch=8),
    "8b-cut": dict(layers=8, width=4096, heads=32, kv_heads=8, ff=14336, vocab=128256, tied=False, length=8192, batch=1),
    "tiny": dict(layers=2, width=64, heads=4, kv_heads=2, ff=128, vocab=256, tied=True, length=32, batch=2),
}


def flops_per_token(shape):
    """(full, causal): 6 for each weight of a matrix, the head's among them, and attention's 12 x layers x width x T, of which causal attention needs
    half."""
    width, heads, layers = shape["width"], shape["heads"], shape["layers"]
    dim = width // heads
    layer = width * (heads + 2 * shape["kv_heads"]) * dim + width * heads * dim + 3 * width * shape["ff"]
    matrices = layers * layer + shape["vocab"] * width
    attention = 12 * layers * heads * dim * shape["length"]
    return 6 * matrices + attention, 6 * matrices + attention / 2
