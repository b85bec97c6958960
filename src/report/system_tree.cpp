#include "report/system_tree.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tessera {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view blanks = " \t\r\n";

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(blanks), end = text.find_last_not_of(blanks);
  return begin == text.npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

/// Numbers by their size, all else by its letters.
bool before(const std::string& a, const std::string& b) {
  const auto parts = [](const std::string& name) {
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    return std::pair(name.substr(0, digits), std::strtoull(name.c_str() + digits, nullptr, 10));
  };
  return parts(a) != parts(b) ? parts(a) < parts(b) : a < b;
}

}  // namespace

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (fs::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none))
    names.push_back(entry->path().filename());
  std::ranges::sort(names, before);
  return names;
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string line_of_file(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return trimmed(line);
}

std::string field_of_file(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (colon != line.npos && trimmed(std::string_view(line).substr(0, colon)) == key)
      return trimmed(std::string_view(line).substr(colon + 1));
  }
  return "";
}

std::string word_after(const std::string& path, std::string_view word) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (const std::size_t at = line.find(word); at != line.npos) {
      const std::string rest = trimmed(std::string_view(line).substr(at + word.size()));
      return rest.substr(0, rest.find_first_of(blanks));
    }
  return "";
}

std::string name_behind(const std::string& link) {
  std::error_code none;
  const fs::path target = fs::read_symlink(link, none);
  return none ? "" : target.filename().string();
}

double number_of_file(const std::string& path) { return std::strtod(line_of_file(path).c_str(), nullptr); }

}  // namespace tessera
