// tessera: what must come before all libraries, and the program.
#include "commands/program.hpp"
#include "deck/openmp_binding.hpp"
#include "deck/openmp_waits.hpp"
#include "topology/failure/signals.hpp"

namespace {

using namespace tessera;

// The loader calls it before the constructors of any library (ELF's .preinit_array), so that a signal which comes at once is not lost.
[[gnu::section(".preinit_array"), gnu::used]] void (*const first_instruction)() noexcept = hold_stop_signals;
[[gnu::section(".preinit_array"), gnu::used]] void (*const second_instruction)(int, char**,
                                                                               char**) noexcept = leave_openmp_binding_at_start;
[[gnu::section(".preinit_array"), gnu::used]] void (*const third_instruction)(int, char**, char**) noexcept = shorten_openmp_waits_at_start;

}  // namespace

int main(int argc, char** argv) { return run_program(argc, argv); }
