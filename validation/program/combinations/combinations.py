#!/usr/bin/env python3
"""Decks drawn from the schema: each is refused before its first step by the name of a key, with a status of the table, or it trains, saves, goes on at another layout,
and gives what its plain layout gives (the bits where they are promised); planned bytes are used, and nothing is left behind.

    combinations.py [--decks N] [--seed N] [--device host|cuda]     N decks at random, and those of found/, which showed a fault once
    combinations.py --pairs [--decks N]                             decks until each pair of values of two keys was in one that trained, or is refused; then N at random
    combinations.py --spikes [--decks N]                            decks whose data spikes, with guards that see it (spiking.py)
    combinations.py --deck FILE                                     one deck, as a fault prints it

A deck that shows a fault is shrunk to the fewest keys. The seed is TESSERA_TEST_DRAW, which scripts/test makes of the commit; with TESSERA_TEST_FULL=1 it is --pairs with
3000 decks. A key that joins the schema joins the drawing: its values follow from the schema, or choices.py gives them or says why there are none."""
import argparse
import collections
import glob
import json
import os
import random
import sys

import choices
import draw
import spiking
from decks import LAUNCH, RANKS, Place, Schema, make_files, runs
from trial import Fault, Refused, Trial

HERE = os.path.dirname(os.path.abspath(__file__))
UNSETTLED = 0.1  # of the decks at random: refused by what contradicts itself


