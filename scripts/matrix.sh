# Sourced by scripts/test --full: the tests where instructions, cores, load or the MPI differ from those of a quiet Debian. No test may notice.

# More instructions, or fewer, than this machine's own: oneDNN takes other code for products, of other workspace and other rounding.
with_onednn_isa() { ONEDNN_MAX_CPU_ISA=$1 run_tests "$build" "$build/test-$1.log" "${@:2}"; }

# Tests whose numbers pass through oneDNN's products or our vectors: all of them with --full; else the kernels, the fixtures and one run, by turns.
run_lowered() {
  local sets=(SSE41 AVX AVX2 AVX512_CORE) runs=(same_bits fast_mode experts tensor_parallel documents masked any_mesh mixtures quantized lora) isa
  local numeric='kernel_(gemm|grouped_gemm|attention|ring_attention|newton_schulz|softmax_loss_rows)|parity\.fixtures\.ours'
  if $full; then
    for isa in "${sets[@]}"; do step "numbers with ONEDNN_MAX_CPU_ISA=$isa" with_onednn_isa "$isa" -R "^($numeric|resume\.($(IFS='|'; echo "${runs[*]}")))\$"; done
  else
    isa=${sets[TESSERA_TEST_DRAW % ${#sets[@]}]}
    step "numbers with ONEDNN_MAX_CPU_ISA=$isa" with_onednn_isa "$isa" -R "^($numeric|resume\.${runs[TESSERA_TEST_DRAW / 7 % ${#runs[@]}]})\$"
  fi
}

other_build=build/$preset-x86-64-v3
build_for_v3() {
  cmake --preset $preset -B $other_build -DTESSERA_HOST_ARCH=x86-64-v3 -DKokkos_ROOT="$(scripts/setup --print)"
  cmake --build $other_build -j "$(nproc)"
}

# A step is a shell of its own, so what it starts beside its tests ends with it.
beside_busy_processes() {
  local busy=() i
  for i in 1 2 3 4; do
    while :; do :; done &
    busy+=($!)
  done
  trap 'kill '"${busy[*]}" EXIT
  renice -n 10 -p $BASHPID >/dev/null
  run_tests "$build" "$build/test-busy.log"
}

on_one_core() {
  taskset -c -p "$(taskset -c -p $BASHPID | sed 's/.*: \([0-9]*\).*/\1/')" $BASHPID
  run_tests "$build" "$build/test-one-core.log"
}

twice_at_once() {
  local status=0
  run_tests $other_build $other_build/test-twice.log >/dev/null &
  run_tests "$build" "$build/test-twice.log" || status=$?
  wait $! || { status=$?; tail -n 40 $other_build/test-twice.log; }
  return $status
}

# Launcher, signals and the variables that ranks find are others there.
build_with_open_mpi() {
  scripts/setup --openmpi
  cmake --preset openmpi -DTESSERA_BENCHMARKS=OFF -DKokkos_ROOT="$(scripts/setup --print)"
  cmake --build build/openmpi -j "$(nproc)"
}

run_matrix() {
  local isa
  for isa in AVX2 AVX512_CORE; do try_step "tests ($preset, ONEDNN_MAX_CPU_ISA=$isa)" with_onednn_isa $isa; done
  try_step "build ($preset, x86-64-v3)" build_for_v3
  if [ $? -eq 0 ]; then
    try_step "tests ($preset, x86-64-v3)" run_tests $other_build $other_build/test.log
    try_step "tests ($preset, twice at once, one of them x86-64-v3)" twice_at_once
  fi
  try_step "tests ($preset, beside four busy processes)" beside_busy_processes
  try_step "tests ($preset, on one core)" on_one_core
  if [ $preset = host ]; then
    try_step "build (openmpi)" build_with_open_mpi && try_step "tests (openmpi)" run_tests build/openmpi build/openmpi/test.log
  fi
}
