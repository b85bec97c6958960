#include "machine/published.hpp"

#include <toml++/toml.h>

#include "base/check.hpp"
#include "machine/shipped.hpp"

namespace tessera {
namespace {

std::string text_of(const toml::table& row, std::string_view key) { return row[key].value_or(std::string()); }

std::vector<PublishedRun> read() {
  const toml::table file = toml::parse(published_text());
  std::vector<PublishedRun> runs;
  const toml::array* rows = file["run"].as_array();
  TESSERA_REQUIRE(rows, "inputs/published/runs.toml has no [[run]]");
  for (const toml::node& node : *rows) {
    const toml::table& row = *node.as_table();
    PublishedRun run{.program = text_of(row, "program"),
                     .model = text_of(row, "model"),
                     .machine = text_of(row, "machine"),
                     .source = text_of(row, "source"),
                     .keys = {},
                     .gpus = row["gpus"].value_or(std::int64_t{0}),
                     .tokens_per_second = row["tokens_per_second"].value_or(0.0)};
    if (const toml::array* keys = row["keys"].as_array())
      for (const toml::node& key : *keys) run.keys.push_back(key.value_or(std::string()));
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace

const std::vector<PublishedRun>& published_runs() {
  static const std::vector<PublishedRun> runs = read();
  return runs;
}

}  // namespace tessera
