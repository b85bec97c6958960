// The schema of decks, for programs.
#pragma once
#include <string>

namespace tessera {

/// Every row of the schema as JSON: for programs that write or check decks.
std::string reference_json();

}  // namespace tessera
