"""The pages of this project: their blocks of code, the commands in them, links, anchors and words in code. Standard library only."""
import dataclasses
import glob
import os
import re
import shlex

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def paths():
    """README, all of docs, and pages that stand beside what they describe; relative to ROOT."""
    found = ["README.md", *glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True), *glob.glob("validation/**/README.md", root_dir=ROOT, recursive=True)]
    return sorted(found)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as text:
        return text.read()


@dataclasses.dataclass
class Line:
    """A line of a page, `number` from 1; one that ends with a backslash has those after it joined."""
    page: str
    number: int
    text: str

    def __str__(self):
        return f"{self.page}:{self.number}"


def blocks_of(page, text):
    """(language, lines) of each block of code: between fences, or indented by four spaces after an empty line. Without indentation, continuations joined."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        fence = re.match(r"```(\S*)$", lines[at])
        indented = lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip())
        if not fence and not indented:
            at += 1
            continue
        if fence:
            end = next(n for n in range(at + 1, len(lines)) if lines[n].startswith("```"))
            inside, begin, after = lines[at + 1:end], at + 1, end + 1
        else:
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or (not lines[end].strip() and lines[end + 1:end + 2] and lines[end + 1].startswith("    "))):
                end += 1
            inside, begin, after = [line[4:] for line in lines[at:end]], at, end
        joined = []
        for number, line in enumerate(inside, begin + 1):
            if joined and joined[-1].text.endswith("\\"):
                joined[-1].text = joined[-1].text[:-1].rstrip() + " " + line.strip()
            else:
                joined.append(Line(page, number, line))
        yield fence[1] if fence else "", [line for line in joined if line.text.strip()]
        at = after


def blocks():
    for page in paths():
        yield from blocks_of(page, read(page))


@dataclasses.dataclass
class Command:
    """One command of a line: its variables, its words, and the file that its output goes to."""
    line: Line
    variables: dict
    words: list
    output: str = ""

    def text(self):
        return shlex.join(self.words)


def commands_of(line):
    """The commands of a line of shell: parts between && and |, without comments. JOB=$(COMMAND) is that command."""
    text = re.sub(r"^[A-Z]+=\$\(([^)]*)\)(?=\s|$)", r"\1", line.text.strip())
    found = []
    words = shlex.split(text, comments=True)
    while words:
        end = next((n for n, word in enumerate(words) if word in ("&&", "|", ";")), len(words))
        part, words = words[:end], words[end + 1:]
        variables = {}
        while part and ASSIGNMENT.match(part[0]):
            name, variables[name] = (lambda pair: (pair[0], pair[1]))(part.pop(0).split("=", 1))
        output = ""
        if ">" in part:
            output = part[part.index(">") + 1]
            part = part[:part.index(">")]
        if part:
            found.append(Command(line, variables, part, output))
    return found


def inline_code(page):
    """(line, text) of each piece of code inside a sentence or a table, outside blocks of code."""
    text = read(page)
    inside = {line.number for _, lines in blocks_of(page, text) for line in lines}
    for number, line in enumerate(text.split("\n"), 1):
        if number not in inside and not line.startswith("    "):
            for code in re.findall(r"`([^`]+)`", line):
                yield Line(page, number, line), code


def links(page):
    """(line, target) of each link and picture."""
    text = read(page)
    inside = {line.number for _, lines in blocks_of(page, text) for line in lines}
    for number, line in enumerate(text.split("\n"), 1):
        if number not in inside:
            for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
                yield Line(page, number, line), target


def anchors(page):
    """As GitHub makes them of headings: lower case, without punctuation, spaces as hyphens."""
    made = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", read(page)):
        words = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        made.add(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return made
