// For tests on a GPU: the binary stops behind the first test that leaves the device in an error which lasts (test_run.hpp).
#pragma once
#include "validation/device_fault.hpp"
#include "validation/test_run.hpp"

namespace tessera {
inline const bool watched_device = (find_device_fault = device_fault, true);
}  // namespace tessera
