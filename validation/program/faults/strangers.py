#!/usr/bin/env python3
"""A folder that others may write to: somebody has put a link under each name that a run makes, before the run does. What the link leads to stays as
it is; the run takes the name for itself, or refuses by it. docs/saves.md has the table. And what killed starts staged on a node goes."""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

STORAGE = 7
KEYS = {"run__reproducible": True, "run__threads": 1, "batch__global": 2, "run__steps": 3, "run__trace": 2, "checkpoint__every": 1,
        "checkpoint__weights_every": 2, "checkpoint__verify_resume": True, "checkpoint__retries": 0, "checkpoint__neighbour_every": 1, "checkpoint__allow_same_node": True}
# Below the folder of the test, where RUN is the run's. What a run of KEYS leaves must be here, under its name or the one it is first made under.
TAKEN, REFUSED, STANDS = "taken", "refused", "stands"
NAMES = {
    "RUN/run.lock": REFUSED,
    "RUN/deck.toml": REFUSED,  # it is read first
    "RUN/deck.toml.partial": TAKEN,
    "RUN/plan.txt": TAKEN,
    "RUN/plan.txt.partial": TAKEN,
    "RUN/metrics.jsonl": REFUSED,
    "RUN/events.jsonl": REFUSED,
    "RUN/checkpoints": REFUSED,  # a file; a folder may be a link, to another disk
    "RUN/checkpoints/line.json.partial": TAKEN,
    "RUN/checkpoints/latest": REFUSED,  # it is read first
    "RUN/checkpoints/latest.partial": TAKEN,
    "RUN/checkpoints/step-00000001.partial": TAKEN,
    "RUN/neighbours.json.partial": TAKEN,
    "RUN/weights": REFUSED,
    "RUN/weights/latest": TAKEN,
    "RUN/weights/latest.partial": TAKEN,
    "RUN/weights/step-00000002.partial": TAKEN,
    "RUN/trace": REFUSED,
    "RUN/trace/step-00000002": TAKEN,
    "RUN/trace/steps-00000002-00000002.json.partial": TAKEN,
    "train.bin.checked": TAKEN,
    "train.bin.checked.partial": TAKEN,
    "status": STANDS,  # TESSERA_STATUS_FILE: a report is never replaced
    "status.saved": TAKEN,
}
# Names in folders that the run has made new, in place of whatever had their names, and what is renamed into place from the names above.
INSIDE_NEW = ["RUN/checkpoints/step-", "RUN/weights/step-", "RUN/trace/step-"]
RENAMED = ["RUN/checkpoints/line.json", "RUN/trace/steps-00000002-00000002.json"]
PRECIOUS = b"what a stranger's link leads to\n"
check = runs.Checks()


def start(folder, name, **keys):
    done = subprocess.run(folder.command(name, 1, **{**KEYS, "checkpoint__neighbour_folder": folder.path, **keys}), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS,
                          env={**os.environ, "TESSERA_STATUS_FILE": os.path.join(folder.path, "status")})
    return done.returncode, done.stdout + done.stderr


def path_of(folder, run, name):
    return os.path.join(folder.path, name.replace("RUN", run))


class Victim:
    """A file, or a folder with one, and another name of it at `path`."""

    def __init__(self, folder, path, way):
        self.folder = tempfile.mkdtemp(prefix="victim-", dir=folder.path)
        self.file = os.path.join(self.folder, "file")
        with open(self.file, "wb") as out:
            out.write(PRECIOUS)
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.lexists(path):
            os.remove(path)
        if way == "hard link":
            os.link(self.file, path)
        else:
            os.symlink(self.file if way == "link" else self.folder, path)

    def whole(self):
        with open(self.file, "rb") as file:
            return file.read() == PRECIOUS and os.listdir(self.folder) == ["file"]

    def is_there(self):
        return os.path.exists(self.path) and (os.path.samefile(self.path, self.file) or os.path.samefile(self.path, self.folder))


def forget(folder):
    """What stands beside the run's folder, so that the next run makes it again."""
    for name in NAMES:
        if "RUN" not in name and os.path.lexists(path_of(folder, "", name)):
            os.remove(path_of(folder, "", name))


