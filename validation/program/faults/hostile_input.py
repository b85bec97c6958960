#!/usr/bin/env python3
"""What no careful user gives: absurd numbers, files that are no files, keys without end. Each is refused with the documented status and a
word that helps; none crashes, hangs, or is called a defect of the program."""
import json
import os
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

USAGE, DATA, CHECKPOINT, ENVIRONMENT = 2, 3, 4, 6
good = True


def check(what, arguments, status, words):
    """The program ends with `status` and says all of `words`."""
    global good
    try:
        done = subprocess.run([runs.TESSERA, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=runs.HANG_SECONDS)
        code, text = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, text = f"still running after {runs.HANG_SECONDS} s", ""
    faults = [f"status {code}, expected {status}"] if code != status else []
    faults += [f"the message lacks {word!r}" for word in words if word not in text]
    if obeyed := sorted({c for c in text if c == "\ufffd" or not (c.isprintable() or c in "\n\t")}):
        faults.append(f"a terminal would obey {obeyed}")
    if len(text) > 4000:
        faults.append(f"the message has {len(text)} characters")
    good = good and not faults
    print(f"{'FAIL' if faults else 'ok  '} {what}" + "".join(f"\n     {fault}" for fault in faults), flush=True)
    if faults:
        print(text[-2000:])


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
    return path


def decks_that_are_no_decks(folder):
    at = folder.path
    os.mkfifo(at + "/pipe.toml")
    for command in (["plan"], ["deck", "check"], ["train"]):
        name = " ".join(command)
        check(f"{name}: a pipe as a deck", [*command, at + "/pipe.toml"], USAGE, ["pipe.toml", "this is a pipe"])
        check(f"{name}: a device as a deck", [*command, "/dev/zero"], USAGE, ["/dev/zero", "this is a device"])
        check(f"{name}: a folder as a deck", [*command, at], USAGE, [at, "this is a folder"])
    check("a deck of no name", ["plan", ""], USAGE, ["No such file"])
    with open(at + "/large.toml", "wb") as file:
        file.truncate(1 << 40)
    check("a deck of a tebibyte", ["plan", at + "/large.toml"], USAGE, ["large.toml", "larger than 1.00 MiB"])
    with open(folder.deck) as file:
        deck = file.read()
    parts = ".".join(["a"] * 40000)
    for name, line in (("key", f"{parts} = 1"), ("section", f"[{parts}]"), ("table", "a = {" + parts + " = 1}")):
        check(f"a {name} of 40,000 parts", ["plan", write(f"{at}/{name}.toml", f"{deck}\n{line}\n")], USAGE, [name + ".toml:", "dots in a line"])
    check("an override of 40,000 parts", ["plan", folder.deck, "run.steps={" + parts + "=1}"], USAGE, [])
    check("an override of a key of 40,000 parts", ["plan", folder.deck, parts + "=1"], USAGE, ["is not a"])
    check("a thousand brackets", ["plan", write(at + "/deep.toml", "a = " + "[" * 100000)], USAGE, ["deep.toml:1:"])
    with open(at + "/nul.toml", "wb") as file:
        file.write(deck.encode().replace(b"steps = 20", b"steps = 2\0"))
    check("a NUL in a deck", ["plan", at + "/nul.toml"], USAGE, ["nul.toml:"])
    with open(at + "/latin.toml", "wb") as file:
        file.write(deck.encode() + b'[kernels]\nattention = "\xff\xfe"\n')
    check("a deck that is not UTF-8", ["plan", at + "/latin.toml"], USAGE, ["latin.toml:"])


def configurations_that_are_none(folder):
    at = folder.path

    def refused(what, path, words, model="llama3-8b"):
        check(what, ["deck", "import", path, "--model", model, "--ranks", "2"], USAGE, words)

    def of_bytes(name, content):
        with open(f"{at}/{name}", "wb") as file:
            file.write(content)
        return f"{at}/{name}"

    refused("a pipe as a configuration", at + "/pipe.toml", ["pipe.toml", "this is a pipe"])
    refused("a folder as a configuration", at, [at, "this is a folder"])
    refused("a configuration of a tebibyte", at + "/large.toml", ["large.toml", "larger than 1.00 MiB"])
    refused("a configuration of nothing", of_bytes("empty.json", b""), ["empty.json:1:1"])
    refused("a configuration of brackets", of_bytes("deep.json", b'{"a":' * 100000), ["deep.json:1:", "brackets"])
    refused("a NUL in a configuration", of_bytes("nul.json", b'{"train_batch_size": 1\0}'), ["nul.json:1:"])
    refused("a configuration that is not UTF-8", of_bytes("latin.json", b'{"train_batch_size\xff": 1}'), ["latin.json:1:"])
    refused("a comment without end", of_bytes("comment.json", b'{ /* "train_batch_size": 1 }'), ["comment.json:1:3"])
    refused("a key without end", of_bytes("key.json", b'{"' + b"k" * 100000 + b'": 1}'), ["key.json:1:2", "is not a key"])
    refused("a batch of 10^300", of_bytes("batch.json", b'{"train_batch_size": 1e300}'), ["batch.json:1:22", "whole number"])
    whole = of_bytes("whole.json", b'{"train_batch_size": 4}')
    refused("a pipe as a model", whole, ["this is a pipe"], model=at + "/pipe.toml")
    refused("a deck without a model", whole, ["model.layers"], model=write(at + "/none.toml", "[run]\nsteps = 1\n"))
    refused("a model of another kind", whole, ["gpt_neo"], model=of_bytes("config.json", b'{"model_type": "gpt_neo"}'))
    refused("a model whose name has no end", whole, ["is not a known model"], model="m" * 100000)


def names_that_a_terminal_obeys(folder):
    at, name = folder.path + "/names", "a\x1b[2J\x9b31m"
    os.makedirs(at)
    check("a deck of such a name", ["plan", f"{at}/{name}.toml"], USAGE, ["a\\u001b[2J\\u009b31m.toml"])
    check("a deck whose name is not UTF-8", ["plan", os.fsencode(at) + b"/\xff.toml"], USAGE, ["\\xff.toml"])
    check("a key of such a name", ["plan", write(at + "/key.toml", f'[run]\n"{name}" = 1\n')], USAGE, ["key.toml:2"])
    header = json.dumps({name: {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    with open(at + "/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(16))
    check("a tensor of such a name", ["verify", at], CHECKPOINT, ["DAMAGED", "a\\u001b[2J\\u009b31m"])
    check("... as JSON", ["verify", at, "--json"], CHECKPOINT, ["u001b[2J"])


def numbers_of_decks(folder):
    def plan(what, words, **keys):
        check(what, ["plan", folder.deck, *runs.overrides(keys)], USAGE, words)

    wide = {"model__width": 1 << 24, "model__heads": 1 << 16, "model__kv_heads": 1 << 16, "model__head_dim": 256}
    check("more threads than Kokkos has room for", folder.command("threads", 1, run__threads=1024)[1:], USAGE, ["run.threads", "at most 512"])
    check("plan for more threads", ["plan", folder.deck, "--threads", "1024"], USAGE, ["512"])
    plan("a billion layers", ["model.layers", "at most 10000"], model__layers=10**9)
    plan("more parameters than there are numbers", ["model.layers", "more than can be planned"], model__layers=10000, model__ff_width=1 << 24,
         **wide)
    plan("an embedding of 10^16", ["model.vocab", "set model.vocab to at most"], model__vocab=2**31 - 1, **wide)
    plan("more heads than a width", ["model.heads", "set model.heads to at most 65536"], model__heads=1 << 24, model__kv_heads=1,
         model__head_dim=256)
    plan("a micro-batch of 10^13 tokens", ["batch.micro", "set batch.micro to at most 127"], batch__micro=10**6, batch__global=10**6,
         batch__sequence_length=1 << 24)
    plan("activations beyond counting", ["batch.micro", "elements of activations"], batch__micro=10**5, batch__global=10**5,
         batch__sequence_length=10**4, model__layers=10000, model__ff_width=1 << 20)
    plan("a run of 10^21 tokens", ["run.steps", "tokens of the run"], run__steps=10**12, batch__global=10**9, batch__micro=1)
    plan("pieces of one element", ["zero.sub_group_size", "set zero.sub_group_size to at least"], zero__sub_group_size=1, model__layers=1000,
         model__width=1 << 14, model__heads=64, model__kv_heads=64, model__ff_width=1 << 16)
    plan("integers that no 64 bits hold", ["run.steps"], run__steps=10**40)
    plan("a list where a text is wanted", ["data.validation", "expected text in double quotes, got [\"a\", \"b\"]"], data__validation='["a","b"]')
    largest = 1 << 24
    check("the largest of every number ends as a list of faults",
          ["plan", folder.deck, *runs.overrides({"model__layers": 10000, "model__width": largest, "model__heads": largest, "model__kv_heads": largest,
                                                 "model__head_dim": 256, "model__ff_width": largest, "model__vocab": 2**31 - 1,
                                                 "batch__micro": 10**6, "batch__global": 10**9, "batch__sequence_length": largest,
                                                 "evaluate__every": 1, "evaluate__batches": 10**9, "kernels__loss_chunk": largest})],
          USAGE, ["model.heads", "model.vocab", "model.layers", "batch.micro", "batch.global", "evaluate.batches"])


def numbers_of_commands(folder, step):
    generate = ["generate", step, "--prompt-tokens", "1,2", "--tokens"]
    check("generate: more tokens than there are numbers", [*generate, str(2**63 - 1)], USAGE, ["--tokens"])
    check("generate: 10^40 tokens", [*generate, str(10**40)], USAGE, ["--tokens"])
    for value in ("nan", "inf", "-1", "1e400", ""):
        check(f"generate: a temperature of {value!r}", [*generate, "3", "--temperature", value], USAGE, ["--temperature"])
    check("generate: help without numbers of 300 digits", ["generate", "--help"], 0, ["0 to 1000000"])
    check("generate: no tokens between commas", ["generate", step, "--prompt-tokens", "1,,2"], USAGE, ["--prompt-tokens"])
    check("plan: ranks beyond counting", ["plan", folder.deck, "--ranks", str(2**31)], USAGE, ["--ranks"])
    check("evaluate: samples beyond the file are all of it", ["evaluate", step, "--data", folder.data, "--samples", str(2**63 - 1)], 0, ["loss"])
    check("consolidate: files of a byte", ["consolidate", step, folder.path + "/bytes", "--max-file-bytes", "1"], 0, ["safetensors"])


def checkpoints_that_are_none(folder, step):
    for kind, make in (("pipe", lambda path: os.mkfifo(path)), ("device", lambda path: os.symlink("/dev/zero", path)), ("folder", os.mkdir)):
        at = f"{folder.path}/index-{kind}"
        os.makedirs(at)
        make(at + "/checkpoint.h5")
        for command in (["inspect", at], ["generate", at, "--prompt-tokens", "1"], ["consolidate", at, folder.path + "/never"]):
            check(f"{command[0]}: a {kind} as an index", command, CHECKPOINT, [at, f"this is a {kind}"])
        at = f"{folder.path}/shard-{kind}"
        os.makedirs(at)
        os.symlink(step + "/checkpoint.h5", at + "/checkpoint.h5")
        make(at + "/shard-00000.h5")
        check(f"inspect: a {kind} as a shard", ["inspect", at, "--verify"], CHECKPOINT, ["shard-00000.h5", f"this is a {kind}"])
    pipe = folder.path + "/tokens.h5"
    os.mkfifo(pipe)
    check("evaluate: a pipe as tokens", ["evaluate", step, "--data", pipe], DATA, [pipe, "this is a pipe"])
    for name in ("", "\udcff\udcfe", "a" * 300, "/dev/null", folder.deck):
        check(f"inspect of {name[:20]!r}", ["inspect", name], CHECKPOINT, [])
    check("inspect: a tensor of no text", ["inspect", step, "--tensor", "\udcff"], USAGE, ["it has no tensor"])


def folders_of_exports(folder, step):
    """An export goes into an empty folder, or over an export."""
    mine = folder.path + "/mine"
    os.mkdir(mine)
    write(mine + "/thesis.tex", "years of work")
    check("consolidate: into a folder that holds something else", ["consolidate", step, mine], USAGE, ["thesis.tex", "empty"])
    check("consolidate: into the checkpoint itself", ["consolidate", step, step], USAGE, [step])
    check("consolidate: into a file", ["consolidate", step, folder.deck], ENVIRONMENT, [folder.deck])
    check("consolidate: into nowhere", ["consolidate", step, ""], USAGE, ["OUT"])
    check("consolidate: into a new folder", ["consolidate", step, folder.path + "/new/out"], 0, ["generation_config.json"])
    check("consolidate: over an export", ["consolidate", step, folder.path + "/new/out"], 0, ["config.json"])
    check("consolidate: in another format beside it", ["consolidate", step, folder.path + "/new/out", "--format", "hdf5"], USAGE,
          ["model.safetensors", "empty"])


def main():
    with runs.Folder() as folder:
        run = subprocess.run(folder.command("made", 1, run__steps=2), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        step = os.path.realpath(folder.run("made") + "/checkpoints/latest")
        if run.returncode or not os.path.exists(step):
            print(run.stdout)
            return 1
        decks_that_are_no_decks(folder)
        configurations_that_are_none(folder)
        names_that_a_terminal_obeys(folder)
        numbers_of_decks(folder)
        numbers_of_commands(folder, step)
        checkpoints_that_are_none(folder, step)
        folders_of_exports(folder, step)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
