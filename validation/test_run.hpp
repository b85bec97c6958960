// How a GoogleTest binary of this project starts and ends.
#pragma once
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace tessera {

/// Whether a test is among those of a `--gtest_filter`: patterns between colons, and after a minus those that are left out.
inline bool is_chosen(const std::string& filter, const std::string& name) {
  const auto matches = [&](std::string patterns) {
    for (std::size_t begin = 0; begin <= patterns.size();) {
      const std::size_t end = std::min(patterns.find(':', begin), patterns.size());
      if (fnmatch(patterns.substr(begin, end - begin).c_str(), name.c_str(), 0) == 0) return true;
      begin = end + 1;
    }
    return false;
  };
  const std::size_t minus = filter.find('-');
  const std::string wanted = filter.substr(0, minus);
  return (wanted.empty() || matches(wanted)) && (minus == std::string::npos || !matches(filter.substr(minus + 1)));
}

/// CUDA's name of an error that the device of this process will not leave; null in a binary that needs no device (watched_device.hpp).
inline std::string (*find_device_fault)() = nullptr;

/// Behind a test that broke the device no other can pass: that test fails, and the others are not run. scripts/gpu_check looks for the
/// line, and runs them in another process.
class StopsAtFault : public ::testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (!find_device_fault || stopped_) return;
    const std::string fault = find_device_fault();
    if (fault.empty()) return;
    stopped_ = true;
    std::printf("[ STOPPED  ] %s.%s left the device in %s; the tests behind it are not run\n", test.test_suite_name(), test.name(),
                fault.c_str());
    std::fflush(stdout);
    ADD_FAILURE() << "the device was left in " << fault << ", which lasts";
    ::testing::GTEST_FLAG(fail_fast) = true;
  }

 private:
  bool stopped_ = false;
};

/// InitGoogleTest, and `--file NAME_test.cpp`: of a binary that holds a folder's tests, those of one file; of these what --gtest_filter
/// chooses.
inline void start_tests(int& argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new StopsAtFault);
  if (argc < 2) return;
  const auto refuse = [word = argv[argc - 1]](const char* why) {
    std::fprintf(stderr, "%s: %s; a test takes GoogleTest's options, and --file NAME_test.cpp\n", word, why);
    std::exit(2);
  };
  if (argc != 3 || std::string_view(argv[1]) != "--file") refuse("not understood");
  argc = 1;
  const std::string_view wanted = argv[2];
  std::string filter;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const ::testing::TestInfo& test = *suite.GetTestInfo(t);
      const std::string_view file = test.file();
      std::string name = suite.name();
      name.append(".").append(test.name());
      if (file.substr(file.rfind('/') + 1) == wanted && is_chosen(::testing::GTEST_FLAG(filter), name)) filter.append(name).append(":");
    }
  }
  if (filter.empty()) refuse("holds none of the chosen tests of this binary");
  ::testing::GTEST_FLAG(filter) = filter;
}

/// Runs the tests that were chosen. GoogleTest ends with 0 when every test skipped itself, which reads as success; here with 77: "not
/// tested" to CTest (SKIP_RETURN_CODE) and to scripts/gpu_check.
inline int run_all_tests() {
  const int status = RUN_ALL_TESTS();
  const ::testing::UnitTest& done = *::testing::UnitTest::GetInstance();
  const bool none_ran = done.test_to_run_count() > 0 && done.skipped_test_count() == done.test_to_run_count();
  return status == 0 && none_ran ? 77 : status;
}

}  // namespace tessera