def all_names_are_known(folder):
    status, said = start(folder, "plain")
    check(f"a run without strangers: status {status}", status == 0, said)
    for top, folders, files in os.walk(folder.run("plain")):
        for entry in folders + files:
            name = "RUN" + os.path.join(top, entry)[len(folder.run("plain")):]
            known = name in NAMES or name + ".partial" in NAMES or name in RENAMED or any(name.startswith(inside) for inside in INSIDE_NEW)
            if not known:
                check(f"{name} is in this test's table", False)
    forget(folder)


def names_are_taken(folder):
    for way in ("link", "hard link", "link to a folder"):
        run = "taken-" + way.replace(" ", "-")
        victims = {}
        for name, fate in NAMES.items():
            folders_alone = way == "link to a folder"
            if fate == TAKEN and not (folders_alone and (".json" in name or ".toml" in name or ".checked" in name)):
                victims[name] = Victim(folder, path_of(folder, run, name), way)
        status, said = start(folder, run)
        check(f"{way}: the run takes the names: status {status}", status == 0, said)
        for name, victim in victims.items():
            check(f"{way} at {name}: what it leads to is untouched", victim.whole())
            check(f"{way} at {name}: it is gone", not victim.is_there(), said)
        check(f"{way}: the bits of a run without strangers", runs.same(way, folder.losses(run), folder.losses("plain")) and
              runs.same(way, folder.hashes(run), folder.hashes("plain")))
        forget(folder)


def names_are_refused(folder):
    for name, fate in NAMES.items():
        if fate != REFUSED:
            continue
        for way in ("link", "hard link"):
            run = "refused-" + name.replace("/", "-") + way.replace(" ", "-")
            victim = Victim(folder, path_of(folder, run, name), way)
            status, said = start(folder, run)
            if name in ("RUN/metrics.jsonl", "RUN/events.jsonl") and way == "hard link":  # as in a copy of the folder by hard links: its lines are kept here and there
                check(f"{way} at {name}: the run goes on beside it: status {status}", status == 0, said)
            else:
                check(f"{way} at {name}: is refused by its name: status {status}", 0 < status < 75 and (victim.path in said or victim.folder in said), said)
            check(f"{way} at {name}: what it leads to is untouched", victim.whole())
            forget(folder)


def a_report_stands(folder):
    victim = Victim(folder, path_of(folder, "", "status"), "link")
    status, said = start(folder, "report")
    check("a link for the report: the run is not disturbed", status == 0 and victim.whole(), said)
    forget(folder)


def parts_on_a_node_go(folder):
    """Of a start that was killed, when the next has fewer ranks, another folder for them or none."""
    disk, other = os.path.join(folder.path, "disk"), os.path.join(folder.path, "other")
    os.mkdir(disk)
    os.mkdir(other)
    for name, ranks, keys in (("no-staging", 2, {}), ("fewer-ranks", 1, {"checkpoint__staging": disk}), ("another-folder", 2, {"checkpoint__staging": other})):
        run = folder.start(name, 2, **{**KEYS, **runs.ENDLESS, "checkpoint__staging": disk, "run__trace": 0})
        runs.wait_until(lambda: run.process.poll() is not None or "\nsaved " in run.output(), "a save by way of the node's disk")
        check(f"{name}: was alive until it was killed", run.kill(), run.output())
        left = [os.path.join(top, entry) for top, folders, files in os.walk(disk) for entry in folders]
        check(f"{name}: the ranks left their folders", len([entry for entry in left if "rank-0000" in entry]) >= 2, str(left))
        steps = max(folder.losses(name)) + 2
        done = folder.train(name, ranks, **{**KEYS, **runs.ENDLESS, "run__steps": steps, "run__trace": 0, **keys})
        check(f"{name}: nothing is left", os.listdir(disk) == [] and os.listdir(other) == [], done.stderr)
        shutil.rmtree(disk)
        os.mkdir(disk)


def main():
    with runs.Folder() as folder:
        for part in (all_names_are_known, names_are_taken, names_are_refused, a_report_stands, parts_on_a_node_go):
            part(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
