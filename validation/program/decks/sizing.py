#!/usr/bin/env python3
"""The decks of inputs/sizing are planned, the tables of docs/planning.md are those that scripts/sizing makes of them, and what is not is found.
    sizing.py TESSERA"""
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import re
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "resume"))
import drawn  # noqa: E402

ROOT = os.path.join(HERE, "..", "..", "..")
PAGE = os.path.join(ROOT, "docs", "planning.md")
MARK = re.compile(r"<!-- (.*), made by scripts/sizing -->\n")


def load_script():
    loader = importlib.machinery.SourceFileLoader("sizing", os.path.join(ROOT, "scripts", "sizing"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("sizing", loader))
    sys.modules["sizing"] = module  # dataclasses look it up
    loader.exec_module(module)
    return module


class Checks:
    good = True

    def __call__(self, what, right, found=""):
        if not right:
            self.good = False
            print(f"FAILED: {what}\n{found}")


check = Checks()


def checked(script, page):
    """Status and words of scripts/sizing --check on a page."""
    words = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(words):
        path = os.path.join(folder, "planning.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
        status = script.main(["--check", "--page", path])
        with open(path, encoding="utf-8") as file:
            check("--check writes nothing", file.read() == page)
    return status, words.getvalue()


def check_tables(script, page):
    status, words = checked(script, page)
    check("the tables of docs/planning.md are those of scripts/sizing", status == 0, words)
    names, tables = MARK.findall(page), script.make_tables(script.make_plans(""))
    check("the page has every table", sorted(names) == sorted(tables), names)
    page = script.fill(page, tables)
    for name in names:
        begin = page.index(f"<!-- {name}, made by")
        digit = re.compile(r"\d").search(page, page.index("|---", begin))
        other = page[: digit.start()] + str((int(digit[0]) + 1) % 10) + page[digit.end():]
        status, words = checked(script, other)
        check(f"another digit in the table {name} is found", status == 1 and len(re.findall(r"^-(?!--)", words, re.M)) == 1, words)
    try:
        checked(script, page.replace("<!-- end of cost -->", ""))
        check("a page without a mark is refused", False)
    except script.Problem as problem:
        check("a page without a mark is refused", "end of cost" in str(problem), problem)


def check_micro_batches(script, plans, tessera):
    """Where a deck says that its micro-batch is the most that fits, twice as many sequences do not: of a third of such decks, others at each commit."""
    twice = []
    for (deck, overrides), plan in plans.items():
        text = script.launch_of(deck)[0]
        micro, whole = (int(re.search(rf"^{key} = (\d+)", text, re.M)[1]) for key in ("micro", "global"))
        if overrides or "the most of 1, 2, 4 and 8 that fit" not in text:
            continue
        check(f"{deck} fits", plan.fits)
        if micro < 8:
            twice.append((deck, [f"batch.micro={2 * micro}", *([f"batch.global={2 * whole}"] if plan.ranks * micro == whole else [])]))
    check("some decks say so", len(twice) > 2, twice)
    for deck, overrides in drawn.some(twice, max(2, len(twice) // 3)):
        check(f"{deck} does not fit with twice the micro-batch", not script.Plan(tessera, deck, overrides).fits)


def main():
    script, tessera = load_script(), os.path.abspath(sys.argv[1])
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    plans = script.make_plans(tessera)
    script.make_plans = lambda _: plans  # once for all pages
    check_tables(script, page)
    check_micro_batches(script, plans, tessera)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
