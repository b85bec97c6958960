#!/usr/bin/env bash
# Feeds scripts/style one fault at a time and expects it to name the file, the line and the rule; and a sound tree, which it must accept.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failed=0

sound_tree() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/src/{base,memory,deck,topology,model,zero,optimizer,schedule,train,commands} "$tree"/kernels/gemm "$tree"/io/{hdf5,tokens}
  cp "$root/.clang-format" "$tree"
  printf '#include <mpi.h>\n#include "deck/deck.hpp"\n\nint size() { return MPI_SUCCESS; }\n' >"$tree/src/topology/world.cpp"
  printf '#include <hdf5.h>\n#include "base/check.hpp"\n\nhid_t none() { return H5P_DEFAULT; }\n' >"$tree/io/hdf5/file.cpp"
  printf '#include <Kokkos_Core.hpp>\n#include "memory/arena.hpp"\n' >"$tree/kernels/gemm/gemm_host.cpp"
  printf '// MPI_Finalize, H5Fopen, getenv( and <<< in a comment are words.\nconst char* text = "MPI_Init H5Fopen getenv( <<<";\n/* and\n   MPI_Init here */\nint quote = '"'\"'"';\nbool same = type == DType::f32;  // == DType::f32 ? a : b is a word too\n' >"$tree/src/base/words.cpp"
}

