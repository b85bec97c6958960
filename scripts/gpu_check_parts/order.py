"""In which order jobs run: what tells most in a minute first, what may hang or tells least on one GPU last."""

import re

# Of a job PART/NAME the first row that it matches says its place; jobs of a place stand as their part lists them. What no row knows stands where OTHERS does.
OTHERS = ""
PLACES = (
    r"smoke/",                                               # is there anything to stand on
    r"tests/kernel_(reduce|tensor_core|warpgroup)_cuda$",    # instructions
    r"tests/kernel_(elementwise|gemm)_cuda$",                # what most of a step is
    r"tests/kernel_(cudnn_)?attention(_decode)?_cuda$",
    r"tests/parity",                                         # PyTorch's numbers
    r"tests/train_device$",
    r"training/",                                            # graph on and off, ZeRO's bits, the host's loss
    r"benchmarks/limits$",                                   # what the other numbers are shares of
    r"speed/room$",                                          # what collectives cost products, and leaving them room
    r"speed/(124m|tiny)$",                                   # one number: tokens/s, MFU
    r"speed/8b-cut$",
    r"speed/",
    r"benchmarks/(decode-)?(products|attention)",            # the simulator's tables
    r"benchmarks/",
    r"tests/kernel_",
    OTHERS,
    r"memcheck/.*(warpgroup|attention|softmax|embedding)",
    r"memcheck/",
    r"racecheck/.*(warpgroup|attention|softmax|embedding)",
    r"racecheck/",
    r"tests/resume\.loss_curve",
    r"tests/topology_nccl",                                  # ranks that share this GPU
    r"tests/train_registered_memory",
    r"tests/resume\.same_bits_cuda",
    r"tests/(resume|faults)\.",
)


def place(key):
    return next((i for i, pattern in enumerate(PLACES) if pattern and re.match(pattern, key)), PLACES.index(OTHERS))


def in_order(jobs):
    return sorted(jobs, key=lambda job: place(job.key))
