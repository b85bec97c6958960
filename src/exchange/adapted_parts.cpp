#include "exchange/adapted_parts.hpp"

#include <fmt/format.h>

#include <set>

#include "base/some_of.hpp"
#include "model/table/lora.hpp"

namespace tessera {

std::string adapted_parts(const std::vector<Parameter>& table, const TensorNames& names) {
  std::set<std::string_view> adapters;
  for (const Parameter& p : table)
    if (p.adapter) adapters.insert(p.name);
  std::vector<std::string> parts;
  for (const Parameter& p : table) {
    if (p.adapter || (!p.whole && !adapters.contains(lora_a(p.name)))) continue;
    const TensorNames::Name name = names.name(p.name);
    if (name.fused != Fused::no || (p.whole && (name.turned || name.interleaved || name.pairs_of > 0)))
      parts.push_back(fmt::format("{} of {}", p.name, name.theirs));
  }
  if (parts.empty()) return "";
  return fmt::format("{} with an adapter {} in the model's files, and PEFT has one adapter for the whole tensor: {}",
                     parts.size() == 1 ? "a matrix" : fmt::format("{} matrices", parts.size()),
                     parts.size() == 1 ? "is a part of a tensor" : "are parts of tensors", some_of(parts));
}

}  // namespace tessera
