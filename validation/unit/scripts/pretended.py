"""What test_gpu_check.py puts in the place of programs, of compute-sanitizer, nvidia-smi and a Python with PyTorch. Words in capitals are
replaced before a text is written."""

import json

DEVICE = {"gpu": "pretended", "compute_capability": "9.0", "driver_cuda": "13.0"}

# Stands for device_benchmark: describes a GPU, and measures two things in two groups, of which one misses its target. It is talkative.
BENCHMARK = f"""import sys
print('a warning of some library', file=sys.stderr)
if '--describe' in sys.argv: print('{json.dumps(DEVICE)}'); sys.exit(0)
if '--list' in sys.argv: print('near\\nfar'); sys.exit(0)
name = sys.argv[sys.argv.index('--group') + 1]
print('{{not a number}}')
print('{{"name": "%s", "unit": "GB/s", "value": 90, "limit": "copy", "limit_value": 100, "share": 0.9, "target": %s}}' %
      (name, 0.85 if name == 'near' else 0.95), flush=True)
if name in BROKEN: print('{{"name": "%s", "error": "misaligned address"}}' % name); sys.exit(6)
"""
NO_GPU = "import sys; print('device_benchmark: there is no GPU to measure on this machine (none)', file=sys.stderr); sys.exit(6)"

# Stands for gpu_smoke: passes but for the probes of FAILS, of which those in ENDS end the process, with a word of it or, in DIES, without.
SMOKE = """import json, os, sys
if '--only' in sys.argv: print(json.dumps({'probe': 1, 'name': 'binary version', 'state': 'failed', 'said': 'there is no GPU', 'layer': 'l', 'next': 'n'})); sys.exit(6)
print(json.dumps({'library': 'NCCL', 'version': '2.28', 'path': '/lib/libnccl.so.2'}))
for n in range(int(sys.argv[sys.argv.index('--from') + 1]), 8):
    line = {'probe': n, 'name': f'layer {n}'}
    print(json.dumps({**line, 'state': 'begins'}), flush=True)
    if n in DIES: os._exit(139)
    if n in FAILS: print(json.dumps({**line, 'state': 'failed', 'said': 'it broke', 'layer': 'its layer', 'next': 'its log', 'ends': n in ENDS}), flush=True)
    if n in FAILS and n in ENDS: os._exit(6)
    if n not in FAILS: print(json.dumps({**line, 'state': 'absent' if n in ABSENT else 'passed', 'said': 'all good'}), flush=True)
"""

# Stands for the program: the same losses and the same text whatever it is told, from the step that it resumes at.
TESSERA = """import json, os, sys
if 'train' in sys.argv:
    folder = next(a.split('=')[1] for a in sys.argv if a.startswith('run.output_dir='))
    os.makedirs(folder, exist_ok=True)
    if os.environ.get('FAILS_IN_A_GRAPH') and not (os.environ.get('CUDA_LAUNCH_BLOCKING') and 'kernels.cuda_graph=off' in sys.argv):
        print('first words'); print('x' * 20000); sys.exit('an illegal memory access')
    loss = 5.0 + (0.1 if DRIFTS and 'zero.stage=2' in sys.argv else 0)
    with open(folder + '/metrics.jsonl', 'w') as file:
        steps = 30 if 'run.steps=1000000' in sys.argv else 6
        for step in range(1, steps + 1):
            file.write(json.dumps({'step': step, 'loss': loss / step, 'tokens_per_second': (1000 + step) * (0.5 if 'zero.stage=3' in sys.argv else 1), 'of_product': 0.5, 'of_product_causal': 0.4}) + '\\n')
    traced = [a.split('=')[1] for a in sys.argv if a.startswith('run.trace=')]
    if traced:
        where = folder + f'/trace/step-{int(traced[0]):08d}'
        os.makedirs(where)
        with open(where + '/partial', 'w') as file:
            json.dump({'traceEvents': [], 'otherData': {'idle_share': 0.25, **TIMELINE}}, file)
        os.rename(where + '/partial', where + '/rank-0000.json')
        print('first step done 1.25 s after launch', flush=True)
        import time; time.sleep(3000)  # ended when the timeline is there
    print('resumed from a checkpoint at step 3 of 6')
if 'generate' in sys.argv:
    print('1,2,4' if SPEAKS and 'cuda' in sys.argv else '1,2,3')
    sys.exit()
if 'plan' in sys.argv:
    print(json.dumps({'tiers': {'device': {'bytes': 1 << 30}}}))
    sys.exit()
print('tessera 0')
"""

