// Columns of a text, as wide as what stands in them.
#pragma once
#include <string>
#include <vector>

namespace tessera {

struct TextTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows = {};
  std::size_t left = 1;  ///< columns that begin at their left; the others end at their right
  std::size_t gap = 2;   ///< blanks between columns
  /// Lines with their ends; no blanks at the end of a line.
  std::string text() const;
};

}  // namespace tessera