class Driver:
    def __init__(self, options, schema, folder):
        self.options, self.schema, self.folder = options, schema, folder
        self.place = Place(schema, folder)
        self.trial = Trial(schema, self.place, folder)
        self.seen, self.refused, self.kinds = collections.Counter(), collections.Counter(), {}
        self.good = True

    # Drawing

    def then(self, chance, deck):
        """Another layout for the same run, often with the same sizes of the axes that are part of the arithmetic; None where only a plain one is found."""
        fixed = self.trial.kept(deck)
        kept = {key: value for key, value in deck.items() if key in fixed}
        axes = self.trial.axes(deck)
        drops = self.schema.value(deck, "experts.capacity_factor") != self.schema.plain["experts.capacity_factor"]
        if drops or chance.random() < 0.6:
            kept.update(axes)
            fixed |= {*choices.ARITHMETIC} | ({"context.method"} if axes.get("mesh.cp") else set())
        others = [key for key in self.schema.drawn if key not in fixed]
        for _ in range(3):
            found, _ = self.place.settle(chance, draw.with_ranks(self.schema, chance, {**draw.at_random(self.schema, chance, others), **kept}), fixed)
            if found is not None:
                return {**found, RANKS: self.schema.value(found, RANKS)}
        return None

    def case(self, chance, deck, fixed=()):
        """The drawn deck without contradictions, with the layout that goes on; or None and the faults that stay."""
        deck, said = self.place.settle(chance, deck, fixed)
        return ({"deck": deck, "then": self.then(chance, deck)}, said) if deck is not None else (None, said)

    # Judging

    def kind_of(self, case):
        """The fault that a case shows, what refused it, or None."""
        try:
            seen = self.trial.play(case)
            self.seen[seen] += 1
            if self.options.verbose:
                print(seen, flush=True)
        except Refused as refused:
            self.seen["refused at the start"] += 1
            self.refused[refused.key] += 1
            if self.options.verbose:
                print(f"refused: {refused}", flush=True)
            return refused
        except Fault as fault:
            return fault
        return None

    def play(self, case, number, chance=None, fixed=()):
        """Plays a case, and where it is refused at the start, with `chance` others in its place, without what refused it. Returns the one that trained, or None."""
        for _ in range(6):
            fault = self.kind_of(case)
            if fault is None:
                return case
            if not isinstance(fault, Refused):
                return self.look_into(case, fault, number)
            named = [key for key in fault.named or () if key not in fixed and len(self.schema.values[key]) > 1]
            if chance is None or fault.named and not named:
                return None
            deck = dict(case["deck"])
            for key in [chance.choice(named)] if named else []:
                self.place.change(chance, deck, key)
            case, _ = self.case(chance, deck, fixed)
            if case is None:
                return None
        return None

    def look_into(self, case, fault, number):
        self.seen["faults"] += 1
        self.kinds.setdefault(fault.kind, 0)
        self.kinds[fault.kind] += 1
        if self.kinds[fault.kind] > 1:  # the same again is counted
            return None
        self.good = False
        print(f"FAIL deck {number}: {fault}", flush=True)
        least = self.shrink(case, fault.kind)
        path = os.path.abspath(f"combination-{self.schema.device}-{len(self.kinds)}.toml")
        with open(path, "w") as out:
            out.write(text_of(least))
        again = self.kind_of(least)
        print(f"the least deck that shows it:\n{text_of(least)}{again or fault}\nrepeat: {sys.argv[0]} --device {self.schema.device} --deck {path}", flush=True)
        return None

    def shrink(self, case, kind, tries=200):
        """The same fault with the fewest keys: halves, quarters and single keys become plain for as long as it stays."""
        left, kept = [tries], self.trial.kept(case["deck"])
        stays_as_it_is = {*spiking.FIXED} if "cut" in case else set()

        def stays(trial):
            left[0] -= 1
            if left[0] < 0:
                return False
            for deck in filter(None, (trial["deck"], trial["then"])):
                if self.place.check(deck)[0]:
                    return False
            fault = self.kind_of(trial)
            return isinstance(fault, Fault) and fault.kind == kind

        if case["then"] is not None and stays({**case, "then": None}):
            case = {**case, "then": None}
        if case["then"] is not None:
            plain = self.trial.plain(case["deck"], self.trial.axes(case["deck"]))
            if stays({**case, "then": plain}):
                case = {**case, "then": plain}
        for part in ("deck", "then"):
            if case[part] is None:
                continue
            size = len(case[part])
            while size >= 1:
                for keys in chunks(sorted({*case[part]} - stays_as_it_is), size):
                    if part == "then":  # the run that goes on is of the same model
                        keys = [key for key in keys if not (key in kept and key in case["deck"])]
                    less = {**case, part: {key: value for key, value in case[part].items() if key not in keys}}
                    if part == "deck" and case["then"] is not None:  # what a run computes is that of both
                        less["then"] = {key: value for key, value in case["then"].items() if key not in keys or key not in kept}
                    if len(less[part]) < len(case[part]) and stays(less):
                        case = less
                size = size // 2 if size > 1 else 0
        for key in sorted({*case["deck"]} - stays_as_it_is):  # and the smallest of its values
            for value in self.schema.values[key][1:]:
                if value == case["deck"].get(key):
                    break
                less = {**case, "deck": {**case["deck"], key: value}}
                if case["then"] is not None and key in kept:
                    less["then"] = {**case["then"], key: value}
                if stays(less):
                    case = less
                    break
        return case

    # What is played

    def refused_values(self):
        """Each value that the schema refuses by name, and one beyond each limit, is a fault of its key."""
        wrong = []
        for key, row in self.schema.rows.items():
            limits, number = row["limits"], row["type"] in ("integer", "elements", "real")
            values = [json.dumps(value) if row["type"] != "boolean" else value for value in row["refused"]]
            values += [str(int(limits[end]) + by if row["type"] != "real" else limits[end] + by) for end, by in (("least", -1), ("most", 1)) if number and end in limits and abs(limits[end]) < 1e15]
            values += [str(limits[end]) for end in ("above", "below") if number and end in limits]
            values += ['"no such word"'] if row["choices"] else []
            wrong += [(key, value) for value in values if value not in ("0", "0.0") or not row["auto"]]
        good = True
        while wrong:
            # A deck names all its faults: one of each key at a time.
            deck = dict(reversed(wrong))
            wrong = [item for item in wrong if deck[item[0]] != item[1]]
            faults, _ = self.place.check({key: value for key, value in deck.items() if key in self.schema.plain})
            named = {key for key, _ in faults}
            for key, value in deck.items():
                if key in self.schema.plain and key not in named:
                    print(f"FAIL {key} = {value} is not refused by its name", flush=True)
                    good = False
                self.refused[f"{key} (value)"] += 1
        self.good &= good
        return good

    def contradiction(self, chance):
        """A deck as it was drawn: what its faults name are keys of the schema, and a start refuses it as the check does."""
        deck = draw.at_random(self.schema, chance)
        faults, _ = self.place.check(deck)
        if not faults:
            return False
        for key, message in faults:
            if key not in self.schema.rows:
                self.good = False
                print(f"FAIL a fault of no key: {key}: {message}\n{text_of({'deck': deck, 'then': None})}", flush=True)
            self.refused[key] += 1
        self.seen["refused by contradictions"] += 1
        if chance.random() < 0.1:
            try:
                self.trial.start("run-refused", deck)
                raise Fault("a start takes what the check refuses", str(faults))
            except Refused:
                if os.path.exists(os.path.join(self.place.path, "run-refused")):
                    self.good = False
                    print(f"FAIL left behind by a start that was refused\n{text_of({'deck': deck, 'then': None})}", flush=True)
            except Fault as fault:
                self.good = False
                print(f"FAIL {fault}\n{text_of({'deck': deck, 'then': None})}", flush=True)
        return True

    def at_random(self, count):
        for number in range(count):
            chance = random.Random(f"{self.options.seed} {number}")
            if chance.random() < UNSETTLED and self.contradiction(chance):
                continue
            case, said = self.case(chance, draw.at_random(self.schema, chance))
            if case is None:
                self.seen["not settled"] += 1
                continue
            self.play(case, f"{number} of seed {self.options.seed}", chance)

    def pairs(self):
        """Decks until each pair was in one that trained or is refused: such a pair contradicts itself, whatever else is said."""
        chance = random.Random(f"{self.options.seed} pairs")
        all_pairs = draw.all_pairs(self.schema)
        chance.shuffle(all_pairs)
        missing, refused, tried, decks = dict.fromkeys(all_pairs), {}, collections.Counter(), 0
        while missing and decks < self.options.most:
            pair = next(iter(missing))
            tried[pair] += 1
            first = draw.for_pair(self.schema, chance, pair, missing) if tried[pair] == 1 else draw.with_ranks(self.schema, chance, dict(pair))
            case, said = self.case(chance, first, dict(pair))
            if case is not None:
                decks += 1
                case = self.play(case, f"{decks} of the pairs of seed {self.options.seed}", chance, dict(pair))
                said = [("", "at the start")]
            for covered in draw.pairs_of(self.schema, case["deck"]) if case is not None else ():
                missing.pop(covered, None)
            if pair in missing and tried[pair] == 3:
                del missing[pair]
                refused[pair] = said[0]
            if decks % 50 == 0 and case is not None:
                print(f"{decks} decks, {len(missing)} of {len(all_pairs)} pairs are missing, {len(refused)} refused; {dict(self.seen)}", flush=True)
        print(f"pairs: {len(all_pairs)} of {len(self.schema.drawn)} keys; {decks} decks; {len(refused)} refused; {len(missing)} missing")
        together = collections.Counter((" and ".join(key for key, _ in pair), why[0] or why[1]) for pair, why in refused.items())
        for (keys, why), count in sorted(together.items()):
            print(f"  {count} of {keys}: {why}")

    def found(self):
        """Decks that showed a fault once train now."""
        for path in sorted(glob.glob(os.path.join(HERE, "found", "*.toml"))):
            case = read_case(path)
            if ("cut" in case) == self.options.spikes and self.play(case, os.path.basename(path)) is None:
                print(f"FAIL {os.path.basename(path)} does not train", flush=True)
                self.good = False


