// What this program is made of, with every library that its results may depend on.
#pragma once
#include "base/identity.hpp"

namespace tessera {

/// Read once; needs neither MPI nor a GPU.
const Identity& program_identity();

}  // namespace tessera
