// What tests of the disk tier share.
#pragma once
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../scratch.hpp"
#include "io/nvme/spill_file.hpp"
#include "validation/program/faults/fault_disk.hpp"

namespace tessera::test {

constexpr std::int64_t block = 64 << 10;

/// Page-aligned memory full of noise of a seed.
class Noise {
 public:
  explicit Noise(std::size_t bytes, unsigned seed = 1)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < bytes; ++i) data_.get()[i] = static_cast<std::byte>(random() >> 56);
  }
  std::span<std::byte> all() { return {data_.get(), bytes_}; }
  std::span<std::byte> part(std::size_t at, std::size_t n) { return all().subspan(at, n); }
  friend bool operator==(const Noise& a, const Noise& b) {
    return a.bytes_ == b.bytes_ && std::memcmp(a.data_.get(), b.data_.get(), a.bytes_) == 0;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

inline io::SpillOptions spill_options(const std::string& folder, std::int64_t bytes = 8 * block) {
  io::SpillOptions o;
  o.folders = {folder};
  o.purpose = "a test";
  o.bytes = bytes;
  o.block_bytes = block;
  o.queue_depth = 4;
  return o;
}

/// The files that this process has open below a folder: as "/proc/self/fd/N", by which others may open them too.
inline std::vector<std::string> open_files_below(const std::string& folder) {
  std::vector<std::string> found;
  for (auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (has(fs::read_symlink(entry.path(), gone).string(), folder + "/")) found.push_back(entry.path());
  }
  return found;
}

/// Changes a byte of such a file, behind the back of whoever has it open.
inline void flip_byte(const std::string& path, std::int64_t at) {
  const int d = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(d, 0);
  char c;
  ASSERT_EQ(::pread(d, &c, 1, at), 1);
  c = static_cast<char>(c ^ 0x10);
  ASSERT_EQ(::pwrite(d, &c, 1, at), 1);
  ASSERT_EQ(::fsync(d), 0);
  ::close(d);
}

/// Rules of faults until the end of the block.
struct Faults {
  explicit Faults(const std::string& rules) { fault_disk(rules.c_str()); }
  ~Faults() { fault_disk(""); }
};

/// Runs f in a process of its own, whose limits and rights it may spoil; what it returns or throws.
inline std::string in_child(const std::function<std::string()>& f) {
  int pipe[2];
  EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text;
    try {
      text = f();
    } catch (const std::exception& e) {
      text = std::string("threw: ") + e.what();
    }
    (void)!::write(pipe[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string text;
  char piece[4096];
  for (ssize_t n; (n = ::read(pipe[0], piece, sizeof piece)) > 0;) text.append(piece, static_cast<std::size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return text;
}

}  // namespace tessera::test