# Stands for a GoogleTest binary: writes results in GoogleTest's words, and ends with a status.
BINARY = """import json, sys
path = next(a.split(':', 1)[1] for a in sys.argv if a.startswith('--gtest_output=json:'))
cases = CASES
if cases is not None:
    tests = [{'name': n, 'status': 'RUN', 'result': r, 'time': '0.5s', **({'failures': [{'failure': 'wrong bits'}]} if f else {})} for n, r, f in cases]
    json.dump({'testsuites': [{'name': 'Suite', 'testsuite': tests + [{'name': 'filtered', 'status': 'NOTRUN', 'result': 'SUPPRESSED'}]}]}, open(path, 'w'))
sys.exit(STATUS)
"""


# Of a binary that breaks its device in the tests of BREAKS: those behind count as skipped.
BREAKING = """import json, sys
names = ['Suite.a', 'Suite.b', 'Suite.c', 'Suite.d']
if '--gtest_list_tests' in sys.argv: print('Suite.\\n  a\\n  b\\n  c\\n  d'); sys.exit()
names = next((a.split('=')[1].split(':') for a in sys.argv if 'filter' in a), names)
tests, broken = [], False
for name in names:
    test = {'name': name[-1], 'status': 'RUN', 'result': 'SKIPPED' if broken else 'COMPLETED', 'time': '0.1s'}
    if name in BREAKS and not broken:
        broken, test['failures'] = True, [{'failure': 'left in cudaErrorIllegalAddress'}]
        print(f'[ STOPPED  ] {name} left the device in cudaErrorIllegalAddress; the tests behind it are not run')
    tests.append(test)
json.dump({'testsuites': [{'name': 'Suite', 'testsuite': tests}]}, open(next(a.split(':', 1)[1] for a in sys.argv if 'output=json' in a), 'w'))
sys.exit(broken)
"""

# Of a binary that lists three tests, runs what its filter names, and may hang behind the first.
LISTED_TESTS = """import os, time
if '--gtest_list_tests' in sys.argv: print('Suite.\\n  a\\n  b\\n  ATokenTraps'); sys.exit()
for name in next((a.split('=')[1].split(':') for a in sys.argv if 'filter' in a), []):
    print(f'[       OK ] {name} (1 ms)', flush=True)
    if 'HANG' in os.environ: print(open(os.environ['HANG']).read(), flush=True); time.sleep(3000)
"""

# Stands for compute-sanitizer: runs what it wraps, and ends with a summary.
SANITIZER = """import subprocess, sys
at = next(i for i, word in enumerate(sys.argv) if i > 0 and word.startswith('/'))
assert sys.argv[sys.argv.index('--kernel-name') + 1] == 'kns=tessera'
if REFUSES: print('========= Error: Device not supported'); sys.exit(0)
status = subprocess.call(sys.argv[at:])
if not SILENT or 'device_benchmark' in sys.argv[at]:  # the trial works in any case
    print('========= ' + ('RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)' if 'racecheck' in sys.argv else 'ERROR SUMMARY: 0 errors'))
sys.exit(status)
"""

# Stands for nvidia-smi where it lists no process: the device holds 1100 MiB more once somebody asked for the processes.
NVIDIA_SMI = """import os, sys
asked = os.path.join(os.path.dirname(sys.argv[0]), 'asked')
if '--query-compute-apps' in sys.argv[1]: open(asked, 'w').close()
else: print(1600 if os.path.exists(asked) else 500)
"""

# Stands for a Python with PyTorch: peer_gpu.py's numbers, by the options that it is given.
PEER = """import json, sys
speed = 500 + 100 * ('reduce-overhead' in sys.argv)
print('compiling', file=sys.stderr)
if 'autocast' in sys.argv and CRASHES: sys.exit('out of memory')
print(json.dumps({'tokens_per_second': speed, 'matmul_flops': 1e12, 'peak_bytes': 2 << 30, 'attention': 'cuDNN'}))
"""
