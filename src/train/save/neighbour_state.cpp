#include "train/save/neighbour_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <tuple>
#include <utility>

#include "base/log.hpp"
#include "io/checkpoint/format.hpp"
#include "io/files/posix_file.hpp"
#include "train/save/saving.hpp"

namespace tessera {
namespace {

/// Of a start's step: files with the same numbers in another layout are of another save.
struct CopiesOf {
  std::int64_t step = 0;
  std::string start, layout;
  friend auto operator<=>(const CopiesOf&, const CopiesOf&) = default;
};
/// All that nodes have, by shard.
using Everywhere = std::map<CopiesOf, std::map<int, std::vector<ShardPlace>>>;

std::string list_here(const io::FoundCopies& found) {
  std::string lines;
  for (const io::FoundShard& s : found.shards)
    lines += fmt::format("{} {} {} {} {}\n", s.step, s.start, s.layout.hex(), s.shard, s.hash.hex());
  return lines;
}

Everywhere gather(const World& world, const io::FoundCopies& found) {
  Everywhere all;
  const std::vector<std::string> texts = world.gather_text(world.place().local_rank == 0 ? list_here(found) : "");
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    CopiesOf of;
    ShardPlace place{.rank = static_cast<int>(rank)};
    for (int shard = 0; lines >> of.step >> of.start >> of.layout >> shard >> place.hash;) all[of][shard].push_back(place);
  }
  return all;
}

/// The first ranks of nodes, by rank.
std::vector<int> first_ranks(const World& world) {
  std::vector<int> first;
  std::map<std::string, int> of_node;
  const std::vector<std::string> nodes = world.gather_text(std::to_string(world.place().node));
  for (std::size_t rank = 0; rank < nodes.size(); ++rank)
    first.push_back(of_node.emplace(nodes[rank], static_cast<int>(rank)).first->second);
  return first;
}

}  // namespace

std::string NeighbourState::place_shards(const std::map<int, std::vector<ShardPlace>>& shards) {
  std::vector<int> missing;
  for (int shard = 0; shard < copies_.layout.shards; ++shard) {
    std::vector<int>& holders = holders_.emplace_back();
    Hash128& hash = hashes_.emplace_back();
    const auto found = shards.find(shard);
    if (found == shards.end()) {
      missing.push_back(shard);
      continue;
    }
    const std::string& of_first = found->second.front().hash;
    TESSERA_REQUIRE(parse_hash(of_first, hash));
    for (const ShardPlace& place : found->second)
      if (place.hash == of_first) holders.push_back(place.rank);
  }
  if (missing.empty()) return "";
  return fmt::format("{} of {} shards ({}) are on none of the nodes: both ranks that stored each were lost", missing.size(),
                     copies_.layout.shards, fmt::join(missing, ", "));
}

std::optional<NeighbourState> NeighbourState::find(const World& world, const CopiesRecord& record, std::int64_t step,
                                                   const std::function<std::string(const io::CheckpointMeta&)>& fits) {
  const std::string run = record.run_folder();
  const bool first = world.place().local_rank == 0;
  io::FoundCopies found;
  if (first) found = io::find_state_copies(run);
  for (const std::string& fault : found.faults) warning("a replica in the memory of {} is left out: {}", world.place().host, fault);
  // Every rank goes through the same list, so that all come to the same end.
  const Everywhere all = gather(world, found);
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    const auto& [of, shards] = *it;
    const bool named = of.start == record.start || (of.start == record.from && of.step == record.from_step);
    if (of.step <= step || !named) continue;
    NeighbourState state;
    state.run_ = run, state.start_ = of.start;
    std::string text, fault = "their description is on no node";
    for (const std::string& one : world.gather_text(first ? io::find_description(run, of.start, of.step) : ""))
      if (text.empty()) text = one;
    if (!text.empty()) {
      state.copies_ = io::parse_description(text, "the copies of the state");
      fault = state.place_shards(shards);
      if (fault.empty() && hash_text(io::layout_text(state.copies_.layout)).hex() != of.layout)
        fault = "they do not match their description";
      if (fault.empty()) fault = world.broadcast_text(world.rank() == 0 ? fits(state.copies_.meta) : "");
    }
    if (!fault.empty()) {
      if (world.rank() == 0) warning("the in-memory replicas of step {} are not used: {}", of.step, fault);
      continue;
    }
    for (const io::FoundShard& shard : found.shards)
      if (shard.step == of.step && shard.start == of.start && shard.layout.hex() == of.layout &&
          shard.hash == state.hashes_[static_cast<std::size_t>(shard.shard)])
        state.here_.push_back(shard);
    return state;
  }
  return {};
}

std::string NeighbourState::folder_on(const World& world) const {
  return io::put_together_folder(run_, start_, world.place().node, copies_.meta.step);
}

void NeighbourState::load(const World& world, const Neighbours& neighbours, Engine& engine) const {
  const std::string folder = folder_on(world);
  const bool first = world.place().local_rank == 0;
  world.together([&] {
    if (first) io::put_together(folder, copies_, hashes_, here_);
  });
  std::set<int> needed;
  world.together([&] {
    io::CheckpointReader reader(folder);
    reader.only_note(needed);
    engine.read_state(reader);
  });
  // What ranks of a node need and the node has not comes to the first of them.
  const std::vector<int> first_of = first_ranks(world);
  std::map<int, std::set<int>> wanted;
  const std::vector<std::string> needs = world.gather_text(fmt::format("{}", fmt::join(needed, " ")));
  for (std::size_t rank = 0; rank < needs.size(); ++rank) {
    std::istringstream numbers(needs[rank]);
    for (int shard = 0; numbers >> shard;)
      if (std::ranges::find(holders_[static_cast<std::size_t>(shard)], first_of[rank]) == holders_[static_cast<std::size_t>(shard)].end())
        wanted[first_of[rank]].insert(shard);
  }
  std::vector<Neighbours::Transfer> transfers;
  std::vector<int> shards;
  for (const auto& [to, numbers] : wanted)
    for (const int shard : numbers) {
      const std::vector<int>& holders = holders_[static_cast<std::size_t>(shard)];
      transfers.push_back({.from = holders[transfers.size() % holders.size()], .to = to});  // in turns
      shards.push_back(shard);
    }
  const auto path_of = [&](std::size_t k) { return folder + "/" + io::shard_file(shards[k]); };
  std::optional<io::PosixFile> reading;
  std::optional<io::ArrivingFile> arriving;
  world.together([&] {
    neighbours.carry(
        transfers,
        [&](std::size_t k) {
          reading = io::PosixFile::open(path_of(k), ExitCode::checkpoint);
          return Outgoing{.bytes = reading->size(),
                          .read = [&](std::int64_t at, std::span<std::byte> out) { reading->read(at, out.data(), out.size()); }};
        },
        [&](std::size_t k) {
          return Incoming{.begin =
                              [&, k](std::int64_t bytes) {
                                arriving.reset();
                                if (bytes < 0) fail(ExitCode::checkpoint, "{}: the rank that stored it cannot read it.", path_of(k));
                                arriving.emplace(path_of(k), bytes);
                              },
                          .write = [&](std::int64_t at, std::span<const std::byte> piece) { arriving->write(at, piece); },
                          .end = [&] { arriving->stands(); }};
        });
  });
  if (world.rank() == 0 && !transfers.empty())
    info("{} shards of the state were sent from the nodes that had them to those that need them", transfers.size());
  load_checkpoint(world, engine, folder);
}

}  // namespace tessera
