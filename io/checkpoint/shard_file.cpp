#include "io/checkpoint/shard_file.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "io/files/path_state.hpp"
#include "io/files/task_queue.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t run_blocks = 4;  // one read
constexpr std::int64_t read_ahead_bytes = 16 << 20;

}  // namespace

std::vector<Extent> data_extents(const ShardDirectory& d) {
  std::vector<Extent> out;
  for (auto& s : d.slices)
    if (s.elements() > 0) {
      out.push_back({s.data_at, s.data_at + s.elements() * 4});
      out.push_back({s.hashes_at, s.hashes_at + s.blocks() * 16});
    }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  return out;
}

ShardFile::ShardFile(const std::string& folder, const CheckpointLayout& layout, const Hash128& layout_hash, int number)
    : layout_(&layout), number_(number) {
  const std::string path = folder + "/" + shard_file(number);
  if (look_at(path).nothing())  // what else may be wrong with it is said where it is opened
    fail(ExitCode::checkpoint, "{}: this shard ({} of {}) is missing. {}", path, number, file_count(layout), restore_advice);
  file_ = PosixFile::open(path, ExitCode::checkpoint);
  file_.use_direct();
  envelope_ = read_envelope(file_, "shard");
  directory_ = parse_shard_directory(envelope_.directory, path);
  const auto shards = shards_in(layout, number);
  std::vector<GroupSlice> expected;
  for (int shard : shards) {
    Member member{expected.size(), slices_of_groups(layout, shard)};
    expected.insert(expected.end(), member.held.begin(), member.held.end());
    members_.emplace(shard, std::move(member));
  }
  auto fits = [&](const SliceEntry& c, const GroupSlice& h) {
    return c.begin == h.of.begin && c.end == h.of.end && c.data_at >= 0 && c.hashes_at >= 0 &&
           c.data_at + c.elements() * 4 <= envelope_.file_bytes && c.hashes_at + c.blocks() * 16 <= envelope_.file_bytes;
  };
  if (envelope_.format != checkpoint_format(layout) || directory_.shards != shards || directory_.layout != layout_hash ||
      !std::equal(directory_.slices.begin(), directory_.slices.end(), expected.begin(), expected.end(), fits))
    fail(ExitCode::checkpoint, "{}: its slices do not fit the layout in {}. {}", path, index_file, restore_advice);
}

std::size_t ShardFile::slice_of(int shard, std::size_t group, int unit) const {
  const Member& member = members_.at(shard);
  const auto wanted = std::pair(static_cast<int>(group), unit);
  auto at = std::ranges::lower_bound(member.held, wanted, {}, [](const GroupSlice& h) { return std::pair(h.group, h.of.unit); });
  TESSERA_REQUIRE(at != member.held.end() && at->group == wanted.first && at->of.unit == unit, "shard {} has no unit {} of group {}", shard,
                  unit, group);
  return member.first + static_cast<std::size_t>(at - member.held.begin());
}

ShardFile::Place ShardFile::place_of(std::size_t slice) const {
  const auto in = [&](auto& entry) {
    const Member& m = entry.second;
    return slice >= m.first && slice < m.first + m.held.size();
  };
  const Member& member = std::find_if(members_.begin(), members_.end(), in)->second;
  const GroupSlice& found = member.held[slice - member.first];
  return {layout_->groups[static_cast<std::size_t>(found.group)], found.of.unit};
}

std::string ShardFile::describe(std::size_t slice, std::int64_t begin, std::int64_t end) const {
  const auto [group, unit] = place_of(slice);
  std::string text =
      fmt::format("/{}/{}, elements [{}, {}) of the unit", group, layout_->units[static_cast<std::size_t>(unit)].name, begin, end);
  auto touches = [&](const CheckpointPiece& p) { return p.unit == unit && p.offset < end && p.offset + p.box.elements() > begin; };
  std::vector<std::string> touched;
  for (auto& t : layout_->tensors)
    if (std::any_of(t.pieces.begin(), t.pieces.end(), touches)) touched.push_back(t.name);
  if (!touched.empty())
    text += fmt::format(
        " (tensor{} {}{})", touched.size() > 1 ? "s" : "",
        fmt::join(touched.begin(), touched.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(touched.size(), 4)), ", "),
        touched.size() > 4 ? fmt::format(" and {} more", touched.size() - 4) : "");
  return text;
}

const std::vector<Hash128>& ShardFile::table(std::size_t slice) {
  auto [it, fresh] = tables_.try_emplace(slice);
  if (!fresh) return it->second;
  auto& c = directory_.slices[slice];
  std::vector<std::uint64_t> raw(static_cast<std::size_t>(c.blocks()) * 2);
  auto got = file_.read(c.hashes_at, raw.data(), raw.size() * 8);
  if (got != raw.size() * 8 || hash_bytes(raw.data(), raw.size() * 8) != c.digest) {
    tables_.erase(it);
    fail(ExitCode::checkpoint, "{}: the checksums of {} are damaged: the file was altered. {}", path(), describe(slice, c.begin, c.end),
         restore_advice);
  }
  for (std::size_t k = 0; k < raw.size(); k += 2) it->second.push_back({raw[k], raw[k + 1]});
  return it->second;
}

void ShardFile::read_run(std::size_t slice, const std::vector<Hash128>& table, std::int64_t block, std::int64_t end, float* out) const {
  auto& c = directory_.slices[slice];
  auto first = block * hash_block, n = std::min(end * hash_block, c.elements()) - first;
  auto bytes = static_cast<std::size_t>(n) * 4;
  if (file_.read(c.data_at + first * 4, out, bytes) != bytes)
    fail(ExitCode::checkpoint, "{}: the file ends inside {}. {}", path(), describe(slice, c.begin + first, c.begin + first + n),
         restore_advice);
  for (std::int64_t at = 0; at < n; at += hash_block) {
    auto length = std::min(hash_block, n - at), from = c.begin + first + at;
    if (hash_bytes(out + at, static_cast<std::size_t>(length) * 4) != table[static_cast<std::size_t>(block++)])
      fail(ExitCode::checkpoint, "{}: {} do not match their checksum: the file was altered or the disk returned wrong data. {}", path(),
           describe(slice, from, from + length), restore_advice);
  }
}

void ShardFile::read_blocks(std::size_t slice, std::int64_t block, std::int64_t count, float* out) {
  auto& expected = table(slice);
  if (count <= run_blocks) return read_run(slice, expected, block, block + count, out);
  TaskQueue queue;
  for (auto b = block; b < block + count; b += run_blocks)
    queue.push(
        [&, b](PageBuffer&) { read_run(slice, expected, b, std::min(b + run_blocks, block + count), out + (b - block) * hash_block); });
  queue.wait();
}

void ShardFile::read_ahead(std::size_t slice, std::int64_t block) {
  auto at = directory_.slices[slice].data_at + block * hash_block * 4;
  if (at >= ahead_until_ - read_ahead_bytes && at + hash_block * 4 <= ahead_until_ - read_ahead_bytes / 2) return;
  file_.read_ahead(at, read_ahead_bytes);
  ahead_until_ = at + read_ahead_bytes;
}

void ShardFile::verify_structure() const {
  if (hash_outside(file_, envelope_.block_bytes, envelope_.file_bytes, data_extents(directory_)) != directory_.structure)
    fail(ExitCode::checkpoint, "{}: its HDF5 metadata do not match their checksum: the file was altered. {}", path(), restore_advice);
}

}  // namespace tessera::io
