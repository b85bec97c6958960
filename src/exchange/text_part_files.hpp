// The files of a model, or of the text model in one of more than text.
#pragma once
#include "io/safetensors/safetensors_model.hpp"

namespace tessera {

/// With the names of the text model's own files (families/text_part.hpp), and without what is no part of it, where the files are of a model
/// of more than text. Throws what SafetensorsModel does.
io::SafetensorsModel open_text_model(const std::string& folder);

}  // namespace tessera
