#!/usr/bin/env python3
"""Preferences of `tessera tokenize --preferences`: what each form of a line comes to (io/tokenizer/preferences.py), their tokens beside
those of the tokenizers package, what is refused with its place, and Parquet and arrays beside JSON lines.

    TESSERA=build/host/tessera check_preferences.py [--forms]       --forms: only the forms, in this process

Exit status: 0 all as they should be, 1 not, 77 when tokenizers or jinja2 is not installed.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import jinja2  # noqa: F401
    import tokenizers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --tokenizers", file=sys.stderr)
    sys.exit(77)

from make_tokenizers import KINDS, make
from program import TESSERA, fail, run, write_lines
from token_files import h5dump, read, values

FORMS_ALONE = "--forms" in sys.argv
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "io", "tokenizer")


def user(text):
    return {"role": "user", "content": text}


def bot(text):
    return {"role": "assistant", "content": text}


Q, A, B = user("q"), bot("a"), bot("b")
BE = {"role": "system", "content": "be"}
PAIR = {"chosen": "a", "rejected": "b"}
HUMAN, GPT_A, GPT_B = {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, {"from": "gpt", "value": "b"}
TALKS = {"chosen": [Q, A], "rejected": [Q, B]}
CHAT = ([Q], [[A], [B]])  # what most forms of one turn come to
# Line, whether texts are turns, prompt, completions; and the margin or the label where there is one.
GOOD = [
    ({"prompt": "q ", **PAIR}, False, "q ", ["a", "b"], None),
    ({"prompt": "", **PAIR}, False, "", ["a", "b"], None),
    ({"prompt": "q", **PAIR}, True, *CHAT, None),
    ({"chosen": "Hi: yes", "rejected": "Hi: no"}, False, "Hi:", [" yes", " no"], None),
    ({"chosen": "Hi yes", "rejected": "Hi yet"}, False, "Hi ye", ["s", "t"], None),
    ({"chosen": "Hi yes, sir", "rejected": "Hi yes"}, False, "Hi yes", [", sir", ""], None),
    ({"chosen": "a", "rejected": "b"}, False, "", ["a", "b"], None),
    ({"chosen": " a", "rejected": " b"}, False, "", [" a", " b"], None),
    ({"prompt": [Q], "chosen": [A], "rejected": [B]}, False, *CHAT, None),
    ({"prompt": [Q], **PAIR}, False, *CHAT, None),
    ({"prompt": [Q], "chosen": A, "rejected": B}, False, *CHAT, None),
    ({"prompt": "q", "chosen": [A], "rejected": [B]}, False, *CHAT, None),
    ({**TALKS, "prompt": "q", "messages": [Q, A], "prompt_id": "1", "score_chosen": 8.5, "score_rejected": 6}, False, *CHAT, 2.5),
    ({"chosen": [Q, A], "rejected": [Q, B], "margin": -1}, False, *CHAT, -1),
    ({"chosen": [Q, A], "rejected": [Q, B], "margin": 1, "score_chosen": 8, "score_rejected": 2}, False, *CHAT, 1),
    ({"chosen": [Q, A], "rejected": [Q, A]}, False, [Q], [[A], [A]], None),
    ({"chosen": [BE, Q, A, Q, A], "rejected": [BE, Q, A, Q, B]}, False, [BE, Q, A, Q], [[A], [B]], None),
    ({"chosen": [Q, A, Q, A], "rejected": [Q, A]}, False, [Q], [[A, Q, A], [A]], None),
    ({"chosen": [Q, A, Q, B], "rejected": [Q, A, user("r"), B]}, False, [Q], [[A, Q, B], [A, user("r"), B]], None),
    ({"conversations": [HUMAN], "chosen": GPT_A, "rejected": GPT_B}, False, *CHAT, None),
    ({"conversations": [HUMAN], "chosen": GPT_A, "rejected": GPT_B, "system": "be"}, False, [BE, Q], [[A], [B]], None),
    ({"instruction": "q", "input": "", "chosen": "a", "rejected": "b"}, False, *CHAT, None),
    ({"instruction": "q", "input": "more", **PAIR, "history": [["o", "p"]]}, False, [user("o"), bot("p"), user("q\n\nmore")], [[A], [B]],
     None),
    ({"messages": [Q], "chosen": A, "rejected": B}, False, *CHAT, None),
    ({"prompt": "q", "completion": "a", "label": True}, False, "q", ["a"], True),
    ({"prompt": "q", "completion": "a", "label": False}, True, [Q], [[A]], False),
    ({"prompt": [Q], "completion": [A], "label": True}, False, [Q], [[A]], True),
    ({"prompt": "q", "completion": [A], "label": True}, False, [Q], [[A]], True),
    ({"conversations": [HUMAN, GPT_A], "kto_tag": False}, False, [Q], [[A]], False),
    ({"messages": [Q, A, Q, B], "label": True}, False, [Q, A, Q], [[B]], True),
    ({"instruction": "q", "output": "a", "kto_tag": True}, False, [Q], [[A]], True),
]
# Line, whether texts are turns, and words of the refusal.
BAD = [
    ({"prompt": 5, **PAIR}, False, '"prompt" is 5'),
    ({"prompt": "q", "chosen": "a", "rejected": [B]}, False, "both must be texts, or both messages"),
    ({"prompt": "q", "chosen": [], "rejected": [B]}, False, '"chosen" is an empty list'),
    ({"chosen": "a", "rejected": "b"}, True, 'there is no "prompt", which is the user\'s'),
    ({"prompt": "r", "chosen": [Q, A], "rejected": [Q, B]}, False, '"prompt" is none of the turns'),
    ({"chosen": [A], "rejected": [B]}, False, "begin with no turn in common"),
    ({"prompt": [Q, A], "chosen": [A], "rejected": [B]}, False, "ends with a turn of the assistant"),
    ({"prompt": [], "chosen": [A], "rejected": [B]}, False, "the prompt has no message"),
    ({"prompt": [Q], "chosen": [Q, A], "rejected": [Q, B]}, False, 'begins with the role "user"'),
    ({"prompt": [Q], "chosen": [A], "rejected": [5]}, False, '"rejected": message 2 is not an object'),
    ({"prompt": [Q], "chosen": [A], "rejected": ["b"]}, False, "is not an object"),
    ({"prompt": [Q], "chosen": [{**A, "weight": 0}], "rejected": [B]}, False, "says that it does not count"),
    ({"prompt": [Q], "chosen": [{"role": "assistant"}], "rejected": [B]}, False, 'message 2 has no string "content"'),
    ({"conversations": [{"from": "robot", "value": "q"}], "chosen": GPT_A, "rejected": GPT_B}, False, '"from" is "robot"'),
    ({"instruction": 5, **PAIR}, False, '"instruction" is 5'),
    ({"instruction": "q", "input": 5, **PAIR}, False, '"input" is 5'),
    ({"chosen": [Q, A], "rejected": [Q, B], "margin": 1e39}, False, "its margin is not a finite number of 32 bits"),
    ({"completion": "a", "label": True}, False, '"prompt" is missing'),
    ({"prompt": "q", "label": True}, False, "it has a label, but no completion"),
    ({"messages": [], "label": True}, False, "but must hold a prompt and the answer"),
    ({"messages": [Q], "label": True}, False, "the prompt has no message"),
    ({"messages": [A], "label": True}, False, "the prompt has no message"),
]


def program():
    sys.argv = ["worker", "0"]
    source = ""
    for name in ("channel", "model_files", "conversation", "preferences"):
        with open(os.path.join(SOURCES, name + ".py"), encoding="utf-8") as file:
            source += file.read() + "\n"
    names = {"__name__": "worker"}
    exec(compile(source, "worker.py", "exec"), names)
    return names


def check_forms():
    names, place = program(), "p.jsonl:1"
    for line, turns, prompt, completions, said in GOOD:
        one = names["preference_of"](place, json.loads(json.dumps(line)), turns, frozenset())
        got = [one.prompt, one.completions]
        if one.chats():
            whole = [[{key: message[key] for key in ("role", "content")} for message in chat.messages] for chat in one.completions]
            got = [whole[0][: one.prompt], [messages[one.prompt :] for messages in whole]]
        if got != [prompt, completions] or (one.label if one.margin is None else one.margin) != said:
            fail(f"{line} became {got}, {one.margin}, {one.label}; it is {[prompt, completions, said]}")
    if names["preference_of"](place, {"chosen": "same", "rejected": "same"}, False, frozenset()) is not None:
        fail("equal texts without a prompt are not left out")
    for line, turns, words in BAD:
        try:
            names["preference_of"](place, json.loads(json.dumps(line)), turns, frozenset())
            fail(f"{line} is taken")
        except names["Fault"] as fault:
            if not str(fault).startswith(place + ": ") or words not in str(fault):
                fail(f"{line}: {fault}\nshould be refused with: {words}")
    scored = {"prompt": "q", **PAIR, "margin": 5, "score_chosen": 2, "score_rejected": 1}
    if names["preference_of"](place, scored, False, frozenset(["margin"])).margin != 1:
        fail("scores do not give the margin where the margin is ignored")
    return len(GOOD) + len(BAD)


class Check:
    def __init__(self, folder, kind):
        self.folder, self.kind = folder, kind
        self.model = os.path.join(folder, kind)
        self.tokenizer = make(kind, self.model)
        self.end = self.tokenizer.token_to_id(KINDS[kind][1])

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, source, *options, out="out"):
        shutil.rmtree(self.path(out), ignore_errors=True)
        return run("tokenize", "--tokenizer", self.model, source, self.path(out), "--preferences", *options)

    def documents(self, lines, *options):
        """Documents, facts and what was printed."""
        write_lines(self.path("p.jsonl"), lines)
        status, output, errors = self.run(self.path("p.jsonl"), *options)
        if status:
            fail(f"{self.kind}, {lines[:2]}: status {status}\n{errors}")
        documents, facts = read(self.path("out/train.h5"))
        return documents, facts, output + errors

    def refused(self, lines, words, *options):
        text = lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
        with open(self.path("bad.jsonl"), "w", encoding="utf-8") as file:
            file.write(text)
        status, _, errors = self.run(self.path("bad.jsonl"), *options)
        if status != 3 or words not in errors or os.path.exists(self.path("out/train.h5")):
            fail(f"{text[:200]}: status {status}\n{errors}\nshould be refused with: {words}")

    def plain(self, text):
        ids = self.tokenizer.encode(text).ids
        return ids if ids and ids[-1] == self.end else [*ids, self.end]

    def check_tokens(self):
        """Texts in many scripts: the ids of prompt and completion as one text, and what differs from the prompt counts."""
        draw = random.Random(5)
        words = ["Hello", " world", "naïve", " café", "你好", "😀", " don't", "123", "\n", " ", "  ", "é", "e\u0301", ".", "x" * 40]
        text = lambda least: "".join(draw.choice(words) for _ in range(draw.randint(least, 9)))
        lines = [{"prompt": text(0), "chosen": text(1), "rejected": text(1), "margin": draw.random()} for _ in range(200)]
        lines += [{"prompt": "a", "chosen": "", "rejected": "b", "margin": 0}]
        lines += [{"prompt": "same", "chosen": " x", "rejected": " x", "margin": 3e-9}]
        documents, facts, told = self.documents(lines, "--workers", "2")
        if facts["kind"] != "pairs" or len(documents) != 2 * len(lines):
            fail(f"{self.kind}: {facts}, {len(documents)} documents")
        counted = [0, 0]
        for k, line in enumerate(lines):
            prompt = self.tokenizer.encode(line["prompt"]).ids
            both = [self.plain(line["prompt"] + line[key]) for key in ("chosen", "rejected")]
            begin = max(1, min(len(os.path.commonprefix([prompt, one])) for one in both))
            for j in range(2):
                if documents[2 * k + j] != (both[j], [0] * begin + [1] * (len(both[j]) - begin)):
                    fail(f"{self.kind}: {line} became {documents[2 * k + j]}, and is {both[j]} from {begin}")
                counted[j] += len(both[j]) - begin
        chosen, rejected = (count / len(lines) for count in counted)
        means = f"{len(lines)} pairs; a completion has {chosen:.1f} tokens if chosen, {rejected:.1f} if rejected"
        equal = sum(line["chosen"] == line["rejected"] for line in lines)
        warned = "pairs have the same completion twice, and teach" in told
        if means not in told or f"equal: {equal} pairs" not in told or warned != (equal > 0.01 * len(lines)):
            fail(f"{self.kind}: {told}\nshould say {means}, and {equal} equal pairs")
        dumped = h5dump("-y", "-m", "%.9g", "-d", "/margins", self.path("out/train.h5"))
        margins = re.findall(r"[-+.e\d]+", dumped.split("DATA {")[1].split("}")[0])
        if len(margins) != len(lines) or any(abs(float(a) - line["margin"]) > 1e-7 for a, line in zip(margins, lines)):
            fail(f"{self.kind}: the margins are {margins[:5]}")

    def check_lengths(self):
        lines = [{"prompt": "one two three", "chosen": " four" * n, "rejected": " five"} for n in (1, 2, 30)]
        whole, _, _ = self.documents(lines)
        begin = whole[0][1].index(1)
        limit = begin + 3
        cut, _, told = self.documents(lines, "--longest-sequence", str(limit))
        if cut != [(ids[:limit], counts[:limit]) for ids, counts in whole]:
            fail(f"{self.kind}: of {whole} the first {limit} tokens are not {cut}")
        if f"truncated: {sum(len(ids) > limit for ids, _ in whole)} completions" not in told:
            fail(f"{self.kind}: {told}")
        long = [{"prompt": "one two three " * 50, **PAIR}, *lines]
        left, _, told = self.documents(long, "--longest-sequence", str(limit))
        if left != cut or "left out: 1, whose prompt alone has --longest-sequence tokens or more" not in told:
            fail(f"{self.kind}: {told}")
        self.refused([long[0]], "no preference is left for train.h5", "--longest-sequence", str(limit))

    def check_labels(self):
        lines = [{"prompt": "q", "completion": f" a{k}", "label": k % 3 == 0} for k in range(10)]
        documents, facts, told = self.documents(lines, "--validation", "0.3")
        labels = [values(self.path(f"out/{name}.h5"), "/labels").tolist() for name in ("train", "val")]
        if facts["kind"] != "labels" or len(documents) != 7 or labels != [[1, 0, 0, 1, 0, 0, 1], [0, 0, 1]]:
            fail(f"{self.kind}: {facts}, labels {labels}")
        if "10 completions, 4 desirable and 6 not" not in told:
            fail(told)

    def check_chats(self):
        """Lists of messages, rendered by the template: what differs is the answers with what ends them."""
        plain = [{"prompt": [user("q")], "chosen": [bot("yes")], "rejected": [bot("no")]}]
        documents, _, _ = self.documents(plain)
        for answer, (ids, counts) in zip(("yes", "no"), documents):
            said = self.tokenizer.decode([one for one, counts_ in zip(ids, counts) if counts_], skip_special_tokens=False)
            given = self.tokenizer.decode([one for one, counts_ in zip(ids, counts) if not counts_], skip_special_tokens=False)
            if answer not in said or answer in given or "q" not in given or ids.count(self.end) < 1:
                fail(f"{self.kind}: of a conversation {given!r} is given and {said!r} counts")
        for same in ([{"prompt": "q", "chosen": "yes", "rejected": "no"}], [{"instruction": "q", "chosen": "yes", "rejected": "no"}]):
            if self.documents(same, "--chat")[0] != documents:
                fail(f"{self.kind}: {same} is not the same conversation")
        self.refused([{**plain[0], "odd": 1}], 'does not know "odd" beside the messages')
        if "not used: odd" not in self.documents([{**plain[0], "odd": 1}], "--ignore", "odd")[2]:
            fail("an ignored key is not told of")

    def check_other_files(self):
        """An array of objects, and Parquet, beside lines."""
        lines = [{"prompt": [user(f"q{k}")], "chosen": [bot("yes")], "rejected": [bot("no" * k)]} for k in range(50)]
        lines = [{**line, "score_chosen": 2.5, "score_rejected": k} for k, line in enumerate(lines)]
        documents, facts, _ = self.documents(lines)
        with open(self.path("p.json"), "w", encoding="utf-8") as file:
            json.dump(lines, file, indent=1)
        sources = ["p.json"]
        try:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(lines), self.path("p.parquet"))
            sources.append("p.parquet")
            odd = pyarrow.Table.from_pylist([{"prompt": "q", "completion": "a", "label": 1}])
            pyarrow.parquet.write_table(odd, self.path("odd.parquet"))
            status, _, errors = self.run(self.path("odd.parquet"))
            if status != 3 or 'odd.parquet: row 1: "label" must be true' not in errors:
                fail(f"a label of a row that is a number: {status}, {errors}")
        except ImportError:
            print("without pyarrow: no Parquet")
        for source in sources:
            status, _, errors = self.run(self.path(source))
            if status or read(self.path("out/train.h5")) != (documents, facts):
                fail(f"{source}: {status}, {errors}; other than lines")

    def check_refused(self):
        good = {"prompt": "q", **PAIR}
        place = "bad.jsonl:2: "
        for second, words in (({"prompt": "q", "chosen": "a"}, place + 'byte 17: "chosen" stands without "rejected"'),
                              ({"prompt": "q", "chosen": None, "rejected": "b"}, place + 'byte 33: "rejected" stands without "chosen"'),
                              ({"prompt": "q", "chosen": 5, "rejected": "b"}, place + 'byte 17: "chosen" must be a text, a message'),
                              ({"text": "x"}, place + "the object is no preference"),
                              ({"prompt": "q", "completion": "a", "label": True}, place + "this is a completion with a label, but"),
                              ({**good, "label": True}, '"label" stands beside "chosen" and "rejected"'),
                              ({**good, "margin": 1}, "bad.jsonl:1 has none"),
                              ({**good, "margin": "1"}, '"margin" must be a number'),
                              ({"prompt": "q", "chosen": [Q], "rejected": [Q]}, place + '"chosen" and "rejected" begin with no turn')):
            self.refused([good, second], words)
        label = {"prompt": "q", "completion": "a", "label": True}
        for second, words in (({**label, "label": 1}, 'byte 36: "label" must be true (a desirable completion) or false'),
                              ({**label, "label": "true"}, '"label" must be true'),
                              ({**label, "kto_tag": True}, '"kto_tag" stands beside "label"')):
            self.refused([label, second], place + words if "byte" in words else words)
        line = json.dumps(good)
        for text, words in ((line + "\n" + line[:-3], place + "broken JSON at byte"),
                            (line + "\n[1]\n", place + "the line is no JSON object"),
                            ("5\n" * 40, "must"), (line + '\n{"chosen": "a", "chosen": "b", "rejected": "c"}\n', "occurs twice"),
                            (line + '\n{"prompt": "q\\ud800", "chosen": "a", "rejected": "b"}\n', place),
                            (line + '\n{"prompt": "\\ufdd0", "chosen": [], "rejected": []}\n', place)):
            self.refused(text, words, "--format", "jsonl")

    def check_hostile(self, count):
        """Lines that are damaged anywhere: a refusal with a place, or a whole file, and never another end."""
        draw = random.Random(11)
        talk = {"prompt": [user("q\u00e9"), bot("a"), user("r")], "chosen": [bot("yes")], "rejected": [bot("no")]}
        line = json.dumps({**talk, "score_chosen": 1, "score_rejected": 0.5})
        good = {"prompt": "q", **PAIR, "margin": 1}
        for _ in range(count):
            data = bytearray(line.encode())
            for _ in range(draw.randint(1, 4)):
                at = draw.randrange(len(data))
                kind = draw.randrange(4)
                if kind == 0:
                    data[at] = draw.randrange(256)
                elif kind == 1:
                    del data[at : at + draw.randint(1, 30)]
                elif kind == 2:
                    data[at:at] = draw.choice([b'"', b"{", b"[", b"]", b"}", b"null", b"1e999", b"\\u0000", b",", b":", b"\xff"])
                else:
                    data[at:at] = data[draw.randrange(len(data)) :][: draw.randint(1, 60)]
            with open(self.path("hostile.jsonl"), "wb") as file:
                file.write(json.dumps(good).encode() + b"\n" + bytes(data).replace(b"\n", b" ") + b"\n")
            status, _, errors = self.run(self.path("hostile.jsonl"), "--format", "jsonl")
            whole = os.path.exists(self.path("out/train.h5"))
            placed = status == 0 or "hostile.jsonl:" in errors and "defect of Tessera" not in errors
            if status not in (0, 3) or (status == 0) != whole or not placed:
                fail(f"{bytes(data)}: status {status}\n{errors}")

    def check_usage(self):
        write_lines(self.path("p.jsonl"), [{"prompt": "q", **PAIR}])
        for options, words in ((["--field", "x"], "--preferences knows its keys"),
                               (["--format", "text"], "--preferences takes JSON or Parquet"),
                               (["--validation", "0.5"], "one preference cannot be split")):
            status, _, errors = self.run(self.path("p.jsonl"), *options)
            if status == 0 or words not in errors:
                fail(f"{options}: {status}, {errors}")
        for options, words in ((["--longest-sequence", "5"], "works only with --preferences"),
                               ([], "preference pairs, which --preferences takes")):
            status, _, errors = run("tokenize", self.path("p.jsonl"), self.path("out"), *options)
            if status == 0 or words not in errors:
                fail(f"{options}: {status}, {errors}")


def main():
    print(f"{check_forms()} forms")
    if FORMS_ALONE:
        return
    if not shutil.which("h5dump"):
        print("skipped: there is no h5dump (Debian: hdf5-tools)", file=sys.stderr)
        sys.exit(77)
    subprocess.run([TESSERA, "--version"], check=True, capture_output=True)
    full = bool(os.environ.get("TESSERA_TEST_FULL"))
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS if full else ("smollm", "llama3", "llama2"):
            check = Check(folder, kind)
            check.check_tokens()
            check.check_lengths()
            check.check_chats()
            print(f"{kind}: preferences are their tokens")
        check.check_labels()
        check.check_other_files()
        check.check_refused()
        check.check_usage()
        check.check_hostile(500 if full else 12)
        print("other forms of files, and what is refused")


main()
