#include "supervise/node_probes.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"

namespace tessera {
namespace {

constexpr std::size_t probes_at_once = 32;
// A scheduler that is busy for a moment starts a process late on nodes that are well.
constexpr double least_wait = 2, slower_than_others = 4;

}  // namespace

bool taken_as_silent(double waited, std::span<const double> answers, std::size_t asked, double most) {
  if (waited >= most) return true;
  if (answers.empty() || 2 * answers.size() < asked) return false;
  return waited >= std::max(least_wait, slower_than_others * *std::max_element(answers.begin(), answers.end()));
}

void NodeProbes::ask(const std::vector<std::string>& nodes) {
  for (const std::string& node : nodes)
    if (std::none_of(probes_.begin(), probes_.end(), [&](const Probe& probe) { return probe.node == node; }))
      probes_.push_back({.node = node});
  look();
}

void NodeProbes::Probe::end() {
  if (process) process->kill_group();
  process.reset();
}

void NodeProbes::forget() {
  for (Probe& probe : probes_) probe.end();
  probes_.clear();
}

void NodeProbes::look() {
  std::vector<double> answers;
  std::size_t asked = 0, under_way = 0;
  for (Probe& probe : probes_) {
    if (probe.process && probe.process->status()) {
      probe.answers = probe.process->status() == 0;
      probe.took = now_seconds() - probe.begun;
      probe.process.reset();
    }
    asked += probe.begun > 0 ? 1 : 0;
    if (probe.answers == true) answers.push_back(probe.took);
  }
  for (Probe& probe : probes_) {
    if (probe.process && taken_as_silent(now_seconds() - probe.begun, answers, asked, most_)) probe.answers = false, probe.end();
    under_way += probe.process ? 1 : 0;
  }
  for (Probe& probe : probes_) {
    if (under_way >= probes_at_once) break;
    if (probe.begun > 0) continue;
    probe.begun = now_seconds();
    try {
      probe.process = start_(probe.node);
      ++under_way;
    } catch (const Error& error) {
      warning("supervise: node {} cannot be probed: {}", probe.node, error.what());
      probe.answers = false;
    }
  }
}

std::optional<std::vector<std::string>> NodeProbes::silent(const std::vector<std::string>& nodes) {
  look();
  std::vector<std::string> silent;
  for (const Probe& probe : probes_) {
    if (std::find(nodes.begin(), nodes.end(), probe.node) == nodes.end()) continue;
    if (!probe.answers) return std::nullopt;
    if (!*probe.answers) silent.push_back(probe.node);
  }
  return silent;
}

}  // namespace tessera
