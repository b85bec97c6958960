#!/usr/bin/env python3
"""What README and docs name is there: links and anchors, paths of files, keys of decks, names of code; every page is in the index; README and architecture stay short.
    links.py"""
import glob
import os
import re
import subprocess
import sys

import pages

TESSERA = os.environ.get("TESSERA", "build/host/tessera")
MOST_WORDS = {"README.md": 1200, "docs/architecture.md": 1500}
FOLDERS = "src|kernels|io|inputs|slurm|pbs|validation|scripts|docs"
# What looks like a file of this project and is another's, or made by a run, a build or the reader.
OTHERS = re.compile(r"(^|/)(libcuda\.so.*|gpu_report\.json|gpu_tests\.json|config\.json)$")
FILES = ("run.lock", "model.safetensors")  # whose names read like keys
# Pages whose tables hold other programs' keys, which tests of the tables compare with the code.
FOREIGN_KEYS = ("docs/deepspeed.md", "docs/trainer.md")
# Keys of programs that nothing here reads.
FOREIGN_NAME_PAGES = ("docs/preference_keys.md",)
# Names of other programs, of the kernel and of metrics, and what stands for a name.
FOREIGN_NAMES = re.compile(r"(rewards|logps)/\w+|(exposer|io_uring|tessera)_\w+|"
                           r"exp_avg_mask|max_step|OP_workspace_bytes|refs/main|tokens/s")
# What a build, an installation or a run makes, by its first folder.
MADE = ("bin/", "runs/", "data/", "checkpoints/", "models/", "build/")
faults = []


def fault(line, text):
    faults.append(f"{line}: {text}")


def check_links():
    count = 0
    for page in [*pages.paths(), "CHANGELOG.md"]:
        for line, target in pages.links(page):
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            path, _, anchor = target.partition("#")
            file = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(os.path.join(pages.ROOT, file)):
                fault(line, f"the link {target} leads nowhere")
            elif anchor and anchor not in pages.anchors(file):
                fault(line, f"{file} has no heading #{anchor}")
    return count


def tracked():
    listed = subprocess.run(["git", "-C", pages.ROOT, "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode == 0:
        return listed.stdout.splitlines()
    return [os.path.relpath(path, pages.ROOT) for path in glob.glob(os.path.join(pages.ROOT, "**", "*"), recursive=True) if os.path.isfile(path)]


def matcher(path):
    """A pattern of a path as pages write it: * is any run of characters, words in capitals stand for names."""
    path = re.sub(r"\{[^}]*\}", "*", path)
    parts = re.split(r"(\*|(?<![A-Za-z])[A-Z][A-Z]+(?![a-z]))", path)
    return "".join(".*" if part == "*" or re.fullmatch(r"[A-Z][A-Z]+", part) else re.escape(part) for part in parts)


def check_paths():
    """Paths from the top, of files and folders; and names of sources, wherever they lie."""
    files = tracked()
    known = set(files) | {folder for file in files for folder in ancestors(file)}
    text = "\n".join(sorted(known))
    count = 0
    for page in pages.paths():
        for line, code in pages.inline_code(page):
            for word in code.split():
                word = word.rstrip(",:;.")
                top = re.fullmatch(rf"({FOLDERS})/[\w./*{{}},-]*", word)
                source = re.fullmatch(r"[\w./*{},-]+\.(cpp|hpp|cu|cuh|py|sh)", word)
                if not (top or source) or OTHERS.search(word) or word.startswith("/"):
                    continue
                count += 1
                begin = "^" if top else r"(^|/)"
                if not re.search(f"(?m){begin}{matcher(word.rstrip('/'))}({'|[.][a-z]+' if top else ''})$", text):
                    fault(line, f"{word} is no file or folder of this project")
    return count


def ancestors(file):
    while "/" in file:
        file = file.rpartition("/")[0]
        yield file


def check_keys():
    reference = subprocess.run([TESSERA, "deck", "reference"], capture_output=True, text=True, check=True).stdout
    keys, section = set(), ""
    for line in reference.split("\n"):
        if heading := re.match(r"## \[(.*)\]", line):
            section = heading[1]
        elif row := re.match(r"\| `([a-z0-9_]+)`", line):
            keys.add(f"{section}.{row[1]}")
    sections = {key.rpartition(".")[0] for key in keys}
    tops = "|".join(sorted({section.partition(".")[0] for section in sections}))
    count = 0
    for page in pages.paths():
        if page in FOREIGN_KEYS:
            continue
        for line, code in pages.inline_code(page):
            for word in re.findall(rf"(?<![\w./\"-])(?:{tops})\.[a-z0-9_.]+(?=$|[\s=,;)])", code):
                if word in FILES or re.search(r"\.(hpp|cpp|py|md|toml|h5|bin|json|jsonl|cu|sh)$", word):
                    continue
                count += 1
                if word not in keys and word not in sections:
                    fault(line, f"{word} is no key of a deck")
    return count


def words_of_tree(files):
    """Every word of the sources, and every part of a file's name."""
    words = set()
    for file in files:
        if file.startswith("docs/") or file in ("README.md", "CHANGELOG.md"):
            continue
        words.update(re.findall(r"\w+", file))
        with open(os.path.join(pages.ROOT, file), encoding="utf-8", errors="replace") as text:
            words.update(re.findall(r"\w+", text.read()))
    return words


def check_symbols():
    """Names of code in backticks: a type, NAMESPACE::NAME, a function with its parentheses, a_name_of_words; and folders inside a layer, as in `train/save`."""
    files = tracked()
    words = words_of_tree(files)
    count = 0
    for page in pages.paths():
        if page in FOREIGN_NAME_PAGES:
            continue
        for line, code in pages.inline_code(page):
            names = re.findall(r"[A-Za-z_]\w*(?:::\w+)+|\b[A-Za-z_]\w*(?=\(\))|\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+\b|^[a-z]+(?:_[a-z0-9]+)+$", code)
            for name in names:
                count += 1
                for part in name.split("::"):
                    if part not in words and not FOREIGN_NAMES.fullmatch(part):
                        fault(line, f"no source holds the name {name}")
            folder = re.fullmatch(r"[a-z_]+/[a-z_]+", code)
            if folder and not code.startswith(MADE) and not FOREIGN_NAMES.fullmatch(code):
                count += 1
                if not any(re.search(rf"(^|/){re.escape(code)}([./]|$)", file) for file in files):
                    fault(line, f"{code} is no file or folder of this project")
    return count


def check_index():
    def listed(page):
        return {os.path.normpath(os.path.join(os.path.dirname(page), target.partition("#")[0])) for _, target in pages.links(page)}
    index = listed("docs/README.md")
    # Pages that list the pages of a folder.
    for folder in [page for page in index if page.endswith("/README.md")]:
        index |= listed(folder)
    for page in pages.paths():
        if page.startswith("docs/") and page != "docs/README.md" and page not in index:
            faults.append(f"{page}:1: is not in the index, docs/README.md")
    for page, most in MOST_WORDS.items():
        words = len(pages.read(page).split())
        if words > most:
            faults.append(f"{page}:1: has {words} words, of {most} at most: give a part of it a page of its own")


def main():
    counts = check_links(), check_paths(), check_keys(), check_symbols()
    check_index()
    # A check that finds nothing to look at checks nothing.
    for count, what in zip(counts, ("links", "paths", "keys", "names")):
        if count < 50:
            faults.append(f"only {count} {what} were found in README and docs")
    print("\n".join(faults) if faults else f"{counts[0]} links, {counts[1]} paths, {counts[2]} keys and {counts[3]} names in README and docs are there")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