def chunks(items, size):
    return [items[at:at + size] for at in range(0, len(items), size)]


def text_of(case):
    """A case as a file: the deck's keys, and after `# then` those of the layout that goes on."""
    def lines(deck):
        return [f"{'# ' if key in LAUNCH else ''}{key} = {value}" for key, value in sorted(deck.items())]
    cut = [f"# cut = {case['cut']}"] if case.get("cut") else []
    return "\n".join(lines(case["deck"]) + cut + (["# then"] + lines(case["then"]) if case["then"] is not None else [])) + "\n"


def read_case(path):
    case = {"deck": {}, "then": None}
    part = case["deck"]
    with open(path) as lines:
        for line in lines:
            if line.strip() == "# then":
                part = case["then"] = {}
            elif line.startswith("# cut = "):
                case["cut"] = int(line.split(" = ")[1])
            elif line.startswith(tuple(f"# {key} = " for key in LAUNCH)) or " = " in line and not line.startswith("#"):
                key, value = line.removeprefix("# ").strip().split(" = ", 1)
                part[key] = value
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    full = bool(os.environ.get("TESSERA_TEST_FULL"))
    parser.add_argument("--seed", default=os.environ.get("TESSERA_TEST_DRAW", "1"))
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--decks", type=int)
    parser.add_argument("--pairs", action="store_true", default=full)
    parser.add_argument("--most", type=int, default=10**6, help="decks that pairs may take")
    parser.add_argument("--spikes", action="store_true")
    parser.add_argument("--deck")
    parser.add_argument("--verbose", action="store_true", help="say what refused a deck")
    options = parser.parse_args()
    if options.decks is None:
        options.decks = (3000 if full else 12 if options.spikes else 50) // (1 if options.device == "host" else 25)
    with runs.Folder() as folder:
        if options.device == "cuda" and not runs.has_gpu(folder):
            print("no GPU is seen")
            return 77
        schema = Schema(options.device)
        for fault in schema.faults:
            print(f"FAIL {fault}")
        make_files(folder)
        os.environ["TMPDIR"] = os.path.join(folder.path, "tmp")
        driver = Driver(options, schema, folder)
        if options.deck:
            case = read_case(options.deck)
            if "cut" in case:
                spiking.prepare(driver)
            fault = driver.kind_of(case)
            print(fault or f"no fault: {dict(driver.seen)}")
            return 1 if isinstance(fault, Fault) else 0
        if options.spikes:
            driver.good &= spiking.play(driver, options.decks)
        elif options.device == "host":
            driver.refused_values()
            driver.found()
        if options.pairs and options.device == "host" and not options.spikes:
            driver.pairs()
        if not options.spikes:
            driver.at_random(options.decks)
        print(f"decks: {dict(driver.seen)}; {driver.place.checks} checks; {driver.place.seconds:.0f} s of processor time")
        print("refused by: " + ", ".join(f"{key} {count}" for key, count in driver.refused.most_common() if "(value)" not in key))
        for kind, count in driver.kinds.items():
            print(f"fault of {count} decks: {kind}")
        return 0 if driver.good and not schema.faults and not driver.kinds else 1


if __name__ == "__main__":
    sys.exit(main())
