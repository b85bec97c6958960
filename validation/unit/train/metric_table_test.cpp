// What a run records, and the page that says so.
#include "train/observe/metric_table.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace tessera::metric_table_test {
namespace {

TEST(MetricTable, NamesEachOnceWithWhatItIs) {
  std::set<std::string_view> names;
  for (const Metric& metric : metrics()) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_TRUE(metric.help.ends_with('.')) << metric.name;
    EXPECT_TRUE(metric.of != MetricOf::step || metric.value) << metric.name;
  }
}

TEST(MetricTable, ThePageHoldsIt) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/docs/metrics.md");
  std::ostringstream page;
  page << in.rdbuf();
  EXPECT_NE(page.str().find(metrics_page_table()), std::string::npos) << "docs/metrics.md lacks this table:\n" << metrics_page_table();
}

}  // namespace
}  // namespace tessera::metric_table_test
