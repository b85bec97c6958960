#include "exchange/text_part_files.hpp"

#include <algorithm>

#include "families/text_part.hpp"

namespace tessera {

io::SafetensorsModel open_text_model(const std::string& folder) {
  io::SafetensorsModel model(folder);
  const bool whole =
      std::ranges::any_of(model.tensors(), [](const auto& t) { return t.name != "lm_head.weight" && name_in_text_part(t.name); });
  if (whole) model.rename(name_in_text_part);
  return model;
}

}  // namespace tessera
