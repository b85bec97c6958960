// What the io tests share: a folder of their own, random values, errors as text, bytes of files.
#pragma once
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/check.hpp"

namespace tessera::io::test {

namespace fs = std::filesystem;

/// A new folder, removed at the end of the test.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "tessera-io-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::vector<float> random_values(std::int64_t n, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> v(static_cast<std::size_t>(n));
  for (auto& x : v) x = static_cast<float>(engine()) * 1e-9f - 2.f;
  return v;
}

/// Runs `f`, which must throw an Error(code); returns its text.
inline std::string error_of(ExitCode code, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void spill(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
}
inline void flip_byte(const std::string& path, std::int64_t at) {
  std::fstream f(path, std::ios::binary | std::ios::in | std::ios::out);
  f.seekg(at);
  char c = static_cast<char>(f.get());
  f.seekp(at);
  f.put(static_cast<char>(c ^ 0x10));
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << text

}  // namespace tessera::io::test
