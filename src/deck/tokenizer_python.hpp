// Which Python reads the tokenizers of models.
#pragma once
#include <string>

namespace tessera {

/// TESSERA_PYTHON where it is set; the one that `scripts/setup --tokenizers` has made, where there is one; else python3 of PATH.
std::string tokenizer_python();

}  // namespace tessera
