#include "deck/tokenizer_python.hpp"

#include <unistd.h>

#include "deck/environment.hpp"

namespace tessera {

std::string tokenizer_python() {
  if (const auto named = environment("TESSERA_PYTHON"); named && !named->empty()) return *named;
  const auto cache = environment("TESSERA_CACHE"), home = environment("HOME");
  const std::string made = (cache && !cache->empty() ? *cache : home.value_or("") + "/.cache/tessera") + "/tokenizers/bin/python";
  return access(made.c_str(), X_OK) == 0 ? made : "python3";
}

}  // namespace tessera
