// A memory file is opened only where it is the one that its owner announced.
#include "topology/failure/peer_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "../scratch.hpp"

namespace tessera::peer_file_test {
namespace {

constexpr std::size_t bytes = 4096;

int memory_file(const char* name) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(file, bytes), 0);
  return file;
}

TEST(PeerFile, TheAnnouncedFileIsOpened) {
  const int file = memory_file("parameters");
  std::string reason;
  const int opened = PeerFile::of(file).open(bytes, reason);
  ASSERT_GE(opened, 0) << reason;
  EXPECT_EQ(pwrite(opened, "x", 1, 7), 1);
  char found = 0;
  EXPECT_EQ(pread(file, &found, 1, 7), 1);
  EXPECT_EQ(found, 'x');
  close(opened);
  close(file);
}

TEST(PeerFile, NoOtherIs) {
  test::Scratch scratch;
  test::spill(scratch / "tokens.bin", std::string(bytes, 't'));
  const int file = memory_file("parameters"), other = memory_file("parameters"), renamed = memory_file("gradients");
  const int tokens = open((scratch / "tokens.bin").c_str(), O_RDWR | O_CLOEXEC);
  const PeerFile whole = PeerFile::of(file);
  const struct {
    const char* what;
    std::function<void(PeerFile&)> change;
    const char* reason;
  } cases[] = {
      {"a file on disk has the number", [&](PeerFile& f) { f.descriptor = tokens; }, "not the announced memory"},
      {"a file on disk is announced", [&](PeerFile& f) { f = PeerFile::of(tokens); }, "not the announced memory"},
      {"other memory has the number", [&](PeerFile& f) { f.descriptor = other; }, "not the announced memory"},
      {"memory of another name has the number", [&](PeerFile& f) { f.descriptor = renamed; }, "not the announced memory"},
      {"another device", [](PeerFile& f) { ++f.device; }, "not the announced memory"},
      {"another inode", [](PeerFile& f) { ++f.inode; }, "not the announced memory"},
      {"another name", [](PeerFile& f) { std::strcpy(f.name, "/memfd:gradients (deleted)"); }, "not the announced memory"},
      {"a process that is none", [](PeerFile& f) { f.owner.pid = 0; }, "No such file"},
      {"another PID namespace", [](PeerFile& f) { ++f.owner.namespace_inode; }, "another PID namespace"},
      {"a PID namespace that is not known", [](PeerFile& f) { f.owner.namespace_inode = 0; }, "another PID namespace"},
  };
  for (const auto& one : cases) {
    PeerFile changed = whole;
    one.change(changed);
    std::string reason;
    EXPECT_EQ(changed.open(bytes, reason), -1) << one.what;
    EXPECT_HAS(reason, one.reason) << one.what;
  }
  std::string reason;
  EXPECT_EQ(whole.open(bytes + 1, reason), -1) << "of more bytes than it has";
  EXPECT_EQ(PeerFile::of(-1).descriptor, -1);
  EXPECT_EQ(test::slurp(scratch / "tokens.bin"), std::string(bytes, 't'));
  for (int descriptor : {file, other, renamed, tokens}) close(descriptor);
}

}  // namespace
}  // namespace tessera::peer_file_test
