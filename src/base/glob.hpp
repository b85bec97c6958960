// Patterns over names: `*` is any run of characters, also none, and `?` any one.
#pragma once
#include <string_view>

namespace tessera {

/// Whether the whole name is what the pattern describes.
inline bool matches_glob(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = pattern.npos, from = 0;  // the last `*`, and what of the name it does not take
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, from = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != pattern.npos) {
      p = star + 1, n = ++from;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

}  // namespace tessera
