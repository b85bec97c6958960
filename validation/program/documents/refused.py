#!/usr/bin/env python3
"""docs/refused.md is made of the refusals that the bad decks of validation/program/decks show, in the program's own words. validation/unit/deck compares those words
with the program's; this script compares the page with them.
    refused.py            compare
    refused.py --write    write the page"""
import collections
import glob
import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
PAGE = os.path.join(ROOT, "docs", "refused.md")
# Faults of spelling, type, unit and range: the reference of keys (docs/deck.md) says what a key takes.
SPELLING = re.compile(r"is not a key|is not a section|is not a value of this key|is out of range|: expected |expected a|is not a quantity|unit|written twice|given twice|is missing")
HEAD = """# What a deck is refused for

After this page you know which keys exclude each other, and what the program says then.

    tessera deck check inputs/quickstart.toml

The program checks a whole deck before it starts anything, and names every fault with its line and column. The rows below are its own words, collected from the decks of
`validation/program/decks` by `validation/program/documents/refused.py --write`. The numbers in them are those of these decks. Misspelt keys, wrong types, units and ranges are not listed:
[deck](deck.md) says what each key takes. Models that are refused are in [Hugging Face models](huggingface.md).
"""


def refusals():
    """{section: {key: [words]}}"""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in sorted(glob.glob(os.path.join(ROOT, "validation", "program", "decks", "*.expected"))):
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                match = re.match(r"[\w.]+:\d+:\d+: ([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+): (.*)$|command line: ([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+): (.*)$", line.rstrip("\n"))
                if not match or SPELLING.search(line):
                    continue
                key, words = match[1] or match[3], match[2] or match[4]
                if words.startswith(key + " "):
                    words = "`" + key + "`" + words[len(key):]
                if words not in found[key.partition(".")[0]][key]:
                    found[key.partition(".")[0]][key].append(words)
    return found


def page():
    rows = [HEAD]
    for section, keys in sorted(refusals().items()):
        rows.append(f"## [{section}]\n\n| key | refused with |\n|---|---|")
        rows.extend(f"| `{key}` | {words.replace('|', chr(92) + '|')} |" for key, texts in sorted(keys.items()) for words in texts)
        rows.append("")
    return "\n".join(rows).rstrip("\n") + "\n"


def main():
    if "--write" in sys.argv[1:]:
        with open(PAGE, "w", encoding="utf-8") as out:
            out.write(page())
        return 0
    text = page()
    if text.count("\n| `") < 60:
        print("fewer than 60 refusals were found in validation/program/decks")
        return 1
    with open(PAGE, encoding="utf-8") as file:
        if file.read() != text:
            print("docs/refused.md is not what the refusals say: write it with validation/program/documents/refused.py --write")
            return 1
    print(f"docs/refused.md has {text.count(chr(10) + '| `')} refusals")
    return 0


if __name__ == "__main__":
    sys.exit(main())
