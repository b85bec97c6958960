#include "report/runs/text_table.hpp"

#include <algorithm>

namespace tessera {

std::string TextTable::text() const {
  const auto columns_of = [](const std::string& text) {  // bytes that begin a character
    return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  };
  std::vector<std::size_t> wide(header.size());
  const auto measure = [&](const std::vector<std::string>& row) {
    for (std::size_t n = 0; n < row.size(); ++n) wide[n] = std::max(wide[n], columns_of(row[n]));
  };
  measure(header);
  for (const auto& row : rows) measure(row);
  std::string out;
  const auto write = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t n = 0; n < row.size(); ++n) {
      const std::string blanks(wide[n] - columns_of(row[n]), ' ');
      line += std::string(n > 0 ? gap : 0, ' ') + (n < left ? row[n] + blanks : blanks + row[n]);
    }
    out += line.erase(line.find_last_not_of(' ') + 1) + "\n";
  };
  write(header);
  for (const auto& row : rows) write(row);
  return out;
}

}  // namespace tessera
