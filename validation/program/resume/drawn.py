"""Which of many layouts a test takes: others at each commit, which makes TESSERA_TEST_DRAW (scripts/test), so that landings cover all; with TESSERA_TEST_FULL=1 all."""
import os
import random

FULL = bool(os.environ.get("TESSERA_TEST_FULL"))
DRAW = int(os.environ.get("TESSERA_TEST_DRAW", "1"))


def some(layouts, count, last=False):
    """So many of them in their order; `last`: those that the others are chosen after."""
    layouts = list(layouts)
    if FULL or len(layouts) <= count:
        return layouts
    order = random.Random(DRAW).sample(range(len(layouts)), len(layouts))
    if last:
        order.reverse()
    return [layouts[number] for number in sorted(order[:count])]


def third(layouts, on_gpus=False):
    """A third of them, and never fewer than two: on GPUs others than on the host."""
    layouts = list(layouts)
    return some(layouts, max(2, -(-len(layouts) // 3)), on_gpus)
