// Files by system call: what is no regular file is refused before anything waits for it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "../scratch.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io::test::files_test {
using namespace tessera::test;
namespace {

TEST(PosixFile, OpensRegularFilesOnly) {
  Scratch dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  struct {
    std::string path, kind;
  } cases[] = {{dir / "pipe", "pipe"}, {dir.path(), "folder"}, {"/dev/zero", "device"}, {"/dev/null", "device"}};
  for (auto& c : cases) {
    auto text = error_of(ExitCode::checkpoint, [&] { PosixFile::open(c.path, ExitCode::checkpoint); });
    EXPECT_HAS(text, c.path + ": this is a " + c.kind);
  }
  spill(dir / "file", "four");
  fs::create_symlink("file", dir / "link");
  EXPECT_EQ(PosixFile::open(dir / "link", ExitCode::data).size(), 4);
  EXPECT_HAS(error_of(ExitCode::data, [&] { PosixFile::open(dir / "none", ExitCode::data); }), "No such file");
}

TEST(AtomicFile, NothingIsWrittenThroughALink) {
  for (const bool hard : {false, true})
    for (const char* planted : {"file", "file.partial"}) {
      Scratch dir;
      spill(dir / "victim", "precious");
      if (hard)
        fs::create_hard_link(dir / "victim", dir / planted);
      else
        fs::create_symlink("victim", dir / planted);
      AtomicFile out(dir / "file");
      out.file().write(0, "text", 4);
      out.commit();
      EXPECT_EQ(slurp(dir / "file"), "text") << planted;
      EXPECT_EQ(slurp(dir / "victim"), "precious") << planted;
      EXPECT_FALSE(fs::is_symlink(dir / "file")) << planted;
      EXPECT_FALSE(fs::exists(dir / "file.partial")) << planted;
    }
}

TEST(PosixFile, WhatIsUpdatedIsAFileAndNoLink) {
  Scratch dir;
  spill(dir / "victim", "precious");
  fs::create_symlink("victim", dir / "link");
  EXPECT_HAS(error_of(ExitCode::storage, [&] { PosixFile::update(dir / "link"); }), "link: cannot open for writing");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_HAS(error_of(ExitCode::storage, [&] { PosixFile::update(dir / "pipe"); }), "pipe: this is a pipe");
  PosixFile::output(dir / "link").write(0, "named by a user", 15);
  EXPECT_EQ(slurp(dir / "victim"), "named by a user");
}

TEST(PosixFile, ASmallFileIsReadAsFarAsItGoesAndNoFurther) {
  Scratch dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", dir / "zeros");
  fs::create_symlink("pipe", dir / "link");
  spill(dir / "hole", "");
  fs::resize_file(dir / "hole", std::uintmax_t{1} << 40);
  spill(dir / "many", std::string(101, 'x'));
  struct {
    std::string path, says;
  } cases[] = {{dir / "pipe", "this is a pipe"}, {dir / "link", "this is a pipe"}, {dir / "zeros", "this is a device"},
               {dir.path(), "this is a folder"}, {dir / "hole", "larger than"},    {dir / "many", "larger than 100 B"},
               {dir / "none", "No such file"}};
  for (const auto& c : cases)
    EXPECT_HAS(error_of(ExitCode::checkpoint, [&] { read_small_file(c.path, ExitCode::checkpoint, 100); }),
               c.path + ": " + (has(c.says, "this") ? c.says : ""));
  for (const auto& c : cases) EXPECT_HAS(error_of(ExitCode::data, [&] { read_small_file(c.path, ExitCode::data, 100); }), c.says);
  for (const std::size_t bytes : {0, 1, 99, 100}) {
    const std::string text(bytes, 'y');
    spill(dir / "file", text);
    EXPECT_EQ(read_small_file(dir / "file", ExitCode::data, 100), text);
  }
  EXPECT_HAS(read_small_file("/proc/self/status", ExitCode::data), "VmPeak") << "it says that it is empty";
}

TEST(PosixFile, AFullDiskSaysWhatIsCounted) {
  Scratch dir;
  const auto said = [&](std::int64_t asked) {
    return error_of(ExitCode::storage, [&] { fail_storage("reserve that", dir / "file", ENOSPC, asked); });
  };
  EXPECT_HAS(said(std::int64_t{1} << 60), "free for users, without the file system's reserve)");
  const std::string refused = said(1);  // less than is free here
  EXPECT_HAS(refused, "The disk is full (1 B are refused, and ");
  EXPECT_HAS(refused, "quota");
  EXPECT_FALSE(has(refused, "free for users"));
}

TEST(PosixFile, AStreamIsReadToItsEnd) {
  Scratch dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  std::thread writer([&] { spill(dir / "pipe", std::string(100000, 'x')); });
  auto file = PosixFile::open_stream(dir / "pipe", ExitCode::data);
  EXPECT_STREQ(file.other_than_regular(), "pipe");
  std::string all, piece(4096, '\0');
  while (auto n = file.read_next(piece.data(), piece.size())) all.append(piece, 0, n);
  writer.join();
  EXPECT_EQ(all, std::string(100000, 'x'));
}

}  // namespace
}  // namespace tessera::io::test::files_test
