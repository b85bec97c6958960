"""Draws decks: at random, and so that each pair of values of two keys is in one."""
import itertools

from decks import MOST_RANKS, RANKS, rid_of_plain

AXES = ("mesh.tp", "mesh.pp", "mesh.cp", "mesh.ep")


def with_ranks(schema, chance, deck):
    """As many ranks as the axes ask for, most of the time."""
    ranks = 1
    for axis in AXES:
        ranks *= int(schema.value(deck, axis))
    fit = [str(n) for n in range(ranks, MOST_RANKS + 1, ranks)]
    return {**deck, RANKS: chance.choice(fit)} if fit and chance.random() < 0.9 else deck


def at_random(schema, chance, keys=None):
    """Some decks have few keys that are not plain, some many: what a key hides, a deck without it shows."""
    share = chance.choice((0.08, 0.2, 0.4, 0.7))
    deck = {key: chance.choice(schema.values[key]) for key in keys or schema.drawn if chance.random() < share or schema.rows.get(key, {}).get("required")}
    return rid_of_plain(schema, with_ranks(schema, chance, deck))


def all_pairs(schema):
    items = [(key, value) for key in schema.drawn for value in schema.values[key]]
    return [pair for pair in itertools.combinations(items, 2) if pair[0][0] != pair[1][0]]


def pairs_of(schema, deck):
    return itertools.combinations([(key, schema.value(deck, key)) for key in schema.drawn], 2)


def for_pair(schema, chance, pair, missing):
    """A deck with this pair and, key by key in any order, the value that makes most of the pairs that are missing, with some left plain so that
    contradictions leave something to choose."""
    deck = dict(pair)
    keys = [key for key in schema.drawn if key not in deck and chance.random() < 0.6]
    chance.shuffle(keys)
    order = {key: at for at, key in enumerate(schema.drawn)}
    for key in keys:
        def gain(value):
            mine = (key, value)
            return sum(((mine, other) if order[key] < order[other[0]] else (other, mine)) in missing for other in deck.items()) + chance.random()
        deck[key] = max(schema.values[key], key=gain)
    return with_ranks(schema, chance, deck) if RANKS not in dict(pair) else deck
