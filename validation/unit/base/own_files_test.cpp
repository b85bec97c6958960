// What stands under a name that can be guessed is never written through.
#include "base/own_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../scratch.hpp"

namespace tessera::own_files_test {
namespace {

using test::Scratch;
namespace fs = test::fs;

/// What a stranger may have put under a name, and what is to stay as it is.
const struct Planted {
  const char* what;
  void (*plant)(const std::string& path, const std::string& victim);
} planted[] = {
    {"a file", [](const std::string& path, const std::string&) { test::spill(path, "old"); }},
    {"a link to a file", [](const std::string& path, const std::string& victim) { fs::create_symlink(victim, path); }},
    {"a hard link to a file", [](const std::string& path, const std::string& victim) { fs::create_hard_link(victim, path); }},
    {"a link to nothing", [](const std::string& path, const std::string& victim) { fs::create_symlink(victim + "-none", path); }},
    {"a link to itself", [](const std::string& path, const std::string&) { fs::create_symlink(path, path); }},
    {"a pipe", [](const std::string& path, const std::string&) { ASSERT_EQ(mkfifo(path.c_str(), 0666), 0); }},
};

TEST(OwnFiles, ANewFileTakesTheNameAndNothingElse) {
  for (const Planted& p : planted) {
    Scratch dir;
    test::spill(dir / "victim", "precious");
    p.plant(dir / "name", dir / "victim");
    const int file = create_file((dir / "name").c_str(), 0600);
    ASSERT_GE(file, 0) << p.what;
    EXPECT_EQ(write(file, "new", 3), 3);
    close(file);
    EXPECT_EQ(test::slurp(dir / "victim"), "precious") << p.what;
    EXPECT_FALSE(fs::exists(dir / "victim-none")) << p.what;
    EXPECT_EQ(fs::symlink_status(dir / "name").type(), fs::file_type::regular) << p.what;
    EXPECT_EQ(fs::status(dir / "name").permissions(), fs::perms::owner_read | fs::perms::owner_write) << p.what;
    EXPECT_EQ(test::slurp(dir / "name"), "new") << p.what;
  }
  Scratch dir;
  fs::create_directory(dir / "name");
  EXPECT_LT(create_file((dir / "name").c_str()), 0) << "a folder";
}

TEST(OwnFiles, AFileThatIsUpdatedIsNoLink) {
  Scratch dir;
  test::spill(dir / "victim", "precious");
  for (const char* target : {"victim", "none"}) {
    fs::create_symlink(target, dir / "name");
    EXPECT_LT(update_file((dir / "name").c_str()), 0);
    EXPECT_EQ(errno, ELOOP);
    fs::remove(dir / "name");
  }
  EXPECT_FALSE(fs::exists(dir / "none"));
  test::spill(dir / "name", "rows");
  const int file = update_file((dir / "name").c_str());
  EXPECT_EQ(pwrite(file, "R", 1, 0), 1);
  close(file);
  EXPECT_EQ(test::slurp(dir / "name"), "Rows");
}

TEST(OwnFiles, AFolderIsOursAlone) {
  Scratch dir;
  const auto mode = [&] { return fs::status(dir / "own").permissions(); };
  EXPECT_EQ(make_own_folder(dir / "own"), "");
  EXPECT_EQ(mode(), fs::perms::owner_all);
  EXPECT_EQ(make_own_folder(dir / "own"), "") << "once more";
  fs::permissions(dir / "own", fs::perms::all);
  EXPECT_EQ(make_own_folder(dir / "own"), "");
  EXPECT_EQ(mode(), fs::perms::owner_all) << "what others could look into before";
  fs::create_directory_symlink("own", dir / "link");
  EXPECT_HAS(make_own_folder(dir / "link"), "a link");
  test::spill(dir / "file", "");
  EXPECT_HAS(make_own_folder(dir / "file"), "a file or a link");
  EXPECT_HAS(make_own_folder(dir / "none/own"), "No such file");
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  ASSERT_EQ(chown((dir / "own").c_str(), 12345, 12345), 0);
  EXPECT_HAS(make_own_folder(dir / "own"), "another user (number 12345)");
}

}  // namespace
}  // namespace tessera::own_files_test
