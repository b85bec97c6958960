#!/usr/bin/env python3
"""Tests of slurm/*.sh without Slurm: what ranks are given, and when a job queues itself again, with programs that only pretend to be srun, scontrol and
tessera. validation/slurm has the same scripts on a cluster."""

import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))

# Gives a step the variables that Slurm's own would: all, or those that SLURM_EXPORT_ENV names, where --export says nothing else.
SRUN = """export=${SLURM_EXPORT_ENV:-ALL}
while [[ $1 == --* ]]; do case $1 in --export=*) export=${1#*=} ;; esac; shift; done
kept=(PATH="$PATH")
if [ "$export" != NONE ] && [ "$export" != ALL ]; then
  for name in ${export//,/ }; do [ -z "${!name+set}" ] || kept+=("$name=${!name}"); done
fi
[ "$export" = ALL ] || exec env -i "${kept[@]}" "$@"
exec "$@"
"""
SCONTROL = """case $1 in
  show) echo "JobId=7 JobState=RUNNING Reason=None Restarts=${SLURM_RESTART_COUNT:-0} TimeLimit=1-00:00:00 StdOut=$LOG"
    echo "   Command=$SCRIPT" ;;
  requeue) echo requeued >>"$DONE" ;;
esac
"""
# As ranks end: "75 40" reports status and step, "- 40" tells of its save and is killed, "-" is killed before it has saved.
TESSERA = """read -r status step <"$(dirname "$0")/how"
echo "${TESSERA_STATUS_FILE:-nowhere} ${SITE_VARIABLE:-nothing}" >"$(dirname "$0")/given"
if [ -n "${TESSERA_STATUS_FILE:-}" ]; then
  [ -z "$step" ] || echo "saved $step" >"$TESSERA_STATUS_FILE.saved"
  [ "$status" = - ] || printf 'status %s\\nsaved %s\\n' "$status" "${step:-nothing}" >"$TESSERA_STATUS_FILE"
fi
kill -KILL $$
"""


class JobScripts(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        shutil.copytree(os.path.join(ROOT, "slurm"), self.path("slurm"))
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "tessera": TESSERA}.items():
            with open(self.path(name), "w") as file:
                file.write(f"#!/usr/bin/env bash\n{text}")
            os.chmod(self.path(name), 0o755)
        self.write("deck.toml", "")
        self.write("job.log", "")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def start(self, how, count=0, script="train_70b.sh", arguments=(), **environment):
        """One start of the job, whose ranks end as `how` says. Returns what it printed, and whether it queued itself again."""
        self.write("how", how + "\n")
        self.write("done", "")
        path = self.path(os.path.join("slurm", script))
        done = subprocess.run(["bash", path, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, env={
            "PATH": f"{self.folder}:{os.environ['PATH']}", "TESSERA": self.path("tessera"), "DECK": "deck.toml", "LOG": self.path("job.log"), "SCRIPT": path,
            "DONE": self.path("done"), "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1", "SLURM_RESTART_COUNT": str(count), **environment})
        return done.stdout, self.read("done") == "requeued\n"

    def test_ranks_have_the_variables_of_the_script(self):
        self.write("slurm/site.sh", "export SITE_VARIABLE=of-the-site\n")
        os.makedirs(self.path("run/checkpoints/latest"))
        scripts = {"train_70b.sh": (), "train_70b_offload.sh": (), "train_175b_3d.sh": (), "consolidate.sh": ("run", "out")}
        for script, arguments in scripts.items():
            for export in ({}, {"SLURM_EXPORT_ENV": "NONE"}, {"SLURM_EXPORT_ENV": "DECK,TESSERA"}):
                with self.subTest(script=script, **export):
                    text, _ = self.start("75 5", script=script, arguments=arguments, **export)
                    self.assertEqual(self.read("given"), f"{self.path('job.status')} of-the-site\n", text)

    def test_a_job_is_given_up_when_starts_come_no_further(self):
        rows = {  # how each start ends, and whether it is queued again after it
            "saves every time": [("75 10", True), ("75 20", True), ("75 30", True), ("75 40", True), ("75 50", True)],
            "is killed after a save": [("- 10", True), ("- 20", True), ("- 30", True), ("- 40", True)],
            "is killed before a save": [("-", True), ("-", True), ("-", False)],
            "is lost before a save": [("76", True), ("76", True), ("76", False)],
            "saves the same step": [("75 10", True), ("75 10", True), ("75 10", True), ("75 10", False)],
            "a newer step begins the count again": [("75 10", True), ("76", True), ("-", True), ("75 20", True), ("76", True), ("76", True), ("76", False)],
            "an older step is where it goes on from": [("75 90", True), ("75 10", True), ("75 20", True), ("76", True), ("76", True), ("76", False)],
            "what is given up begins anew": [("76", True), ("76", True), ("76", False), ("76", True), ("76", True), ("76", False)],
        }
        for name, starts in rows.items():
            if os.path.exists(self.path("job.ends")):
                os.remove(self.path("job.ends"))
            for count, (how, again) in enumerate(starts):
                with self.subTest(name, start=count + 1, how=how):
                    text, queued = self.start(how, count)
                    self.assertEqual(queued, again, text)
                    self.assertEqual("starts saved no newer step, so the job is not queued again" in text, not again, text)
                    self.assertEqual(sorted(n for n in os.listdir(self.folder) if n.startswith("job.")), ["job.ends", "job.log"])

    def test_a_fault_is_not_queued_again(self):
        text, queued = self.start("2")
        self.assertFalse(queued, text)
        self.assertIn("tessera ended with status 2", text)


if __name__ == "__main__":
    unittest.main()
