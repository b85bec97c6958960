#include "train/engine/copies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "train/engine/engine.hpp"

namespace tessera {
namespace {

/// Where this rank has one of several copies of a unit's elements, the ranks that have the others; else itself.
Group holders_of(const BuildRequest& request, const Unit& unit, bool whole) {
  const Axes replicas = axes({Axis::replicate});
  const Axes others = contains(unit.owners, Axis::replicate) ? Axes{0} : replicas;
  return request.group(static_cast<Axes>(whole ? unit.owners | others : others));
}

std::string name_of_copy(std::string_view what, const Unit& unit, const Range& range, const Group& holders) {
  return fmt::format("{} of {}{} (ranks {})", what, unit.name,
                     range.size() == unit.elements ? "" : fmt::format(", elements {} to {}", range.begin, range.end - 1),
                     fmt::join(holders.world, ", "));
}

Hash128 digest_of(const std::vector<CopyDigest>& copies) {
  Hasher hasher;
  for (const CopyDigest& copy : copies) {
    const std::string line = copy.what + copy.digest.hex();
    hasher.update(line.data(), line.size());
  }
  return hasher.digest();
}

}  // namespace

std::vector<CopyDigest> Engine::digest_copies() {
  settle();
  constexpr std::int64_t piece = std::int64_t{1} << 22;
  std::vector<std::byte> scratch;
  const auto join = [&](Hasher& hasher, const Use& use) {
    if (memory_.on_host(use.buffer)) return hasher.update(memory_.address(use), static_cast<std::size_t>(use.bytes));
    for (std::int64_t at = 0; at < use.bytes; at += piece) {
      scratch.resize(static_cast<std::size_t>(std::min(piece, use.bytes - at)));
      memory_.copy(scratch.data(), memory_.address(use.buffer, use.offset + at), std::ssize(scratch));
      hasher.update(scratch.data(), scratch.size());
    }
  };
  std::vector<CopyDigest> copies;
  const auto add = [&](std::string_view what, const Unit& unit, const Range& range, const std::vector<Use>& uses) {
    const Group holders = holders_of(plan_.request, unit, range.size() == unit.elements);
    if (holders.size < 2 || memory_.on_disk(uses.front().buffer)) return;
    Hasher hasher;
    for (const Use& use : uses) join(hasher, use);
    copies.push_back({name_of_copy(what, unit, range, holders), hasher.digest()});
  };
  for (const Unit& unit : layout().units) {
    const int buffer = schedule().find_buffer("parameters." + unit.name);
    if (buffer < 0) continue;
    const auto size = static_cast<std::int64_t>(size_of(unit.type(schedule().shape.dtype)));
    if (schedule().buffers[static_cast<std::size_t>(buffer)].bytes != unit.elements * size) continue;
    // Between tensors lies what a copy through memory of several uses has left there. Nobody reads it, and a checkpoint does not have it.
    std::vector<Use> tensors;
    for (const Slot& slot : unit.slots) tensors.push_back({.buffer = buffer, .offset = slot.offset * size, .bytes = slot.elements * size});
    if (!tensors.empty()) add("weights", unit, {0, unit.elements}, tensors);
  }
  for (const Held& held : schedule().state)
    if (!held.own && held.of == kernels::Extent::element)
      add(held.group, layout().units[static_cast<std::size_t>(held.unit)], held.elements, {held.use});
  return copies;
}

void AgreedCopies::note(std::int64_t step, const std::vector<CopyDigest>& copies) {
  by_step_[step] = digest_of(copies);
  if (by_step_.size() > kept) by_step_.erase(by_step_.begin());
}

bool AgreedCopies::differ(std::int64_t step, const std::vector<CopyDigest>& copies) const {
  const auto noted = by_step_.find(step);
  return noted != by_step_.end() && noted->second != digest_of(copies);
}

std::vector<DifferentCopies> compare_copies(const std::vector<std::vector<CopyDigest>>& of_ranks) {
  std::map<std::string, std::map<std::string, std::vector<int>>> by_content;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    for (const CopyDigest& copy : of_ranks[rank]) by_content[copy.what][copy.digest.hex()].push_back(static_cast<int>(rank));
  std::vector<DifferentCopies> found;
  for (auto& [what, contents] : by_content) {
    if (contents.size() < 2) continue;
    found.push_back({.what = what, .ranks = {}});
    for (auto& [digest, ranks] : contents) found.back().ranks.push_back(std::move(ranks));
    std::ranges::stable_sort(found.back().ranks, [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
    });
  }
  return found;
}

std::vector<DifferentCopies> compare_copies(const World& world, const std::vector<CopyDigest>& mine) {
  std::string text;
  for (const CopyDigest& copy : mine) text += fmt::format("{}\t{}\n", copy.digest.hex(), copy.what);
  std::vector<std::vector<CopyDigest>> of_ranks;
  for (const std::string& of_rank : world.gather_text(text)) {
    std::vector<CopyDigest>& copies = of_ranks.emplace_back();
    std::istringstream lines(of_rank);
    for (std::string line; std::getline(lines, line);) {
      CopyDigest copy{.what = line.substr(33), .digest = {}};
      TESSERA_REQUIRE(parse_hash(line.substr(0, 32), copy.digest));
      copies.push_back(std::move(copy));
    }
  }
  return compare_copies(of_ranks);
}

}  // namespace tessera
