"""Which of many layouts a test takes: others at each commit, which makes TESSERA_TEST_DRAW (scripts/test), so that landings cover all; with TESSERA_TEST_FULL=1 all."""
import os
import random

FULL = bool(os.environ.get("TESSERA_TEST_FULL"))
DRAW = int(os.environ.get("TESSERA_TEST_DRAW", "1"))


def half(layouts, on_gpus=False):
    """Half of them in their order, and never fewer than two: on GPUs those that the host leaves out."""
    layouts = list(layouts)
    if FULL or len(layouts) <= 2:
        return layouts
    order = random.Random(DRAW).sample(range(len(layouts)), len(layouts))
    if on_gpus:
        order.reverse()
    return [layouts[number] for number in sorted(order[:max(2, len(layouts) // 2)])]
