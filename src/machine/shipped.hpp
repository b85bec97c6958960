// The machine profiles that come with the program: those of inputs/machines, which are a part of it.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

struct ShippedMachine {
  std::string_view name, text;  ///< "h100_8", and its file
};

/// By its name, or by the only one that begins so: "h100". Nothing: there is none, or there are several.
std::optional<ShippedMachine> shipped_machine(std::string_view name);
std::vector<std::string_view> shipped_machines();

/// inputs/published/runs.toml (published.hpp).
std::string_view published_text();

}  // namespace tessera