# expect_fault FILE LINE RULE TEXT [FILE TEXT]: a tree with that file (and the other) must be refused, naming FILE:LINE and words of the rule.
expect_fault() {
  local output
  sound_tree
  mkdir -p "$tree/$(dirname "$1")"
  printf '%b' "$4" >"$tree/$1"
  if [ $# -gt 4 ]; then
    mkdir -p "$tree/$(dirname "$5")"
    printf '%b' "$6" >"$tree/$5"
  fi
  output=$("$root/scripts/style" --tree "$tree" 2>&1)
  if [ $? -ne 1 ] || ! grep -qF -- "$1:$2: " <<<"$output" || ! grep -qF -- "$3" <<<"$output"; then
    echo "FAIL: $1 with '$4' should be refused at line $2 for '$3'; scripts/style said:"
    echo "$output"
    failed=1
  fi
}

sound_tree
if ! output=$("$root/scripts/style" --tree "$tree" 2>&1); then
  echo "FAIL: a sound tree was refused:"; echo "$output"; failed=1
fi

expect_fault src/base/a.cpp 1 'include "base/backend.hpp" above this' '#ifdef TESSERA_CUDA\nint x;\n#endif\n'
expect_fault src/base/a.cpp 1 "base sees base" '#include "memory/arena.hpp"\n'
expect_fault src/zero/a.cpp 2 "zero sees" '#include "zero/partition.hpp"\n#include "optimizer/adamw.hpp"\n'
expect_fault src/optimizer/texts/a.cpp 1 "optimizer/texts sees base memory kernels" '#include "deck/deck.hpp"\n'
expect_fault src/schedule/a.cpp 1 "schedule sees" '#include "train/run/trainer.hpp"\n'
expect_fault src/model/a.cpp 1 "model sees" '#include "io/tokens/tokens.hpp"\n'
expect_fault src/train/a.cpp 1 "train sees" '#include "commands/train.hpp"\n'
expect_fault kernels/gemm/a.cpp 1 "kernels sees base memory" '#include "deck/deck.hpp"\n'
expect_fault io/tokens/a.cpp 1 "io sees base models memory" '#include "topology/mesh.hpp"\n'
expect_fault src/model/a.cpp 1 "write the path from src/" '#include "../base/check.hpp"\n'
expect_fault src/model/a.cpp 1 "write the path from src/" '#include "blocks.hpp"\n'
expect_fault src/extra/a.cpp 1 "folder extra is no layer" 'int x;\n'
expect_fault src/train/a.cpp 1 "MPI stands in src/topology" 'int f() { return MPI_SUCCESS; }\n'
expect_fault src/train/a.cpp 1 "MPI stands in src/topology" '#include <mpi.h>\n'
expect_fault io/hdf5/a.cpp 1 "NCCL stands in src/topology" 'ncclResult_t result;\n'
expect_fault src/schedule/a.cu 2 "a kernel launch (<<<) stands in kernels" 'void f() {\n  kernel<<<1, 2>>>();\n}\n'
expect_fault src/train/a.cpp 1 "HDF5 stands in io/hdf5" 'int f() { return H5Fclose(0); }\n'
expect_fault io/tokens/a.cpp 1 "HDF5 stands in io/hdf5" 'hid_t file;\n'
expect_fault io/tokens/a.cpp 1 "io_uring stands in io/nvme" '#include <liburing.h>\n'
expect_fault src/train/a.cpp 1 "io_uring stands in io/nvme" 'int f() { return io_uring_submit(nullptr); }\n'
expect_fault src/base/a.cpp 1 "OpenSSL stands in io/nvme" '#include <openssl/evp.h>\n'
expect_fault io/tokens/a.cpp 1 "making a file stands in src/base/own_files" 'std::ofstream out("name");\n'
expect_fault src/topology/a.cpp 1 "making a file stands in src/base/own_files" 'int f = open("name", O_RDWR | O_CREAT, 0666);\n'
expect_fault src/topology/a.cpp 1 "getenv stands in src/deck" 'auto n = std::getenv("N");\n'
expect_fault src/schedule/a.cpp 1 "a Kokkos header stands in" '#include <Kokkos_Core.hpp>\n'
expect_fault kernels/gemm/gemm.hpp 1 "a Kokkos header stands in" '#include <Kokkos_Core.hpp>\n'
expect_fault src/train/a.cpp 1 "the JSON library stands in" "#include <nlohmann/json.hpp>\n"
expect_fault src/commands/plan.cpp 1 "CLI11 stands in" "#include <CLI/CLI.hpp>\n"
expect_fault io/files/a.cpp 1 "spdlog stands in" "#include <spdlog/spdlog.h>\n"
expect_fault src/train/save/a.cpp 1 "in a circle: train/save -> train/run -> train/save" '#include "train/run/b.hpp"\n' src/train/run/b.hpp '#include "train/save/c.hpp"\n'
expect_fault src/deck/b.cpp 4 "most is a name of src/deck/a.cpp:4 too" '\nnamespace tessera {\nnamespace {\nconstexpr int most = 2;\n}  // namespace\n}  // namespace tessera\n' src/deck/a.cpp '\nnamespace tessera {\nnamespace {\nint most(int x) { return x; }\n}  // namespace\n}  // namespace tessera\n'
expect_fault src/deck/b.cpp 4 "least is a name of src/deck/a.cpp:4 too" '\nnamespace tessera {\nnamespace {\nconstexpr int most = 2, least = 1;\n}  // namespace\n}  // namespace tessera\n' src/deck/a.cpp '\nnamespace tessera {\nnamespace {\nconstexpr int least = 2;\n}  // namespace\n}  // namespace tessera\n'
expect_fault src/deck/b.cpp 4 "Place is a type of src/deck/a.hpp:4 too" '\nnamespace tessera {\nnamespace {\nusing Place = int;\n}  // namespace\n}  // namespace tessera\n' src/deck/a.hpp '#pragma once\nnamespace tessera {\n\nstruct Place {};\n\n}  // namespace tessera\n'
expect_fault src/zero/a.cpp 1 "switch over DType" 'int f(DType t) { return t == DType::f32 ? 1 : 2; }\n'
expect_fault kernels/gemm/a.cu 1 "switch over DType" 'int f(DType t) { return (t != tessera::DType::bf16) ? 1 : 2; }\n'
expect_fault io/tokens/a.cpp 2 "switch over DType" 'int a = b == DType::bf16\n            ? 1 : 2;\n'
expect_fault src/base/a.cpp 1 "not formatted" 'int  f( ){return 1 ;}\n'
expect_fault docs/a.md 2 "trailing space" 'text\nmore \n'
expect_fault docs/a.md 1 "tab; indent with spaces" 'a\tb\n'
expect_fault docs/a.md 1 "carriage return" 'a\r\n'
expect_fault docs/a.md 2 "no newline at the end" 'a\nb'
expect_fault docs/a.md 1 "a path of one machine" 'see /ho''me/me/x\n'
expect_fault docs/a.md 1 "a host that is not an upstream" 'see https:''//mirror.example.net/x\n'
expect_fault scripts/a 2 "a pipe into grep -q" '#!/usr/bin/env bash\nprintf yes | grep -q yes\n'
expect_fault scripts/a 1 "syntax error" '#!/usr/bin/env bash\nif true\n'

# Two types of one name. Another namespace makes another type, and so does a .cpp file's own.
sound_tree
mkdir -p "$tree/src/deck"
printf 'namespace tessera {\nstruct Watch {\n  int a;\n};\n}  // namespace tessera\n' | tee "$tree/src/base/a.hpp" >"$tree/src/deck/b.hpp"
if grep -q 'src/deck/b.hpp:2: Watch is a type of src/base/a.hpp:2 too' <<<"$("$root/scripts/style" --tree "$tree")"; then :; else
  echo "FAIL: two types of one name were not refused"; failed=1
fi
sed -i 's/namespace tessera {/namespace tessera::io {/; s/namespace tessera$/namespace tessera::io/' "$tree/src/deck/b.hpp"
if "$root/scripts/style" --tree "$tree" >/dev/null; then :; else
  echo "FAIL: types of two namespaces were refused"; failed=1
fi

# --fix mends what clang-format can mend and the deck that the page of the first run shows, and the check then passes.
sound_tree
mkdir -p "$tree/inputs" "$tree/docs"
printf 'int  f( ){return 1 ;}\n' >"$tree/src/base/a.cpp"
printf '[run]\nsteps = 2\n' >"$tree/inputs/quickstart.toml"
printf 'head\n```toml\n[run]\nsteps = 1\nold = 1\n```\ntail\n' >"$tree/docs/quickstart.md"
if grep -q 'docs/quickstart.md:1: its toml block' <<<"$("$root/scripts/style" --tree "$tree")"; then :; else
  echo "FAIL: another deck in docs/quickstart.md was not refused"; failed=1
fi
if ! "$root/scripts/style" --fix --tree "$tree" >/dev/null || [ "$(cat "$tree/src/base/a.cpp")" != 'int f() { return 1; }' ] ||
  [ "$(cat "$tree/docs/quickstart.md")" != "$(printf 'head\n```toml\n[run]\nsteps = 2\n```\ntail')" ]; then
  echo "FAIL: --fix did not mend format and the shown deck"; failed=1
fi

[ $failed = 0 ] && echo "scripts/style refuses every fault and accepts a sound tree"
exit $failed
