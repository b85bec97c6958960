#!/usr/bin/env python3
"""The first hour with the program: a deck made of a model and token files, what shells complete, the manual page, and what is said of a run before it
costs anything. No Python packages."""
import json
import os
import pty
import random
import re
import select
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

USAGE = 2
MODEL = {"model__vocab": 257, "run__steps": 1, "batch__global": 2, "batch__micro": 1, "run__threads": 1, "evaluate__every": 0, "checkpoint__every": 0}
GPT2 = {"model__activation": '"gelu_tanh"', "model__gated": False, "model__norm_form": '"layer_norm"', "model__mlp_bias": True, "model__qkv_bias": True,
        "model__attention_out_bias": True, "model__kv_heads": 4, "model__heads": 4, "model__tied": True, "model__positions": '"none"', "model__learned_positions": 64}
check = runs.Checks()


def token_files(folder):
    """Texts in data/text, and answers that alone count in data/answers."""
    random.seed(5)
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    texts = [" ".join(random.choice(words) for _ in range(30)) for _ in range(200)]
    for name, object_of in (("text", lambda t: {"text": t}), ("answers", lambda t: {"prompt": t[:20], "completion": t[20:80]})):
        with open(os.path.join(folder.path, name + ".jsonl"), "w") as file:
            file.write("".join(json.dumps(object_of(text)) + "\n" for text in texts))
        done = runs.tessera("tokenize", os.path.join(folder.path, name + ".jsonl"), os.path.join(folder.path, name), "--validation", "0.1")
        check(f"tokenize {name}", done.returncode == 0, done.stderr)


def model_in(folder):
    folder.train("base", 1, **MODEL, batch__sequence_length=128)
    out = os.path.join(folder.path, "model")
    done = runs.tessera("consolidate", folder.latest("base"), out)
    check("consolidate", done.returncode == 0, done.stderr)
    return out


def values_of(path, *overrides):
    done = runs.tessera("deck", "check", path, "--json", *overrides)
    check(f"deck check {os.path.basename(path)}", done.returncode == 0, done.stdout + done.stderr)
    return json.loads(done.stdout)["values"]


