// What all targets share: libFuzzer's entry, and files for readers that want a path.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "validation/fuzz/fuzz.hpp"

extern "C" void tessera_watch_coverage();

namespace tessera::fuzz {
namespace {

namespace fs = std::filesystem;

/// In memory where there is such a file system: a file a try is much.
class Folder {
 public:
  Folder()
      : path_(fs::is_directory("/dev/shm") ? "/dev/shm/tessera-fuzz-XXXXXX"
                                           : (fs::temp_directory_path() / "tessera-fuzz-XXXXXX").string()) {
    if (!::mkdtemp(path_.data())) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const std::string& scratch() {
  static const Folder folder;
  return folder.path();
}

void write_file(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  ::close(file);
}

}  // namespace

void defect(const std::string& what) {
  std::fprintf(stderr, "DEFECT: %s\n", what.c_str());
  std::abort();
}

std::string file_of(std::string_view bytes) { return folder_with("input", bytes) + "/input"; }

std::string folder_with(const std::string& name, std::string_view bytes) {
  write_file(scratch() + "/" + name, bytes);
  return scratch();
}

}  // namespace tessera::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  tessera_watch_coverage();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    fuzz::read_input({reinterpret_cast<const char*>(data), size});
  } catch (const Error& error) {
    if (error.code != fuzz::refusal) fuzz::defect("status " + std::to_string(static_cast<int>(error.code)) + ": " + error.what());
  } catch (const std::exception& error) {
    fuzz::defect(std::string("another exception: ") + error.what());
  }
  return 0;
}
