// How long threads of OpenMP stay awake at the end of a part, for the others or the next part.
#pragma once

namespace tessera {

/// Has threads sleep after some tens of microseconds. Left alone libgomp lets them look again 300,000 times, which takes 5 to 15 ms: longer
/// than most parts, so that beside another program a thread that waits takes the core that the one it waits for needs (measured on two
/// threads of a Xeon beside one busy process: a ninth of the rate of a step, now 0.6 of it). An environment with GOMP_SPINCOUNT or
/// OMP_WAIT_POLICY stays as it is. The setting takes the place of an entry that a shell keeps for itself ("_", OLDPWD, SHLVL): where there
/// is none, it is not made. Touches nothing but the array, so that it may be called before any library has started.
void shorten_openmp_waits(char** environment) noexcept;
/// The same of this process. For ELF's .preinit_array: OpenMP reads the variables when it is loaded.
void shorten_openmp_waits_at_start(int argc, char** argv, char** environment) noexcept;

}  // namespace tessera
