// What any exception means for a user.
#pragma once
#include "base/check.hpp"

namespace tessera {

/// In a handler: the exception under way as an Error. Memory or threads that the system refuses are of the status memory, and the message
/// names the limits that do so; whatever else is no Error is a defect.
Error current_error();

}  // namespace tessera
