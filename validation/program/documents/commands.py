#!/usr/bin/env python3
"""Every command line of README, docs and the program's --help runs, in a scratch folder and small, or is checked without running where it needs what is not
there. RULES says which, and why; a line that no rule takes is a fault, so that no page can hold what nobody tried. And options that pages name inside sentences exist.
    commands.py [--all] [--show]
Of runs of training a sample is started, drawn by TESSERA_TEST_DRAW (of the commit); with --all, or TESSERA_TEST_FULL in the environment, all are."""
import dataclasses
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile

import pages

TESSERA = os.path.abspath(os.environ.get("TESSERA", "build/host/tessera"))
MPIEXEC = os.environ.get("MPIEXEC", "mpiexec")
CACHE = os.environ.get("TESSERA_CACHE") or os.path.expanduser("~/.cache/tessera")
ALL = "--all" in sys.argv or bool(os.environ.get("TESSERA_TEST_FULL"))
SHOW = "--show" in sys.argv
DRAWN_RUNS = 10
HANG_SECONDS = 600
PROGRAMS = ("tessera", "build/host/tessera", "$HOME/tessera/bin/tessera")

# Words of pages that stand for a name of the reader's.
STAND_INS = [(r"^DECK$", "inputs/quickstart.toml"), (r"\b(RUN_DIR|runs/NAME)\b", "runs/quickstart"), (r"^OUT$", "out"), (r"^STEP$", "runs/quickstart/checkpoints/latest"),
             (r"^CHECKPOINT$", "runs/quickstart/checkpoints/latest"), (r"\bPREFIX/share/tessera/", ""), (r"^\$HOME/tessera/bin/tessera$", "tessera"),
             (r"/local\d?(?=$|:)", "local"), (r"\$JOB\b", "7"), (r"^inputs/mine.toml$", "mine.toml"), (r"step-00000200", "step-00000012")]
# A model and a batch that take milliseconds. What a deck of a Hugging Face model says of its model stays.
SMALL_MODEL = ["model.layers=2", "model.width=64", "model.heads=4", "model.kv_heads=2", "model.ff_width=96", "model.vocab=257"]
SMALL_BATCH = ["batch.global=4", "batch.micro=1", "batch.sequence_length=32", "run.steps=2", "run.threads=1", "run.device=host", "learning_rate.warmup_steps=1",
               "evaluate.every=2", "evaluate.batches=1", "checkpoint.every=0", "run.overwrite=true"]
faults = []


def fault(line, text, output=""):
    faults.append(f"{line}: {text}" + "".join("\n     | " + row for row in output.strip().splitlines()[-12:]))


