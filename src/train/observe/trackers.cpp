#include "train/observe/trackers.hpp"

#include <sstream>

#include "deck/tokenizer_python.hpp"

namespace tessera {

Json deck_values(const Deck& deck) {
  Json values = Json::object();
  std::istringstream lines(print_deck(deck));
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (line.starts_with("[") && line.ends_with("]") && equals == line.npos)
      section = line.substr(1, line.size() - 2) + ".";
    else if (!line.starts_with("#") && equals != line.npos)
      values[section + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return values;
}

std::vector<std::unique_ptr<io::Tracker>> trackers_of(const RunParts& run) {
  const MetricsKeys& keys = run.deck.metrics;
  std::vector<std::unique_ptr<io::Tracker>> trackers;
  const auto add = [&](const std::string& package, const std::string& project) {
    if (project.empty()) return;
    const Json asked{{"project", project},        {"team", keys.wandb_team},   {"group", keys.wandb_group},    {"uri", keys.mlflow_uri},
                     {"name", run.deck.run.name}, {"folder", run.folder.path}, {"deck", deck_values(run.deck)}};
    trackers.push_back(std::make_unique<io::Tracker>(io::TrackerRun{.key = "metrics." + package,
                                                                    .package = package,
                                                                    .python = tokenizer_python(),
                                                                    .record = run.folder.tracker(package),
                                                                    .history = run.folder.metrics(),
                                                                    .asked = asked}));
  };
  add("wandb", keys.wandb);
  add("mlflow", keys.mlflow);
  return trackers;
}

}  // namespace tessera
