// Commands that messages propose.
#pragma once
#include <string>

namespace tessera {

/// As a shell takes it for one word.
std::string shell_word(const std::string& text);

}  // namespace tessera
