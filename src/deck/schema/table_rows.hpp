// Keys whose value is a list of tables: how the tables become rows.
#pragma once
#include <fmt/format.h>
#include <toml++/toml.h>

#include <string>
#include <vector>

#include "deck/schema/value.hpp"

namespace tessera {

/// The tables as rows, which `read` fills, and of which it says what is wrong ("has no name"); then a row that is wrong, as `what` and its
/// number, keeps the list from being one.
template <class Row>
Literal read_rows(const toml::array& tables, const char* what, std::string (*read)(const toml::table&, Row&)) {
  std::vector<Row> rows;
  for (const toml::node& node : tables) {
    rows.emplace_back();
    if (const std::string fault = read(*node.as_table(), rows.back()); !fault.empty())
      return {std::monostate{}, fmt::format("a list whose {} {} {}", what, rows.size(), fault)};
  }
  return {rows, ""};
}

}  // namespace tessera