def run(words, line, expect=0, output="", **options):
    """Runs in the scratch folder; what goes to standard output goes to the file that the line names. Another status than expected is a fault."""
    try:
        done = subprocess.run(words, **{"stdin": subprocess.DEVNULL} | options, capture_output=True, text=True, errors="replace", timeout=HANG_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        fault(line, f"cannot be run: {error}")
        return ""
    if done.returncode != expect:
        fault(line, f"status {done.returncode}, expected {expect}: {' '.join(words)}", done.stdout[-1000:] + done.stderr[-3000:])
    elif output and not output.endswith(".md"):
        with open(output, "w") as file:
            file.write(done.stdout)
    return done.stdout + done.stderr


def stand_in(word):
    for pattern, name in STAND_INS:
        word = re.sub(pattern, name, word)
    return word


class Help:
    """What `tessera ... --help` says: sub-commands and options."""

    def __init__(self):
        self.known = {}

    def of(self, *command):
        if command not in self.known:
            done = subprocess.run([TESSERA, *command, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
            self.known[command] = done.stdout if done.returncode == 0 else ""
        return self.known[command]

    def options(self, *command):
        rows = [re.split(r"\s{2,}|\s(?=[A-Z]{3})", row.strip())[0] for row in self.of(*command).split("\n") if re.match(r"  -", row)]
        return {option for row in rows for option in re.findall(r"--?[a-z][a-z-]*", row)}

    def check(self, line, words):
        """words[0] is the program: its sub-commands and options are there. The sub-command."""
        words = words[1:]
        command = []
        while words and re.fullmatch(r"[a-z][a-z-]*", words[0]) and re.search(rf"(?m)^  {words[0]} ", subcommands(self.of(*command))):
            command.append(words.pop(0))
        if not command and words and not words[0].startswith("-") and words[0] != "COMMAND":
            fault(line, f"tessera has no command {words[0]}")
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in self.options(*command):
                fault(line, f"tessera {' '.join(command)} has no option {option}")
        return command


def subcommands(text):
    return text.partition("Subcommands:")[2].partition("\n\n")[0]


HELP = Help()


@dataclasses.dataclass
class Launch:
    """tessera as a line starts it: ranks of mpiexec or srun, and its words with what stands for the reader's names."""
    command: pages.Command
    ranks: int
    words: list

    @property
    def overrides(self):
        return [word for word in self.words[2:] if re.match(r"[a-z_.]+=", word)]

    def value(self, key, otherwise):
        found = [word.partition("=")[2] for word in self.overrides if word.startswith(key + "=")]
        return found[-1] if found else otherwise

    def start(self, ranks, words):
        return [MPIEXEC, "-n", str(ranks), "tessera", *words] if ranks > 1 or self.command.words[0] == "mpiexec" else ["tessera", *words]


def launch_of(command):
    words, ranks = list(command.words), 1
    if words[0] in ("mpiexec", "srun"):
        at = next((n for n, word in enumerate(words) if word in PROGRAMS), None)
        if at is None:
            return None
        if "-n" in words[:at]:
            ranks = int(words[words.index("-n") + 1])
        words = words[at:]
    return Launch(command, ranks, [stand_in(word) for word in words]) if words[0] in PROGRAMS or words[0] == "tessera" else None


def deck_of(launch):
    return next((word for word in launch.words[2:] if word.endswith(".toml")), None)


# What rules do. Each takes the command, and its launch where it starts tessera.

def train(command, launch):
    """The line as it stands is checked by `deck check`; it runs small, on as few ranks as its axes need, where it is drawn."""
    HELP.check(command.line, launch.words)
    deck = deck_of(launch)
    if deck is None:
        return fault(command.line, "names no deck")
    run(["tessera", "deck", "check", deck, "--ranks", str(launch.ranks), *launch.overrides, *(FOREIGN_DATA if deck == "llama.toml" else [])], command.line)
    RUNS.append((command, launch, deck))
    return None


def train_small(command, launch, deck, number):
    text = open(deck).read()
    axes = {axis: int(launch.value(f"mesh.{axis}", (re.findall(rf"(?m)^{axis} = (\d+)", text) or [1])[-1])) for axis in ("tp", "cp", "ep", "pp", "replicate")}
    ranks = max(min(launch.ranks, 2), axes["tp"] * axes["cp"] * axes["ep"] * axes["pp"] * axes["replicate"])
    own_model = "init = " in text and 'init = ""' not in text
    small = list(SMALL_BATCH)
    if deck == "llama.toml":
        small += FOREIGN_DATA
    else:
        small += SMALL_MODEL
        small += ["model.layers=4"] if launch.value("pipeline.schedule", "") == "interleaved" else []
        small += ["model.expert_ff_width=40"] if re.search(r"(?m)^experts = [2-9]", text) else []
        if own_model:  # the model and the conversations of a fine-tuning are its user's
            small += ['run.init=""', "data.packing=concatenate", "data.document_mask=false"]
        if not launch.value("data.train", ""):
            small += ["data.train=data/train.h5", "data.validation=data/val.h5"]
    if launch.value("preference.objective", ""):  # a pair is longer than other sequences here
        small += ["batch.sequence_length=256"]
    if launch.value("data.packing", "") == "documents":
        small += ["data.validation=data/val.h5"]
    if launch.value("checkpoint.neighbour_every", ""):  # of which there is one here
        small += ["checkpoint.allow_same_node=true"]
    # Not at a port that somebody has, nor for strangers.
    small += [f"{key}={here}" for key, here in (("metrics.prometheus", "0"), ("metrics.prometheus_folder", ".")) if launch.value(key, "")]
    if launch.value("run.machine", ""):  # the profile that lies here is one of GPUs
        small += ['run.machine=""']
    if step := launch.value("run.trace", "14" if launch.value("run.resume", "") else ""):
        small += [f"run.steps={step.rpartition('.')[2]}"]
    words = [word for word in launch.words[1:] if word != "KEY=VALUE"]  # whichever somebody tries
    run(launch.start(ranks, [*words, *small, f"run.output_dir=runs/try-{number}"]), command.line)


def supervise(command, launch):
    """Its options are checked, and the deck on its ranks."""
    at = launch.words.index("--")
    HELP.check(command.line, launch.words[:at])
    HELP.check(command.line, ["tessera", *launch.words[at + 1:]])
    ranks = launch.words[launch.words.index("-n") + 1]
    run(["tessera", "deck", "check", launch.words[at + 2], "--ranks", ranks, *(word for word in launch.overrides if "=" in word)], command.line)


def plan(command, launch):
    """It runs as it stands; a search runs for a small model and few ranks."""
    HELP.check(command.line, launch.words)
    words = launch.words[1:]
    if "--recommend" in words or "--sweep" in words:
        words = ["inputs/gpt2_124m.toml" if word.endswith(".toml") and not word.startswith("inputs/machines") and words[n - 1] != "--write" else
                 re.sub(r"^[\d,]+$", "2,4" if "," in word else "4", word) if words[n - 1] in ("--gpus", "--ranks", "--sweep") else
                 "1e8" if words[n - 1] == "--parameters" else word for n, word in enumerate(words)]
    # A block may go on with what the program answers.
    refused = any(line.text.startswith("tessera: error:") for line in following(command.line))
    run(["tessera", *words], command.line, expect=5 if refused else 0, output=command.output)


def as_it_stands(command, launch):
    """It runs as it stands, on two ranks at most; tokens go to a folder of their own, since other lines read data/."""
    HELP.check(command.line, launch.words)
    words = launch.words[1:]
    if words[0] == "tokenize":
        words = ["tokens" if word == "data/" else word for word in words]
        if "-" in words:  # the end of a pipe
            run(["tessera", *words], command.line, stdin=open("docs.jsonl"))
            return
    if words[0] == "consolidate":  # exports of other models stand in no folder together
        shutil.rmtree(words[2].rstrip("/"), ignore_errors=True)
    if words[0] in ("generate", "evaluate") and "--device" not in words:
        words += ["--device", "host"]  # an emulated GPU takes minutes
    run(launch.start(min(launch.ranks, 2), words), command.line, output=command.output)


def page(command, launch):
    """It runs as it stands; a build without dygraphs says what a page would hold."""
    HELP.check(command.line, launch.words)
    drawn = subprocess.run(["tessera", *launch.words[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_SECONDS)
    if drawn.returncode:
        run(["tessera", *launch.words[1:], *(["--json"] if "libjs-dygraphs" in drawn.stderr else [])], command.line)


def with_tokenizer(command, launch):
    """It runs where Python has the packages; else its options are checked."""
    HELP.check(command.line, launch.words)
    if TOKENIZERS:
        as_it_stands(command, launch)


def measure(command, launch):
    """It takes 20 s of all cores: its options are checked, and it runs with --all. A profile of it is planned with, which stands in."""
    HELP.check(command.line, launch.words)
    if ALL:
        as_it_stands(command, launch)
    else:
        shutil.copyfile("inputs/machines/h100_8.toml", command.output)


def options_alone(command, launch):
    """It needs another machine: its options and keys are checked."""
    HELP.check(command.line, launch.words)
    deck = deck_of(launch)
    if launch.words[1] == "train" and deck:
        run(["tessera", "deck", "check", deck, "--ranks", str(launch.ranks), *launch.overrides], command.line)


def sbatch(command, _):
    """There is no Slurm: the script is there and parses, and what follows it is checked as the keys or options of what it starts."""
    words = [stand_in(word) for word in command.words[1:]]
    at = next((n for n, word in enumerate(words) if not word.startswith("-")), None)
    if at is None or not os.path.exists(words[at]):
        return fault(command.line, "names no job script that is here")
    script, after = words[at], words[at + 1:]
    run(["bash", "-n", script], command.line)
    text = open(script).read()
    if script.endswith(("preflight.sh", "sweep.sh")):
        return None  # a command of its own, or a file of overrides that is not here
    if script.endswith("consolidate.sh"):
        HELP.check(command.line, ["tessera", "consolidate", *after])
        if len(after) < 2:
            fault(command.line, "consolidate.sh takes a run and a folder")
        return None
    if script.endswith("/train.sh"):  # for any deck, whose size stands on the line
        sizes = {word.partition("=")[0]: int(word.partition("=")[2]) for word in words[:at] if re.match(r"--(nodes|ntasks-per-node)=", word)}
        run(["tessera", "deck", "check", after[0], "--ranks", str(sizes.get("--nodes", 1) * sizes.get("--ntasks-per-node", 1)), *after[1:]], command.line)
        return None
    deck = stand_in(command.variables.get("DECK", "")) or re.findall(r"inputs/\w+\.toml", re.sub(r"(?m)^#.*", "", text) or text)[0]
    nodes = next((word.partition("=")[2] for word in words[:at] if word.startswith("--nodes=")), re.findall(r"#SBATCH --nodes=(\d+)", text)[0])
    tasks = re.findall(r"#SBATCH --ntasks-per-node=(\d+)", text)[0]
    run(["tessera", "deck", "check", deck, "--ranks", str(int(tasks) * int(nodes)), *after], command.line)
    return None


def qsub(command, _):
    """There is no PBS: the script is there and parses; deck and overrides are checked on the ranks of its nodes."""
    words = [stand_in(word) for word in command.words[1:]]
    if not os.path.exists(words[-1]):
        return fault(command.line, "names no job script that is here")
    run(["bash", "-n", words[-1]], command.line)
    given = dict(pair.partition("=")[::2] for option, value in zip(words, words[1:]) if option == "-v" for pair in value.split(","))
    given.update({name: command.variables[name] for name, value in given.items() if not value and name in command.variables})
    nodes = given.get("TESSERA_NODES") or next((re.match(r"select=(\d+)", word)[1] for word in words if word.startswith("select=")), "8")
    site = pages.read(f"pbs/site/{given['TESSERA_SITE']}.sh") if "TESSERA_SITE" in given else ""
    ranks = int(nodes) * int(next(iter(re.findall(r"TESSERA_PPN:-(\d+)", site)), "8"))
    run(["tessera", "deck", "check", given["DECK"], "--ranks", str(ranks), *given.get("OVERRIDES", "").split()], command.line)
    return None


def local(command, _):
    """The script is there; it is tested with ranks elsewhere, and deck and overrides are checked here."""
    ranks, deck, *after = command.words[1:]
    run(["bash", "-n", command.words[0]], command.line)
    run(["tessera", "deck", "check", deck, "--ranks", ranks, *after], command.line)


def script(command, _):
    """It installs, builds or takes minutes: the script is there, can be started, and says its options."""
    path = os.path.join(pages.ROOT, command.words[0])
    if not os.access(path, os.X_OK):
        return fault(command.line, f"{command.words[0]} is no program")
    text = open(path, errors="replace").read()
    for word in command.words[1:]:
        if word.startswith("--") and word.partition("=")[0] not in text:
            fault(command.line, f"{command.words[0]} has no option {word}")
    return None


def plot(command, _):
    """It runs; without matplotlib it says its summary."""
    words = [stand_in(word) for word in command.words]
    for end in ([], ["--json"]) if not MATPLOTLIB or not ALL else ([],):
        if not end and not MATPLOTLIB:
            continue
        run([os.path.join(pages.ROOT, words[0]), *words[1:], *end], command.line)
        break


def cmake(command, _):
    """It configures and builds: its presets and options are there."""
    words = command.words[1:]
    presets = pages.read("CMakePresets.json")
    files = "\n".join(pages.read(path) for path in ("CMakeLists.txt", "scripts/cmake/dependencies.cmake", "scripts/cmake/targets.cmake"))
    for n, word in enumerate(words):
        if words[n - 1] == "--preset" and f'"name": "{word}"' not in presets:
            fault(command.line, f"there is no preset {word}")
        if words[n - 1] in ("--build", "--install") and not re.fullmatch(r"build/\w+", word):
            fault(command.line, f"{word} is no folder of a preset")
        if (option := re.match(r"-D(TESSERA_\w+)", word)) and option[1] not in files:
            fault(command.line, f"there is no option {option[1]}")


def named_files(command, _):
    """It belongs to another program: the files of this project that it names are there."""
    for word in command.words:
        if re.match(r"(scripts|inputs|slurm|validation)/", word) and not os.path.exists(os.path.join(pages.ROOT, word)):
            fault(command.line, f"{word} is not there")
    launch = launch_of(pages.Command(command.line, {}, command.words[next((n for n, word in enumerate(command.words) if word == "tessera"), len(command.words)):] or ["-"]))
    if launch and len(launch.words) > 1:
        HELP.check(command.line, launch.words)


@dataclasses.dataclass
class Rule:
    pattern: str  # of the command's words, after mpiexec or srun with its options
    action: object
    why: str


RULES = [
    Rule(r"srun .*tessera |srun .*apptainer", named_files, "there is no second node"),
    Rule(r"tessera supervise ", supervise, "faults.supervise runs it, with ranks of this machine and with pretended nodes"),
    Rule(r"tessera train .*metrics\.(wandb|mlflow)=", options_alone, "asks a service by its package; resume.trackers has packages that pretend"),
    Rule(r"tessera train ", train, "trains the quickstart's model, cut down"),
    Rule(r"tessera resume ", options_alone, "faults.run_folders goes on with a run by its folder"),
    Rule(r"tessera plan ", plan, "needs no GPU and no second rank"),
    Rule(r"tessera report .*--measure", measure, "takes 20 s of all cores"),
    Rule(r"tessera preflight ", options_alone, "whom it names is the machine's; validation/program/commands/preflight_test.cpp starts it"),
    Rule(r"tessera runs report .*--machine", options_alone, "wants a profile of the machine that the run was on; pages.report has one"),
    Rule(r"tessera runs report ", page, "takes milliseconds"),
    Rule(r"tessera tokenize .*(--tokenizer models/|--train-bpe|\.parquet|--chat)", with_tokenizer, "asks Python's tokenizers, jinja2 or pyarrow"),
    Rule(r"tessera generate .*checkpoints/best", options_alone, "no run here keeps its best; resume.best asks one that does"),
    Rule(r"tessera generate .*--watch", options_alone, "resume.watch talks to a run"),
    Rule(r"tessera generate .*(runs/ft|runs/llama)", with_tokenizer, "asks Python's tokenizers"),
    Rule(r"tessera (--version|version|report|tokenize|import|consolidate|generate|evaluate|inspect|verify|runs|deck|slurm|ends|completion)\b", as_it_stands, "takes milliseconds"),
    Rule(r"sbatch ", sbatch, "there is no Slurm; label slurm runs the scripts on a cluster of its own"),
    Rule(r"qsub ", qsub, "there is no PBS; pbs_and_local runs the script against a stand-in"),
    Rule(r"slurm/local.sh ", local, "pbs_and_local runs it"),
    Rule(r"scripts/plot_run ", plot, "draws what the runs here left"),
    Rule(r"scripts/(quickstart|setup|test|syntax|release|gpu_check|bundle)\b", script, "installs and builds for minutes, or wants a GPU; CI runs all but gpu_check"),
    Rule(r"cmake ", cmake, "builds for minutes; CI does"),
    Rule(r"source ", named_files, "belongs to the shell; commands.first_hour has bash complete every command"),
    Rule(r"(module|conda|spack|apptainer|export|jq|zcat|tensorboard|curl|ssh|prometheus|prometheus-node-exporter) ", named_files, "belongs to another program, which is not here"),
    Rule(r"(\$PEER|validation/parity/peer_python) ", named_files, "asks torch and transformers; label peer runs it"),
]
# Words that begin a command: a line of code that begins with one must have a rule.
FIRST_WORDS = ("tessera", "mpiexec", "srun", "sbatch", "qsub", "scripts/", "slurm/", "build/", "validation/", "cmake", "ctest", "module", "conda", "spack", "apptainer", "export", "jq", "zcat", "source", "$")


def following(line):
    """The lines of the same block of a page after this one."""
    if not os.path.exists(os.path.join(pages.ROOT, line.page)):
        return []
    for _, lines in pages.blocks_of(line.page, pages.read(line.page)):
        numbers = [one.number for one in lines]
        if line.number in numbers:
            return lines[numbers.index(line.number) + 1:]
    return []


def is_command(text):
    text = re.sub(r"^([A-Z_]+=(\$\()?\S*\s+)+", "", text.strip()) if re.match(r"[A-Z_]+=", text.strip()) else text.strip()
    first = text.partition(" ")[0]
    return any(first == word or (word[-1] in "/$" and first.startswith(word)) for word in FIRST_WORDS)


def commands():
    """Every command of every block. Where one line of a block is a command, all of them are, but for comments and for what a program answers."""
    for language, lines in pages.blocks():
        if language not in ("", "sh", "bash"):
            continue
        shell = any(is_command(line.text) or re.match(r"[A-Z_]+=\$\(", line.text) for line in lines)
        answer = False
        for line in lines if shell else []:
            answer = answer or re.match(r"\w+: (error|warning): ", line.text) is not None  # and all after it
            if answer or line.text.startswith("#") or re.fullmatch(r"[A-Z]+=\S+", line.text):
                continue
            yield from pages.commands_of(line)
    shown = list(examples())
    if len(shown) < 30:
        faults.append(f"only {len(shown)} examples were found in --help")
    yield from shown


def examples(*command):
    """What --help of the program and of all its commands shows."""
    text = HELP.of(*command)
    for number, line in enumerate(re.sub(r"(?s)^.*?\nExamples?:\n|\n(?! ).*", "", text.partition("\nExample")[1] + text.partition("\nExample")[2]).split("\n"), 1):
        if line.startswith("  "):
            yield from pages.commands_of(pages.Line(" ".join(("tessera", *command, "--help")), number, line))
    for name in re.findall(r"(?m)^  ([a-z][a-z-]*) ", subcommands(text)):
        yield from examples(*command, name)


def check_outside():
    """A command that stands in no block of code would be tried by nobody."""
    for page in pages.paths():
        text = pages.read(page)
        inside = {line.number for _, lines in pages.blocks_of(page, text) for line in lines}
        for number, line in enumerate(text.split("\n"), 1):
            if number not in inside and not line.startswith("  ") and re.match(r"(mpiexec|srun|sbatch) -|tessera [a-z-]+ [a-zA-Z/.-]+ |scripts/\w+ ", line):
                faults.append(f"{page}:{number}: a command outside of a block of code: indent it by four spaces, or put it between fences")


def make_scratch():
    """What the lines read: decks and scripts of the tree, token files, runs, a model in the form of Hugging Face's, and other programs' configurations."""
    for name in ("inputs", "scripts", "slurm", "pbs"):
        os.symlink(os.path.join(pages.ROOT, name), name)
    for folder in ("bin", "build/host", "data", "runs", "models", "web", "local", "adapter"):
        os.makedirs(folder)
    os.rmdir("adapter")
    os.symlink(TESSERA, "bin/tessera")
    os.symlink(TESSERA, "build/host/tessera")
    os.environ.update(PATH=os.path.abspath("bin") + ":" + os.environ["PATH"], XDG_CACHE_HOME=os.path.abspath("cache"), OMP_WAIT_POLICY="passive")
    words = "in the beginning was a word and the word was with a small model of four letters a line".split()
    random.seed(1)
    text = "\n".join(" ".join(random.choice(words) for _ in range(12)) for _ in range(400)) + "\n"
    files = {"input.txt": text, "corpus.txt": text, "b.txt": text[:2000]}
    for name, make in (("docs.jsonl", lambda t: '{"text": "%s"}'), ("a.jsonl", lambda t: '{"text": "%s"}'), ("pairs.jsonl", lambda t: '{"prompt": "%s", "completion": " yes"}'),
                       ("chat.jsonl", lambda t: '{"messages": [{"role": "user", "content": "%s"}, {"role": "assistant", "content": "a word"}]}'),
                       ("preferences.jsonl", lambda t: '{"prompt": "%s", "chosen": " yes", "rejected": " no"}'),
                       ("questions.jsonl", lambda t: '{"context": "%s", "choices": [" a", " the"], "answer": 0}')):
        files[name] = "".join(make(0) % line[:60] + "\n" for line in text.split("\n")[:12])
    for name, content in files.items():
        with open(name, "w") as out:
            out.write(content)

    def setup(*words, output=""):
        run(["tessera", *words], "the scratch folder", output=output)
        if faults:
            sys.exit("\n".join(faults))

    setup("tokenize", "--tokenizer", "byte", "input.txt", "data", "--validation", "0.2")
    setup("tokenize", "--tokenizer", "byte", "pairs.jsonl", "data/chats")
    for number, name in enumerate(("a", "b", "web", "code", "chat")):
        with open("part.txt", "w") as out:
            out.write(text[100 * number:5000 + 100 * number])
        setup("tokenize", "--tokenizer", "byte", "part.txt", "data/" + name)
        os.rename(f"data/{name}/train.h5", f"data/{name}.h5")
    setup("train", "inputs/quickstart.toml", *SMALL_MODEL, *SMALL_BATCH, "run.steps=12", "run.trace=12", "run.output_dir=runs/quickstart")
    for name in ("a", "b", "70b", "x"):
        os.symlink("quickstart", "runs/" + name)
    # A model with a tokenizer of its own, or where Python has none, of bytes.
    if TOKENIZERS:
        setup("tokenize", "--train-bpe", "300", "corpus.txt", "data/bpe", "--validation", "0.2")
        with open("data/bpe/tokenizer/chat_template.jinja", "w") as out:
            out.write("{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token if message.role == 'assistant' else ' ' }}{% endfor %}"
                      "{% if add_generation_prompt %}assistant: {% endif %}")
        FOREIGN_DATA.append("data.train=data/bpe/train.h5")
        setup("train", "inputs/quickstart.toml", *SMALL_MODEL, "model.vocab=300", *SMALL_BATCH, *FOREIGN_DATA, "data.validation=data/bpe/val.h5", "run.output_dir=runs/model")
    else:
        os.symlink("quickstart", "runs/model")
    setup("consolidate", "runs/model/checkpoints/latest", "models/Llama-3.2-1B")
    for name in ("SmolLM2-135M", "SmolLM2-135M-Instruct", "Llama-3.2-1B-Instruct"):
        os.symlink("Llama-3.2-1B", "models/" + name)
    FOREIGN_DATA.extend(["evaluate.every=0", "batch.global=4", "batch.micro=1", "batch.sequence_length=32", "optimizer.learning_rate=1e-3"])
    setup("deck", "from-hf", "models/Llama-3.2-1B", "data.train=data/train.h5", "run.steps=2000", output="llama.toml")
    for name, keys in (("llama", []), ("lora", ["lora.rank=2"])):
        setup("train", "llama.toml", *SMALL_BATCH, *FOREIGN_DATA, *keys, "run.output_dir=runs/" + name)
    os.symlink("llama", "runs/ft")
    with open("ds_config.json", "w") as out:
        out.write('{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}, '
                  '"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}')
    with open("args.json", "w") as out:
        out.write('{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "bf16": true, "learning_rate": 1e-4, "max_steps": 10, "lr_scheduler_type": "constant", '
                  '"max_grad_norm": 1.0}')
    setup("deck", "import", "ds_config.json", "--model", "llama3-8b", "--ranks", "4", "data.train=data/train.h5", "run.steps=2000", output="mine.toml")
    if PYARROW:
        subprocess.run([PYARROW, "-c", "import pyarrow as a, pyarrow.parquet as p; p.write_table(a.table({'text': ['a word', 'the word']}), 'web/1.parquet')"], check=True)


def python_with(modules):
    for python in (os.path.join(CACHE, "tokenizers", "bin", "python"), "python3"):
        if shutil.which(python) and subprocess.run([python, "-c", f"import {modules}"], capture_output=True).returncode == 0:
            return python
    return ""


FOREIGN_DATA, RUNS = [], []
PYARROW = python_with("pyarrow.parquet")
TOKENIZERS = python_with("tokenizers, jinja2, pyarrow.parquet")
MATPLOTLIB = python_with("matplotlib") or subprocess.run(["/usr/bin/python3", "-c", "import matplotlib"], capture_output=True).returncode == 0


def check_inline():
    """Commands inside sentences: sub-commands and options are there."""
    count = 0
    for page in pages.paths():
        for line, code in pages.inline_code(page):
            if code.startswith("tessera ") and re.match(r"tessera [a-z-]", code):
                count += 1
                HELP.check(line, re.sub(r"[|<>].*|\.\.\.", "", code).split())
            elif re.match(r"scripts/(quickstart|setup|test|gpu_check|bundle|style)\b", code):
                count += 1
                script(pages.Command(line, {}, code.split()), None)
    if count < 30:
        faults.append(f"only {count} commands were found inside sentences")
    return count


def main():
    counts, tried = dict.fromkeys(range(len(RULES)), 0), set()
    with tempfile.TemporaryDirectory(prefix="tessera-documents-") as folder:
        os.chdir(folder)
        make_scratch()
        for command in commands():
            launch = launch_of(command)
            words = "tessera " + " ".join(launch.words[1:]) + " " if launch and command.words[0] != "srun" else command.text().replace("'", "") + " "
            number = next((n for n, rule in enumerate(RULES) if re.match(rule.pattern, words)), None)
            if SHOW:
                print(f"{command.line}: {RULES[number].action.__name__ if number is not None else '?'}: {words}")
            if number is None:
                fault(command.line, f"no rule of commands.py takes this line: {command.text()}")
                continue
            counts[number] += 1
            if (words, command.output) not in tried:
                RULES[number].action(command, launch)
            tried.add((words, command.output))
        drawn = RUNS if ALL else random.Random(int(os.environ.get("TESSERA_TEST_DRAW", "1"))).sample(RUNS, min(DRAWN_RUNS, len(RUNS)))
        for number, (command, launch, deck) in enumerate(drawn):
            train_small(command, launch, deck, number)
        os.chdir("/")
    inline = check_inline()
    check_outside()
    for number, rule in enumerate(RULES):
        print(f"{counts[number]:4} {rule.action.__name__}: {rule.why}")
        if not counts[number]:
            faults.append(f"commands.py: no line is one of the rule {rule.pattern}: take it out")
    print(f"{len(drawn)} of {len(RUNS)} runs were started; {inline} commands inside sentences; python with tokenizers: {'yes' if TOKENIZERS else 'no'}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.1f} s of processor time")
    print("\n".join(faults) if faults else "every command line of README, docs and --help is good")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
