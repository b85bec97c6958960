"""Drawn decks whose data spikes and whose guards' windows fill after a few steps: what is passed over, or gone back from, is the same on any layout, and where the run was
stopped between and went on at another one."""
import random

import choices
import draw
from decks import RANKS
from trial import Fault, Refused, Trial

STEPS = 18  # of which windows of 8 judge from the fifth on
# Kept as they are: a rate that does not depend on run.steps, at which a run is cut, and bits that are promised.
FIXED = {"run.steps": str(STEPS), "run.epochs": "0.0", "run.reproducible": "true", "learning_rate.schedule": '"constant"', "learning_rate.warmup_steps": "0", "learning_rate.warmup_ratio": "0.0",
         "learning_rate.decay_steps": "0", "guards.window": "8", "batch.ramp": "[]", "data.epochs": "[]"}
MODES = ('"rollback"', '"skip"', '"rollback"', '"warn"')  # in turn
THRESHOLDS = ("1.0", "1.5", "3.0", "8.0")
DATA = ('"{folder}/spikes.bin"', '"{folder}/spikes.h5"', '"{folder}/spikes.bin"', '["{folder}/spikes.h5", "{folder}/pairs.h5"]')
# What meets guards in the program's text: each is in every third deck.
BESIDE = ({"zero.offload_optimizer.device": ('"host"', '"nvme"')}, {"lora.rank": ("1", "4")}, {"checkpoint.neighbour_every": ("1", "2")}, {"guards.digest_every": ("1", "2")},
          {"guards.replay_every": ("1", "2")}, {"checkpoint.async": ("true",)}, {"model.experts": ("3", "4")}, {"checkpoint.keep": ("1", "3")}, {"evaluate.every": ("1", "4")},
          {"zero.stage": ("1", "2", "3")})


def deck_of(schema, chance, number):
    """A deck and the keys of it that stay, whatever contradicts them."""
    mode = MODES[number % len(MODES)]
    fixed = {**FIXED, "guards.spike": mode, "guards.threshold": chance.choice(THRESHOLDS), "data.train": chance.choice(DATA), "checkpoint.every": chance.choice(("1", "2", "3", "5")),
             "guards.rollback_limit": chance.choice(("1", "3", "20", "20")), "guards.skip_limit": chance.choice(("1", "3", "20", "20") if mode == '"skip"' else ("0", "0", "3"))}
    share = chance.choice((0.03, 0.08, 0.2))
    deck = {key: chance.choice(schema.values[key]) for key in schema.drawn if chance.random() < share}
    for keys in BESIDE:
        if chance.random() < 1 / 3:
            deck.update({key: chance.choice(values) for key, values in keys.items()})
    deck["optimizer.learning_rate"] = chance.choice(("3e-3", "1e-2", "3e-2"))
    if "spikes.h5" in fixed["data.train"]:
        deck["model.vocab"] = "259"
    return draw.with_ranks(schema, chance, {**deck, **fixed}), fixed


def then_of(driver, chance, deck, fixed):
    """Another layout for the same run, with the same arithmetic."""
    trial, schema = driver.trial, driver.schema
    stay = {*trial.kept(deck), *choices.ARITHMETIC, *fixed} | ({"context.method"} if trial.axes(deck).get("mesh.cp") else set())
    kept = {key: value for key, value in deck.items() if key in stay}
    others = [key for key in schema.drawn if key not in stay]
    for _ in range(3):
        found, _ = driver.place.settle(chance, draw.with_ranks(schema, chance, {**draw.at_random(schema, chance, others), **kept}), stay)
        if found is not None:
            return {**found, RANKS: schema.value(found, RANKS)}
    return None


def case_of(driver, chance, number):
    deck, fixed = deck_of(driver.schema, chance, number)
    deck, _ = driver.place.settle(chance, deck, fixed)
    if deck is None:
        return None
    return {"deck": deck, "then": then_of(driver, chance, deck, fixed), "cut": chance.randrange(3, STEPS)}


class SpikingTrial(Trial):
    """case: {"deck": ..., "then": ... or None, "cut": the step after which the run is stopped and goes on as `then`}."""

    def __init__(self, *of):
        super().__init__(*of)
        self.met = {}  # mode -> runs that met a spike

    def start(self, name, deck, **keys):
        self.ended[name] = 0
        return super().start(name, deck, **keys)

    def play_once(self, case):
        self.clear()
        deck, then = case["deck"], case.get("then")
        references = self.references(deck)
        said = self.start("run-a", deck)
        self.judge("run", "run-a", deck, said, references)
        mode = self.schema.value(deck, "guards.spike").strip('"')
        spikes = self.spikes("run-a")
        self.met[mode] = self.met.get(mode, 0) + (spikes > 0)
        if then is None or self.ended["run-a"]:
            return f"{mode}: {'spikes' if spikes else 'none'}{', to the limit' if self.ended['run-a'] else ''}"
        try:
            self.start("run-b", deck, run__steps=case["cut"])
            said = self.start("run-b", {**then, RANKS: then.get(RANKS) or "1"})
        except Refused as refused:
            raise Refused("resume: " + refused.key, str(refused), None) from None
        self.judge("resume", "run-b", then, said, references, case["cut"])
        return f"{mode}: {'spikes' if spikes else 'none'}, resumed"

    def judge(self, what, name, deck, said, references, after=0):
        if not self.ended[name]:
            self.look_at(name, deck, said, after)
        reference = references(self.axes(deck))
        if self.ended[name] != self.ended[reference]:
            raise Fault(f"{what}: status", f"{self.ended[name]} instead of {self.ended[reference]}\n{said}")
        self.same(what, name, reference, after)

    def spikes(self, name):
        rows = self.folder.metrics(name)
        return sum(row.get("skipped", 0) > 0 or "went_back" in row or max(row.get("loss_z", 0), row.get("grad_norm_z", 0)) > 6 for row in rows)


def prepare(driver):
    driver.trial = SpikingTrial(driver.schema, driver.place, driver.folder)
    driver.place.steps = (3, STEPS)


def play(driver, count):
    """So many decks; True where each way of a guard has met a spike."""
    prepare(driver)
    driver.found()
    for number in range(count):
        chance = random.Random(f"{driver.options.seed} spikes {number}")
        if (case := case_of(driver, chance, number)) is None:
            driver.seen["not settled"] += 1
            continue
        driver.play(case, f"{number} of the spikes of seed {driver.options.seed}")
    missing = [mode for mode in ("rollback", "skip", "warn") if not driver.trial.met.get(mode)]
    if missing and count >= 8:
        print(f"FAIL no deck has met a spike with guards.spike = {', '.join(missing)}", flush=True)
    return not missing or count < 8