def decks(folder, model):
    """tessera deck from-hf: what a person would run."""
    made = os.path.join(folder.path, "made.toml")

    def make(*options, expect=0):
        done = runs.tessera("deck", "from-hf", model, *options)
        check(f"from-hf {' '.join(options)}: status {expect}", done.returncode == expect, done.stderr)
        with open(made, "w") as file:
            file.write(done.stdout)
        return done

    text, answers = os.path.join(folder.path, "text"), os.path.join(folder.path, "answers")
    done = make()
    check("from-hf alone: epochs in place of 1000 steps", "epochs = 3.0" in done.stdout and "steps = 1000" not in done.stdout and "FILL IN" in done.stdout, done.stdout)
    done = make("--data", text)
    values = values_of(made)
    check("from-hf --data: nothing is left to fill in", "FILL IN" not in done.stdout, done.stdout)
    check("from-hf --data: files and mask", values["data"]["train"] == text + "/train.h5" and values["data"]["validation"] == text + "/val.h5"
          and values["data"]["document_mask"] and values["data"]["packing"] == "concatenate", str(values["data"]))
    steps = values["run"]["steps"]
    check("from-hf --data: three passes, evaluated ten times and saved thrice", 0 < steps < 1000 and 8 <= steps // values["evaluate"]["every"] <= 12
          and 2 <= steps // values["checkpoint"]["every"] <= 4, str((steps, values["evaluate"], values["checkpoint"])))
    done = make("--data", answers, "--chat", "--lora", "4")
    values = values_of(made)
    check("from-hf --chat --lora: whole documents, adapters", values["data"]["packing"] == "documents" and values["data"]["document_mask"]
          and (values["lora"]["rank"], values["lora"]["alpha"]) == (4, 8.0) and values["optimizer"]["learning_rate"] == 2e-4, str(values["lora"]))
    check("from-hf --chat: a sequence holds the longest document", int(re.search(r"longest document has (\d+)", done.stdout)[1]) - 1 <= values["batch"]["sequence_length"], done.stdout)
    done = runs.tessera("train", made, f"run.output_dir={folder.run('made')}", "run.threads=1", "evaluate.batches=2")
    check("tessera train takes that deck", done.returncode == 0 and "validation loss" in done.stderr, done.stderr)
    check("from-hf: an override goes before it", "steps = 7" in make("--data", text, "run.steps=7").stdout and values_of(made)["run"]["epochs"] == 0)
    done = make("--data", text, "--chat", expect=USAGE)
    check("from-hf --chat of texts says what is missing", "tessera tokenize --chat" in done.stderr, done.stderr)
    done = make("--data", os.path.join(folder.path, "txt"), expect=USAGE)
    check("from-hf --data of a typo names the file and the command", "there is no" in done.stderr and "tessera tokenize" in done.stderr, done.stderr)
    make("--data", text)
    return made


def passes(folder, made):
    """More passes over a file than a person means."""
    for epochs, warns in ((3, False), (11, True)):
        done = runs.tessera("plan", made, f"run.epochs={epochs}.0")
        check(f"plan: {epochs} passes", done.returncode == 0 and ("times; beyond 10 passes" in done.stderr) == warns, done.stderr)
    said = runs.tessera("plan", made, "run.epochs=11.0", "data.epochs=[12]")
    check("plan: data.epochs says that it is meant", said.returncode == 0 and "passes" not in said.stderr, said.stderr)
    done = runs.tessera("train", made, "run.epochs=11.0", f"run.output_dir={folder.run('often')}", "run.threads=1", "batch.global=128", "batch.micro=8", "evaluate.every=0")
    check("train: the same is said at the start", "passes over" in done.stderr and "times; beyond 10 passes" in done.stderr.split("step ")[0], done.stderr)


def adapter_is_foretold(folder):
    """Adapters that PEFT has no name for: said as training starts, in the words of the refusal."""
    lora = {**MODEL, **GPT2, "lora__rank": 2, "batch__sequence_length": 32}
    done = folder.train("parts", 1, **lora, lora__targets='["wq"]')
    warned = re.search(r"consolidate --adapter` will refuse this run: (.*?)\. Without", done.stderr)
    check("a start says that --adapter will be refused", bool(warned), done.stderr)
    out = runs.tessera("consolidate", folder.latest("parts"), os.path.join(folder.path, "parts-adapter"), "--adapter")
    check("and it is, for that reason", out.returncode == USAGE and bool(warned) and warned[1] in out.stderr, out.stderr)
    done = folder.train("whole", 1, **lora, lora__targets='["wo"]')
    check("nothing is said of others", "consolidate --adapter" not in done.stderr, done.stderr)
    out = runs.tessera("consolidate", folder.latest("whole"), os.path.join(folder.path, "whole-adapter"), "--adapter")
    check("which are written", out.returncode == 0, out.stderr)


def commands_below(path=()):
    """(path, options, places with fixed words) of each command, as --help shows them."""
    text = runs.tessera(*path, "--help").stdout
    options = set(re.findall(r"^ +(?:-\w,\s*)?(--[\w-]+)", text, re.M)) | set(re.findall(r"^ +--[\w-]+,(--[\w-]+)", text, re.M))
    found = [(path, options)]
    for block in re.findall(r"^S[Uu][Bb][Cc][Oo][Mm][Mm][Aa][Nn][Dd][Ss]:\n((?:^ .*\n|^\n)+)", text, re.M):
        for name in re.findall(r"^  (\w[\w-]*)", block, re.M):
            found += commands_below((*path, name))
    return found


def offered(script, words):
    """What bash completes behind these words, of which the last is unfinished."""
    ask = (f"source {script}; COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tessera; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    done = subprocess.run(["bash", "--norc", "-c", ask], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    return set(done.stdout.split()), done.stderr


def fish_offers(script, line):
    """What fish offers behind the words of a line: word to description."""
    command = ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return dict(row.partition("\t")[::2] for row in done.stdout.splitlines()), done.stderr


def zsh_offers(script, line, wanted):
    """What zsh lists behind a line, at a terminal of its own, until the words are there that it should list."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="dumb", COLUMNS="200", LINES="200")
        os.execvp("zsh", ["zsh", "-f", "-i"])
    shown = b""

    def read_until(*words, seconds=60):
        nonlocal shown
        until = time.monotonic() + seconds
        while not all(word in shown for word in words) and time.monotonic() < until:
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 65536)
        return all(word in shown for word in words)

    try:
        # The terminal shows what is typed, too: the mark is not typed as it is printed.
        os.write(terminal, f"PROMPT=; LISTMAX=10000; autoload -Uz compinit; compinit -u -D; source {script}; print rea''dy\n".encode())
        read_until(b"ready\r")
        shown = b""
        os.write(terminal, line.encode())
        for _ in range(12):  # one that comes before the shell has taken over the terminal is lost
            os.write(terminal, b"\x04")  # lists what there is
            if read_until(*(word.encode() for word in wanted), seconds=5):
                break
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    return shown.decode(errors="replace")


def tried_in_shells(folder):
    """What zsh and fish themselves offer, where they are installed."""
    cases = [("tessera deck ", {"check", "from-hf", "import", "print"}), ("tessera tokenize --format j", {"json", "jsonl"}),
             ("tessera train a.toml zero.stag", {"zero.stage="}), ("tessera train a.toml --res", {"--resume"})]
    for shell, offers in (("fish", lambda script, line, _: fish_offers(script, line)[0]), ("zsh", zsh_offers)):
        if not shutil.which(shell):
            continue
        script = os.path.join(folder.path, "tessera." + shell)
        with open(script, "w") as file:
            file.write(runs.tessera("completion", shell).stdout)
        for line, wanted in cases:
            shown = offers(script, line, wanted)
            check(f"{shell} offers {line.split(' ', 1)[1]}", all(word in shown for word in wanted), str(shown))
    if shutil.which("fish"):
        words, error = fish_offers(os.path.join(folder.path, "tessera.fish"), "tessera ")
        cut = [text for text in words.values() if text and text.endswith((" a", " or", "argumen", "Hugg"))]
        whole = not error and not cut and "'s" in words.get("generate", "")
        check("fish describes commands in whole words", whole, f"{cut} {words.get('generate')} {error}")


def completion(folder):
    script = os.path.join(folder.path, "tessera.bash")
    with open(script, "w") as file:
        file.write(runs.tessera("completion", "bash").stdout)
    every = commands_below()
    check("--help lists the commands", len(every) > 20 and (("deck", "check"), True) in [(path, bool(options)) for path, options in every], str(every))
    for path, options in every:
        below = {other[len(path)] for other, _ in every if len(other) == len(path) + 1 and other[:len(path)] == path}
        words, error = offered(script, ["tessera", *path, ""])
        check(f"bash offers commands: tessera {' '.join(path)}", below <= words and not error, f"{below - words} {error}")
        words, error = offered(script, ["tessera", *path, "--"])
        check(f"bash offers options: tessera {' '.join(path)}", options <= words and bool(options) and not error, f"{options - words} {error}")
    check("bash offers fixed words", offered(script, ["tessera", "tokenize", "--format", "j"])[0] == {"json", "jsonl"})
    check("bash offers shells", offered(script, ["tessera", "completion", ""])[0] >= {"bash", "zsh", "fish"})
    check("bash offers keys", offered(script, ["tessera", "train", "a.toml", "zero.st"])[0] == {"zero.stage="}, str(offered(script, ["tessera", "train", "a.toml", "zero.st"])))
    check("bash offers options behind a deck", offered(script, ["tessera", "train", "a.toml", "--res"])[0] == {"--resume"})
    tried_in_shells(folder)
    for shell in ("zsh", "fish"):
        text = runs.tessera("completion", shell).stdout
        lacking = [option for path, options in every for option in options if option not in text and f"-l {option[2:]}" not in text]
        check(f"{shell}: every option is in it", not lacking and all(path[-1] in text for path, _ in every if path), str(lacking))
        if shutil.which(shell):
            done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True, timeout=60)
            check(f"{shell} reads it", done.returncode == 0, done.stderr)
    done = runs.tessera("completion", "bsh")
    check("a shell that is not there", done.returncode == USAGE and "bash" in done.stderr, done.stderr)
    return every


def manual(folder, every):
    text = runs.tessera("completion", "man").stdout
    plain = text.replace("\\-", "-").replace("\\e", "\\")
    lacking = [f"{' '.join(path)} {option}" for path, options in every for option in options if option not in plain]
    check("the manual page has every command and option", not lacking and all(f".SS tessera {' '.join(path)}\n" in plain for path, _ in every if path), str(lacking))
    page = os.path.join(folder.path, "tessera.1")
    with open(page, "w") as file:
        file.write(text)
    for reader in (["mandoc", "-T", "lint", "-W", "error", page], ["groff", "-man", "-Tutf8", "-ww", "-z", page]):
        if shutil.which(reader[0]):
            done = subprocess.run(reader, capture_output=True, text=True, timeout=60)
            check(f"{reader[0]} reads it", done.returncode == 0 and not done.stderr, done.stdout + done.stderr)


def words_of_others():
    for theirs, ours in (("export", "consolidate"), ("eval", "evaluate")):
        done = runs.tessera(theirs, "runs/x", "out")
        check(f"tessera {theirs} means {ours}", done.returncode == USAGE and f"did you mean {ours}?" in done.stderr, done.stderr)


def main():
    with runs.Folder() as folder:
        manual(folder, completion(folder))
        words_of_others()
        token_files(folder)
        made = decks(folder, model_in(folder))
        passes(folder, made)
        adapter_is_foretold(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
