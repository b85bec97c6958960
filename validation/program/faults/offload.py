#!/usr/bin/env python3
"""Offloaded state in the hands of disks and systems: a model many times too large for the memory that it is given trains with the bits of the run that
had room; bytes that change, calls that fail and disks that stall end a run with the file, the offset and the unit, and the last checkpoint's bits go
on; nothing stays on the disk, and nobody else reads what lies there.
    offload.py [FAULT_DISK_LIBRARY]     without it the cases that need calls to fail are left out"""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

STEPS = 6
COMMON = {"run__reproducible": True, "run__threads": 1, "batch__global": 4, "run__steps": STEPS, "checkpoint__every": 2, "checkpoint__keep": 0,
          "precision__compute": "bf16"}
ALL = {"zero__stage": 3, "zero__offload_optimizer__device": "nvme", "zero__offload_param__device": "nvme", "nvme__block_size": 4096,
       "zero__param_persistence_threshold": 0}
MEMORY, ENVIRONMENT, STORAGE, LOST = 5, 6, 7, 76
LIBRARY = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else None
check = runs.Checks()


def disk_of(folder, name):
    path = os.path.join(folder.path, "disk-" + name)
    os.makedirs(path, exist_ok=True)
    return path


def start(folder, name, ranks=1, expect=0, faults=None, prefix=(), **keys):
    environment = dict(os.environ, **({"LD_PRELOAD": LIBRARY, "FAULT_DISK": faults} if faults else {}))
    disk = disk_of(folder, name)
    command = [*prefix, *folder.command(name, ranks, **{**COMMON, **ALL, "zero__offload_optimizer__nvme_path": disk, **keys})]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS, env=environment)
    check(f"{name}: status {done.returncode}", done.returncode == expect, done.stderr)
    check(f"{name}: nothing is left on the disk", os.listdir(disk) == [], str(os.listdir(disk)))
    return done.stderr


def same_as(folder, reference, name):
    check(f"{name}: the bits of the run that had room", folder.losses(name) == folder.losses(reference) and folder.hashes(name) == folder.hashes(reference))


def larger_than_memory(folder):
    """States of 8 times the kernels' memory, and 3 times the host's."""
    model = {"model__layers": 24, "model__width": 96, "model__ff_width": 288, "model__head_dim": 24, "batch__sequence_length": 4, "model__vocab": 211,
             "zero__prefetch_bucket_size": 0, "zero__max_live_parameters": 0, "zero__sub_group_size": 4096, "kernels__loss_chunk": 4,
             "nvme__queue_depth": 4, "activation__recompute": "full", "activation__offload": "nvme", "precision__gradients": "bf16", "batch__global": 2,
             "zero__offload_optimizer__buffer_count": 2, "run__steps": 2, "zero__reduce_bucket_size": 65536}
    plan = folder.plan(2, "--threads", "1", **{**COMMON, **ALL, **model})
    used = plan["limits"]
    states = plan["parameters"] * 18 // 2  # bf16 copy and gradient, fp32 master, two moments; of two ranks
    print(f"states {states}, device {used['device']['needed']}, host {used['host']['needed']}, nvme {used['nvme']['needed']}")
    check("the states are 8 times what kernels use", states > 8 * used["device"]["needed"], str(used))
    check("and 3 times what the host gives", states > 3 * used["host"]["needed"], str(used))
    # Half of the states: an evaluation without a disk tier has all weights there, and workspace that other processors need less of.
    caps = {"memory__device": f'"{states // 8} B"', "memory__host": f'"{states // 2} B"'}
    start(folder, "small", ranks=2, **{**model, **caps})
    roomy = {**model, "zero__offload_optimizer__device": "none", "zero__offload_param__device": "none", "activation__offload": "none"}
    start(folder, "roomy", ranks=2, **roomy)
    same_as(folder, "roomy", "small")
    evaluations = [subprocess.run([runs.TESSERA, "evaluate", folder.latest(name), "--data", folder.data, "--samples", "2", "--json"], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True) for name in ("roomy", "small")]
    check("its checkpoint is evaluated where there is no disk tier", evaluations[1].returncode == 0, evaluations[1].stderr)
    losses = [re.findall(r'"loss":[^,]*', done.stdout) for done in evaluations]
    check("with the loss of the other", len(losses[0]) == 1 and losses[0] == losses[1], str(losses))
    stderr = start(folder, "refused", ranks=2, expect=MEMORY, **{**roomy, **caps})
    check("without the disk it is refused with what it lacks", "too much" in stderr, stderr)


def spill_files(running, disk):
    """Descriptors of the spill files that a run's ranks have open."""
    found = []
    for pid in running.ranks():
        for entry in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{entry}"
            try:
                if os.readlink(path).startswith(disk + "/"):
                    found.append(path)
            except OSError:
                pass
    return found


