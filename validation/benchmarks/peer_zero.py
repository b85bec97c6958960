#!/usr/bin/env python3
"""The peer of ZeRO on host ranks: DeepSpeed on CPUs, the GPT-2-124M-sized Llama of peer_cpu.py in bf16, a process a rank over Gloo.

    peer_zero.py [--ranks 2] [--stage 3] [--threads 1] [--steps 3] [--sequence-length 1024] [--micro-batch 1] [--json]

A step is forward, backward, clipping and AdamW of DeepSpeed's own, with fp32 master weights. Tokens of all ranks a second, medians. Beside it:
    mpiexec -n 2 tessera train inputs/gpt2_124m.toml run.threads=1 zero.stage=3 batch.global=2 batch.micro=1
Exit status 77: torch, transformers or deepspeed is not installed (`pip install deepspeed` beside scripts/setup --peer; PYTHONPATH may name its folder)."""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def train(arguments):
    import deepspeed
    import torch
    import peer_cpu
    torch.set_num_threads(arguments.threads)
    deepspeed.init_distributed(dist_backend="gloo")
    config = {"train_micro_batch_size_per_gpu": arguments.micro_batch, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16": {"enabled": True},
              "zero_optimization": {"stage": arguments.stage}, "steps_per_print": 10**9,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}}}
    model = peer_cpu.make_model(torch.bfloat16)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    seconds = []
    for number in range(arguments.steps + 1):
        ids = torch.randint(peer_cpu.VOCAB, (arguments.micro_batch, arguments.sequence_length + 1))
        torch.distributed.barrier()
        start = time.perf_counter()
        logits = engine(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, peer_cpu.VOCAB), ids[:, 1:].reshape(-1))
        engine.backward(loss)
        engine.step()
        torch.distributed.barrier()
        seconds.append(time.perf_counter() - start)
        if not loss.item() < 20:
            raise SystemExit(f"step {number} has the loss {loss.item()}")
    if int(os.environ["RANK"]) == 0:
        median = statistics.median(seconds[1:])
        row = {"tokens_per_second": arguments.ranks * arguments.micro_batch * arguments.sequence_length / median, "seconds_per_step": median, "ranks": arguments.ranks,
               "stage": arguments.stage, "threads": arguments.threads, "micro_batch": arguments.micro_batch, "sequence_length": arguments.sequence_length,
               "deepspeed": deepspeed.__version__, "torch": torch.__version__}
        with open(arguments.out, "w") as out:
            json.dump(row, out)
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=3, choices=(0, 1, 2, 3))
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.out:
        return train(arguments)
    try:
        import deepspeed  # noqa: F401
        import peer_cpu  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}; run scripts/setup --peer, and install deepspeed beside it", file=sys.stderr)
        return 77
    with tempfile.TemporaryDirectory(prefix="tessera-peer-") as folder, socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1]), "WORLD_SIZE": str(arguments.ranks), "LOCAL_SIZE": str(arguments.ranks),
                 "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(arguments.threads)}
        port.close()
        out, processes = os.path.join(folder, "row.json"), []
        for rank in range(arguments.ranks):
            log = open(os.path.join(folder, f"{rank}.log"), "w")
            processes.append(subprocess.Popen([sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--out", out], stdout=log, stderr=log,
                                              env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        status = [process.wait() for process in processes]
        if any(status):
            with open(os.path.join(folder, f"{next(i for i, s in enumerate(status) if s)}.log")) as log:
                sys.stderr.write("".join(log.readlines()[-15:]))
            return 1
        with open(out) as row:
            row = json.load(row)
    print(json.dumps(row) if arguments.json else
          f"{row['tokens_per_second']:8.1f} tokens/s of {row['ranks']} ranks, {row['seconds_per_step']:.2f} s a step, ZeRO {row['stage']}, DeepSpeed {row['deepspeed']}, PyTorch {row['torch']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
