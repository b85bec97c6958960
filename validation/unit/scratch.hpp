// What tests share: a folder of their own, errors as text, bytes of files.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "base/check.hpp"

namespace tessera::test {

namespace fs = std::filesystem;

/// A new folder, removed at the end of the test.
class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "tessera-test-XXXXXX").string();
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

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spill(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes; }

/// Runs f, which must throw an Error of this code; its text.
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

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << text

}  // namespace tessera::test