def private(folder):
    """Modes, and what others could read: no run of the weights, encrypted."""
    for name, encrypt in (("plain", False), ("hidden", True)):
        disk = disk_of(folder, name)
        keys = {**COMMON, **ALL, **runs.ENDLESS, "zero__offload_optimizer__nvme_path": disk, "nvme__encrypt": encrypt,
                "optimizer__learning_rate": 1e-30}  # the weights stay what the first checkpoint holds
        running = folder.start(name, 1, **keys)
        running.wait_for_step(3)
        files = spill_files(running, disk)
        check(f"{name}: a spill file is open, and has no name", files and os.listdir(disk) == [], str(files))
        check(f"{name}: only its owner may read it", all(os.stat(file).st_mode & 0o777 == 0o600 for file in files))
        with open(files[0], "rb") as spill:
            content = spill.read()
        weights = runs.read_state(folder.latest(name))
        pieces = [value[at:at + 64] for (group, _), (_, value) in weights.items() if group == "master" for at in range(0, len(value) - 64, 4096)]
        pieces = [piece for piece in pieces if len(set(piece)) > 8]
        seen = sum(piece in content for piece in pieces)
        check(f"{name}: {seen} of {len(pieces)} pieces of the weights are seen in it", len(pieces) > 3 and (seen == 0 if encrypt else seen > 0))
        running.kill()
        check(f"{name}: nothing is left after a kill", os.listdir(disk) == [])


def flipped_byte(folder):
    disk = disk_of(folder, "flipped")
    running = folder.start("flipped", 1, **{**COMMON, **ALL, **runs.ENDLESS, "zero__offload_optimizer__nvme_path": disk})
    running.wait_for_step(3)
    for file in spill_files(running, disk):
        size = os.stat(file).st_size
        with open(file, "r+b", buffering=0) as spill:
            for at in range(100, size, 4096):  # one of every block: the next that is read is found
                byte = os.pread(spill.fileno(), 1, at)
                os.pwrite(spill.fileno(), bytes([byte[0] ^ 1]), at)
    status = running.wait()
    output = running.output()
    check("a flipped byte ends the run with status 7", status == STORAGE, f"{status}\n{output[-2000:]}")
    check("and is named with file, offset and unit", re.search(r"spill file: .* byte \d+\b.*(optimizer|layers|embedding|head)", output), output[-2000:])
    check("nothing is left on the disk", os.listdir(disk) == [])


def failing_calls(folder):
    if not LIBRARY:
        return
    stderr = start(folder, "forbidden", faults="EPERM:ring:")
    check("io_uring forbidden: threads, and said", "threads" in stderr and "EPERM" in stderr or "not permitted" in stderr, stderr)
    same_as(folder, "reference", "forbidden")
    for name, faults in (("interrupted", "EINTR:write:/disk-:1:20;EPERM:ring:"), ("short", "SHORT:read:/disk-;SHORT:write:/disk-")):
        start(folder, name, faults=faults)
        same_as(folder, "reference", name)
    start(folder, "locked", prefix=("prlimit", "--memlock=65536"))
    same_as(folder, "reference", "locked")
    for name, faults, words in (("broken-write", "EIO:write:/disk-:400", "Input/output error"), ("broken-read", "EIO:read:/disk-:200", "Input/output error"),
                                ("full", "ENOSPC:reserve:/disk-", "No space left")):
        stderr = start(folder, name, faults=faults, expect=STORAGE)
        check(f"{name}: file and reason", words in stderr and "/disk-" + name in stderr, stderr)
        start(folder, name)
        same_as(folder, "reference", name)


def stalled(folder):
    if not LIBRARY:
        return
    for ranks in (1, 2):
        name = f"stalled{ranks}"
        stderr = start(folder, name, ranks=ranks, faults="STALL:write:/disk-:300", expect=LOST, topology__collective_timeout='"10 s"')
        # Whoever waits longest speaks first: the rank itself, or one that waits for it in a collective and says what it is at.
        named = re.search(r"error: .*a disk writes .* byte \d+ .*spill file.* for .*in task", stderr, re.DOTALL)
        check(f"{name}: it is named with its task", named, stderr)
        check(f"{name}: it was said before", "a disk tier waits for" in stderr, stderr)


def refused(folder):
    missing = os.path.join(folder.path, "nowhere")
    done = subprocess.run(folder.command("refused", 1, **{**COMMON, **ALL, "zero__offload_optimizer__nvme_path": missing}), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=runs.HANG_SECONDS)
    check("a folder that is not there is refused with its name", done.returncode in (ENVIRONMENT, STORAGE) and missing in done.stderr, done.stderr)


with runs.Folder() as folder:
    start(folder, "reference", **{"zero__offload_optimizer__device": "none", "zero__offload_param__device": "none"})
    larger_than_memory(folder)
    private(folder)
    flipped_byte(folder)
    failing_calls(folder)
    stalled(folder)
    refused(folder)
sys.exit(0 if check.good else 1)
