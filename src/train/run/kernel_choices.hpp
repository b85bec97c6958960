// Where this machine's choices of kernels are kept.
#pragma once
#include <string>

#include "deck/deck.hpp"
#include "topology/devices/gpu_binding.hpp"

namespace tessera {

/// Empty: none are searched. Times that ranks took from each other would mislead all later runs.
std::string kernel_choices_file(const Deck& deck, const GpuBinding& gpu);

}  // namespace tessera
