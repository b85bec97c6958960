#include "base/end_report.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace tessera::end_report_test {
namespace {

namespace fs = std::filesystem;

struct EndReport : testing::Test {
  EndReport() { fs::create_directories(folder); }
  ~EndReport() override { fs::remove_all(folder); }

  std::string text(const std::string& more = "") const {
    std::ifstream file(path + more);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// A process that has saved step `saved` (none where it is negative) and then ends.
  void end(int status, std::int64_t saved) const {
    EXPECT_EXIT(
        {
          prepare_end_report(path);
          if (saved >= 0) note_saved(saved, false);
          report_end(status);
          report_end(1);  // a process ends once
          _exit(0);
        },
        testing::ExitedWithCode(0), "");
  }

  const fs::path folder = fs::path(testing::TempDir()) / ("end_report-" + std::to_string(getpid()));
  const std::string path = folder / "status";
};

TEST_F(EndReport, TheFirstEndStands) {
  end(3, -1);
  EXPECT_EQ(text(), "status 3\nsaved nothing\n");
  end(76, 40);
  EXPECT_EQ(text(), "status 3\nsaved nothing\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "unfinished reports are left";
}

TEST_F(EndReport, TellsTheNewestStepThatWasSaved) {
  end(76, 40);
  EXPECT_EQ(text(), "status 76\nsaved 40\n");
}

TEST_F(EndReport, ASaveIsToldBeforeTheEnd) {
  EXPECT_EXIT(
      {
        prepare_end_report(path);
        for (const std::int64_t step : {5, 10}) note_saved(step, true);
        note_saved(15, false);
        raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(text(".saved"), "saved 10\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "unfinished reports are left";
}

TEST_F(EndReport, AFolderThatIsGoneIsNoFurtherError) {
  fs::remove_all(folder);
  end(76, 40);
  EXPECT_FALSE(fs::exists(folder));
}

}  // namespace
}  // namespace tessera::end_report_test
