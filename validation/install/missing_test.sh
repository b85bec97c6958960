#!/usr/bin/env bash
# Where several libraries are missing, one message names all of them, with the names by which each can be had.
#   missing_test.sh SOURCE CMAKE
set -uo pipefail
source=$1 cmake=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0

hide=()
for package in MPI HDF5 Kokkos fmt spdlog; do hide+=(-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON); done
if "$cmake" -S "$source" -B "$dir/build" -DTESSERA_TESTS=OFF "${hide[@]}" >"$dir/log" 2>&1; then
  echo "FAILED: configured without MPI, HDF5, Kokkos, fmt and spdlog"
  failures=1
fi
for words in "MPI 3" libmpich-dev openmpi "HDF5 1.10" libhdf5-dev hdf5~mpi "Kokkos 5" kokkos@5: libfmt-dev spdlog+fmt_external libspdlog-dev CMAKE_PREFIX_PATH docs/install.md; do
  if ! grep -qF -- "$words" "$dir/log"; then echo "FAILED: the message has no '$words'"; failures=1; fi
done
for words in hwloc GoogleTest; do # what is there, and what is not asked for
  if grep -qF -- "$words" "$dir/log"; then echo "FAILED: the message names $words"; failures=1; fi
done
if [ "$(grep -c 'CMake Error' "$dir/log")" != 1 ]; then echo "FAILED: not one message"; failures=1; fi
if [ $failures = 0 ]; then echo "one message names all that is missing"; else cat "$dir/log"; fi
exit $failures
