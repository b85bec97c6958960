// What of rows Prometheus sees, by which names.
#include "train/observe/exposed_figures.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>

namespace tessera::exposed_figures_test {
namespace {

const io::Family& find(const io::Families& families, std::string_view name) {
  const auto found = std::ranges::find(families, name, &io::Family::name);
  static const io::Family none;
  EXPECT_NE(found, families.end()) << name;
  return found == families.end() ? none : *found;
}

TEST(ExposedFigures, HaveNamesThatPrometheusKnows) {
  const std::regex name("tessera_[a-z][a-z0-9_]*");
  std::set<std::string> names;
  const auto check = [&](const std::string& text, io::FamilyType type) {
    EXPECT_TRUE(std::regex_match(text, name)) << text;
    EXPECT_TRUE(names.insert(text).second) << text;
    EXPECT_EQ(text.ends_with("_total"), type == io::FamilyType::counter) << text;
    for (const char* suffix : {"_sum", "_count", "_bucket"}) EXPECT_FALSE(text.ends_with(suffix)) << text;
  };
  for (const Metric& metric : metrics()) {
    check(exposed_name(metric), metric.shown.type);
    const bool of_time = metric.unit == "s" || metric.shown.type == io::FamilyType::histogram;
    EXPECT_TRUE(!of_time || exposed_name(metric).ends_with("_seconds") || exposed_name(metric).ends_with("_seconds_total")) << metric.name;
  }
  for (const RunFigure& figure : run_figures()) {
    check("tessera_" + std::string(figure.name), io::FamilyType::gauge);
    EXPECT_TRUE(figure.help.ends_with('.')) << figure.name;
  }
}

TEST(ExposedFigures, AreTheLatestOfRows) {
  ExposedFigures figures({{"run", "r"}, {"run_id", "1"}}, {{"version", "9"}}, {"a.h5", "b.h5"});
  figures.row({{"step", std::int64_t{0}}, {"ranks", std::int64_t{2}}, {"commit", std::string("abc")}});
  figures.row({{"step", std::int64_t{1}}, {"loss", 5.0}, {"seconds", 0.2}, {"skipped", std::int64_t{1}}});
  figures.row({{"step", std::int64_t{2}},
               {"loss", std::nan("")},
               {"seconds", 0.4},
               {"skipped", std::int64_t{1}},
               {"samples_of_files", std::vector<std::int64_t>{7, 8}},
               {"loss_of_files", io::NamedNumbers{{"a.h5", 4.0}, {"b.h5", 5.0}}},
               {"seconds_of", io::NamedNumbers{{"forward", 0.1}, {"all_gather", 3.0}}},
               {"expert_load", std::vector<std::int64_t>{3, 4}}});
  figures.row({{"step", std::int64_t{2}}, {"val_loss", 4.5}});
  const io::Families all = figures.families({.steps = 10, .ranks = 2, .not_finite = true});
  const Labels run = {{"run", "r"}, {"run_id", "1"}};
  const auto labelled = [&](const char* name, const char* value) {
    Labels labels = run;
    labels.emplace_back(name, value);
    return labels;
  };
  EXPECT_EQ(all.front().name, "tessera_info");
  EXPECT_EQ(all.front().samples[0].labels, labelled("version", "9"));
  EXPECT_EQ(find(all, "tessera_run_steps").samples[0].value, 10);
  EXPECT_EQ(find(all, "tessera_not_finite").samples[0].value, 1);
  EXPECT_EQ(find(all, "tessera_step").samples[0].value, 2);
  EXPECT_EQ(find(all, "tessera_step").samples[0].labels, run);
  EXPECT_TRUE(std::isnan(find(all, "tessera_loss").samples[0].value)) << "what is no number is shown as none";
  EXPECT_EQ(find(all, "tessera_val_loss").samples[0].value, 4.5);
  EXPECT_EQ(find(all, "tessera_skipped_steps_total").samples[0].value, 2);
  const io::Family& seconds = find(all, "tessera_step_seconds");
  EXPECT_EQ(seconds.samples[0].histogram.count(), 2u);
  EXPECT_DOUBLE_EQ(seconds.samples[0].histogram.sum(), 0.6);
  for (const char* name : {"tessera_file_samples", "tessera_file_loss"}) {
    ASSERT_EQ(find(all, name).samples.size(), 2u) << name;
    EXPECT_EQ(find(all, name).samples[0].labels, labelled("file", "a.h5")) << name;
    EXPECT_EQ(find(all, name).samples[1].labels, labelled("file", "b.h5")) << name;
  }
  ASSERT_EQ(find(all, "tessera_part_seconds").samples.size(), 2u);
  EXPECT_EQ(find(all, "tessera_part_seconds").samples[1].labels, labelled("part", "all_gather"));
  EXPECT_EQ(find(all, "tessera_part_seconds").samples[1].histogram.count(), 1u);
  EXPECT_EQ(find(all, "tessera_expert_load_choices").samples[1].labels, labelled("expert", "1"));
  for (const io::Family& family : all) EXPECT_NE(family.name, "tessera_mfu_ratio") << "no row has had it";
}

// Prometheus takes UTF-8 alone, and refuses all of a run's figures for a byte that is none.
TEST(ExposedFigures, HaveLabelsThatCanBeRead) {
  ExposedFigures figures({}, {}, {"a\xff.h5"});
  figures.row({{"samples_of_files", std::vector<std::int64_t>{7}}, {"loss_of_files", io::NamedNumbers{{"a\xff.h5", 4.0}}}});
  const io::Families all = figures.families({});
  for (const char* name : {"tessera_file_samples", "tessera_file_loss"})
    EXPECT_EQ(find(all, name).samples[0].labels, (Labels{{"file", "a\\xff.h5"}})) << name;
}

TEST(ExposedFigures, ThePageHoldsThoseOfTheRun) {
  std::ifstream in(std::string(TESSERA_SOURCE_DIR) + "/docs/metrics.md");
  std::ostringstream page;
  page << in.rdbuf();
  EXPECT_NE(page.str().find(run_figures_table()), std::string::npos) << "docs/metrics.md lacks this table:\n" << run_figures_table();
}

}  // namespace
}  // namespace tessera::exposed_figures_test
