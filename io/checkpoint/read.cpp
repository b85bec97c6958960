// Reading: every block is compared with its checksum before a value of it is given out.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <list>
#include <unordered_map>

#include "io/checkpoint/envelope.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/path_state.hpp"
#include "io/files/task_queue.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_at_hand = 64;  // open shards, and blocks that are read in parts: of a tensor in so many pieces none comes twice
constexpr std::int64_t run_blocks = 4;    // one read
constexpr std::int64_t window_elements = 4 * run_blocks * hash_block;  // what short runs are read together in
constexpr std::size_t most_runs = 1 << 16;
constexpr std::int64_t read_ahead_bytes = 16 << 20;
constexpr std::string_view reach = "Look at the path's links and permissions and at the file system; a checkpoint may well be there.";
constexpr std::string_view restore = "Restore the file from a copy, or use an older checkpoint of the run.";

/// A shard file whose directory was verified. Tables of block hashes are loaded when first needed.
struct OpenShard {
  int number = 0;
  PosixFile file;
  Envelope envelope;
  ShardDirectory directory;
  std::vector<UnitSlice> held;  // of each group
  std::unordered_map<std::size_t, std::vector<Hash128>> tables;
  std::int64_t ahead_until = 0;  // bytes of the file that the kernel was asked for

  /// Among the directory's slices.
  std::size_t slice_of(std::size_t group, int unit) const {
    auto at = std::lower_bound(held.begin(), held.end(), unit, [](auto& h, int u) { return h.unit < u; });
    return group * held.size() + static_cast<std::size_t>(at - held.begin());
  }
};

/// Floats on a page boundary: what is read into them may pass the page cache.
using AlignedFloats = std::unique_ptr<float, decltype(&std::free)>;
AlignedFloats aligned_floats(std::int64_t n) {
  return {static_cast<float*>(std::aligned_alloc(4096, static_cast<std::size_t>(round_up(n * 4, 4096)))), &std::free};
}

/// A verified block that was wanted only in part: the next part is often asked for soon.
struct BlockAtHand {
  int shard = -1;
  std::size_t slice = 0;
  std::int64_t block = 0;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(hash_block));
};

/// The folder that holds the index: `path` is the folder, a link to it, or the index itself.
std::string resolve_folder(const std::string& path) {
  const PathState there = look_at(path);
  if (there.nothing())
    fail(ExitCode::checkpoint, "{}: no such checkpoint. Give a step folder, checkpoints/latest, or a checkpoint.h5.", path);
  if (there.unknown()) fail(ExitCode::checkpoint, "{}: cannot read it: {}. {}", path, there.reason, reach);
  std::error_code e;
  fs::path folder = fs::canonical(path, e);
  if (e) fail(ExitCode::checkpoint, "{}: cannot resolve the path: {}.", path, e.message());
  if (there.kind != PathState::Kind::folder) folder = folder.parent_path();
  if (folder.extension() == ".partial")
    fail(ExitCode::checkpoint, "{}: this is an unfinished save. Use a step folder without .partial.", path);
  const PathState index = look_at((folder / index_file).string());
  if (index.unknown()) fail(ExitCode::checkpoint, "{}: cannot read it: {}. {}", (folder / index_file).string(), index.reason, reach);
  if (index.nothing()) {
    for (const fs::path& root : {folder, folder / "checkpoints"}) {
      const Head head = find_head(survey_checkpoints(root.string()));
      if (head.entry) fail(ExitCode::checkpoint, "{}: this folder is not a checkpoint but holds some: use {}.", path, head.entry->path);
      if (!head.fault.empty())
        fail(ExitCode::checkpoint, "{}: this folder is not a checkpoint, and of those that it holds the newest cannot be read: {}", path,
             head.fault);
    }
    fail(ExitCode::checkpoint, "{}: the index {} is missing. {}", folder.string(), index_file, restore);
  }
  return folder.string();
}

}  // namespace

struct CheckpointReader::Impl {
  std::string folder;
  Envelope envelope;
  IndexDirectory index;
  Hash128 layout_hash;
  std::unordered_map<std::string, std::size_t> tensors;
  std::list<OpenShard> shards;    // most recently used first
  std::list<BlockAtHand> blocks;  // most recently used first
  std::size_t most_blocks = 1;
  AlignedFloats window{nullptr, &std::free};  // of window_elements, once it is needed

  std::size_t group_number(const std::string& group) const {
    auto& groups = index.layout.groups;
    auto it = std::find(groups.begin(), groups.end(), group);
    if (it == groups.end()) fail(ExitCode::checkpoint, "{}: it holds no group '{}', only {}.", folder, group, fmt::join(groups, ", "));
    return static_cast<std::size_t>(it - groups.begin());
  }

  /// Elements [begin, end) of a slice's unit and the tensors that they touch, for messages.
  std::string describe(const OpenShard& s, std::size_t slice, std::int64_t begin, std::int64_t end) const {
    auto& layout = index.layout;
    auto unit = s.held[slice % s.held.size()].unit;
    std::string text = fmt::format("/{}/{}, elements [{}, {}) of the unit", layout.groups[slice / s.held.size()],
                                   layout.units[static_cast<std::size_t>(unit)].name, begin, end);
    auto touches = [&](const CheckpointPiece& p) { return p.unit == unit && p.offset < end && p.offset + p.box.elements() > begin; };
    std::vector<std::string> touched;
    for (auto& t : layout.tensors)
      if (std::any_of(t.pieces.begin(), t.pieces.end(), touches)) touched.push_back(t.name);
    if (!touched.empty())
      text += fmt::format(
          " (tensor{} {}{})", touched.size() > 1 ? "s" : "",
          fmt::join(touched.begin(), touched.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(touched.size(), 4)), ", "),
          touched.size() > 4 ? fmt::format(" and {} more", touched.size() - 4) : "");
    return text;
  }

  OpenShard& shard(int number) {
    for (auto it = shards.begin(); it != shards.end(); ++it)
      if (it->number == number) {
        shards.splice(shards.begin(), shards, it);
        return shards.front();
      }
    if (shards.size() >= most_at_hand) shards.pop_back();
    shards.push_front(open_shard(number));
    return shards.front();
  }

  OpenShard open_shard(int number) const {
    const std::string path = folder + "/" + shard_file(number);
    if (look_at(path).nothing())  // what else may be wrong with it is said where it is opened
      fail(ExitCode::checkpoint, "{}: this shard ({} of {}) is missing. {}", path, number, index.layout.shards, restore);
    OpenShard s;
    s.number = number;
    s.file = PosixFile::open(path, ExitCode::checkpoint);
    s.file.use_direct();
    s.envelope = read_envelope(s.file, "shard");
    if (s.envelope.hash != index.shards[static_cast<std::size_t>(number)])
      fail(ExitCode::checkpoint, "{}: this shard was not written together with {} of the folder: files of two checkpoints are mixed. {}",
           path, index_file, restore);
    s.directory = parse_shard_directory(s.envelope.directory, path);
    auto& layout = index.layout;
    s.held = slices_of(layout, number);
    bool fits = s.envelope.format == envelope.format && s.directory.shard == number && s.directory.layout == layout_hash &&
                s.directory.slices.size() == s.held.size() * layout.groups.size();
    for (std::size_t i = 0; fits && i < s.directory.slices.size(); ++i) {
      auto& c = s.directory.slices[i];
      auto& h = s.held[i % s.held.size()];
      fits = c.begin == h.begin && c.end == h.end && c.data_at >= 0 && c.hashes_at >= 0 &&
             c.data_at + c.elements() * 4 <= s.envelope.file_bytes && c.hashes_at + c.blocks() * 16 <= s.envelope.file_bytes;
    }
    if (!fits) fail(ExitCode::checkpoint, "{}: its slices do not fit the layout in {}. {}", path, index_file, restore);
    return s;
  }

  const std::vector<Hash128>& table(OpenShard& s, std::size_t slice) {
    auto [it, fresh] = s.tables.try_emplace(slice);
    if (!fresh) return it->second;
    auto& c = s.directory.slices[slice];
    std::vector<std::uint64_t> raw(static_cast<std::size_t>(c.blocks()) * 2);
    auto got = s.file.read(c.hashes_at, raw.data(), raw.size() * 8);
    if (got != raw.size() * 8 || hash_bytes(raw.data(), raw.size() * 8) != c.digest) {
      s.tables.erase(it);
      fail(ExitCode::checkpoint, "{}: the checksums of {} are damaged: the file was altered. {}", s.file.path(),
           describe(s, slice, c.begin, c.end), restore);
    }
    for (std::size_t k = 0; k < raw.size(); k += 2) it->second.push_back({raw[k], raw[k + 1]});
    return it->second;
  }

  /// Reads blocks [block, end) of a slice into `out` and verifies each. Touches nothing of the reader: runs may go side by side.
  void read_run(const OpenShard& s, std::size_t slice, const std::vector<Hash128>& expected, std::int64_t block, std::int64_t end,
                float* out) const {
    auto& c = s.directory.slices[slice];
    auto first = block * hash_block, n = std::min(end * hash_block, c.elements()) - first;
    auto bytes = static_cast<std::size_t>(n) * 4;
    if (s.file.read(c.data_at + first * 4, out, bytes) != bytes)
      fail(ExitCode::checkpoint, "{}: the file ends inside {}. {}", s.file.path(), describe(s, slice, c.begin + first, c.begin + first + n),
           restore);
    for (std::int64_t at = 0; at < n; at += hash_block) {
      auto length = std::min(hash_block, n - at), from = c.begin + first + at;
      if (hash_bytes(out + at, static_cast<std::size_t>(length) * 4) != expected[static_cast<std::size_t>(block++)])
        fail(ExitCode::checkpoint, "{}: {} do not match their checksum: the file was altered or the disk returned wrong data. {}",
             s.file.path(), describe(s, slice, from, from + length), restore);
    }
  }

  /// Reads `count` whole blocks of a slice, verified, several runs at a time.
  void read_blocks(OpenShard& s, std::size_t slice, std::int64_t block, std::int64_t count, float* out) {
    auto& expected = table(s, slice);
    if (count <= run_blocks) return read_run(s, slice, expected, block, block + count, out);
    TaskQueue queue;
    for (auto b = block; b < block + count; b += run_blocks)
      queue.push([&, b] { read_run(s, slice, expected, b, std::min(b + run_blocks, block + count), out + (b - block) * hash_block); });
    queue.wait();
  }

  /// A block of a slice, verified. The last ones stay at hand, since streams ask for them in parts.
  const float* one_block(OpenShard& s, std::size_t slice, std::int64_t block) {
    auto wanted = [&](auto& b) { return b.shard == s.number && b.slice == slice && b.block == block; };
    if (auto found = std::find_if(blocks.begin(), blocks.end(), wanted); found != blocks.end()) {
      blocks.splice(blocks.begin(), blocks, found);
    } else {
      if (blocks.size() < most_blocks) blocks.emplace_back();
      blocks.splice(blocks.begin(), blocks, std::prev(blocks.end()));
      blocks.front().shard = -1;  // until the block has proved itself
      auto at = s.directory.slices[slice].data_at + block * hash_block * 4;
      if (at < s.ahead_until - read_ahead_bytes || at + hash_block * 4 > s.ahead_until - read_ahead_bytes / 2) {
        s.file.read_ahead(at, read_ahead_bytes);
        s.ahead_until = at + read_ahead_bytes;
      }
      read_blocks(s, slice, block, 1, blocks.front().values.data());
      blocks.front().shard = s.number, blocks.front().slice = slice, blocks.front().block = block;
    }
    return blocks.front().values.data();
  }

  /// Elements [begin, begin + out.size()) of a slice, counted from the slice's own begin.
  void read_slice(OpenShard& s, std::size_t slice, std::int64_t begin, std::span<float> out) {
    auto length = s.directory.slices[slice].elements();
    while (!out.empty()) {
      std::int64_t block = begin / hash_block, inside = begin % hash_block, wanted = static_cast<std::int64_t>(out.size()), n;
      bool to_the_end = begin + wanted == length;  // of the slice: its last block may be short
      auto whole = inside > 0 ? 0 : to_the_end ? ceil_div(wanted, hash_block) : wanted / hash_block;
      if (whole > 0) {
        n = std::min(whole * hash_block, wanted);
        read_blocks(s, slice, block, whole, out.data());
      } else {
        n = std::min(wanted, std::min(hash_block, length - block * hash_block) - inside);
        std::memcpy(out.data(), one_block(s, slice, block) + inside, static_cast<std::size_t>(n) * 4);
      }
      begin += n;
      out = out.subspan(static_cast<std::size_t>(n));
    }
  }

  void read_unit(std::size_t group, int number, std::int64_t begin, std::span<float> out) {
    auto& unit = index.layout.units[static_cast<std::size_t>(number)];
    const int holders = holder_count(index.layout, unit);
    // The slice that holds `begin`: a first guess, then the exact one (slices differ by at most one element).
    int k = static_cast<int>(out.empty() ? 0 : begin * holders / unit.elements);
    while (!out.empty()) {
      while (slice_begin(unit.elements, holders, k + 1) <= begin) ++k;
      auto from = slice_begin(unit.elements, holders, k), to = slice_begin(unit.elements, holders, k + 1);
      auto n = std::min<std::int64_t>(static_cast<std::int64_t>(out.size()), to - begin);
      auto& s = shard(holder_of(unit, k));
      read_slice(s, s.slice_of(group, number), begin - from, out.first(static_cast<std::size_t>(n)));
      begin += n;
      out = out.subspan(static_cast<std::size_t>(n));
    }
  }

  /// A box of a tensor's natural shape, row-major, from whatever pieces hold it.
  void read_pieces(std::size_t group, const CheckpointTensor& tensor, const Box& box, std::span<float> out) {
    most_blocks = std::max(most_blocks, std::min(tensor.pieces.size(), most_at_hand));
    for (auto& piece : tensor.pieces) {
      auto common = overlap(piece.box, box);
      if (!common) continue;
      // Short runs that lie near each other in the unit are read together.
      std::vector<BoxRun> runs;
      auto flush = [&] {
        if (runs.empty()) return;
        auto first = runs.front().from, n = runs.back().from + runs.back().elements - first;
        auto at = [&](std::int64_t to, std::int64_t elements) {
          return out.subspan(static_cast<std::size_t>(to), static_cast<std::size_t>(elements));
        };
        if (runs.size() == 1) {
          read_unit(group, piece.unit, piece.offset + first, at(runs.front().to, n));
        } else {
          if (!window) window = aligned_floats(window_elements);
          read_unit(group, piece.unit, piece.offset + first, {window.get(), static_cast<std::size_t>(n)});
          for (auto& r : runs) std::copy_n(window.get() + (r.from - first), r.elements, at(r.to, r.elements).begin());
        }
        runs.clear();
      };
      for_each_run(*common, piece.box, box, [&](const BoxRun& run) {
        if (!runs.empty() && (std::max(run.elements, runs.back().elements) >= hash_block || runs.size() >= most_runs ||
                              run.from - runs.back().from - runs.back().elements >= hash_block ||
                              run.from + run.elements - runs.front().from > window_elements))
          flush();
        runs.push_back(run);
      });
      flush();
    }
  }

  void verify_structure(const PosixFile& file, const Envelope& e, const Hash128& expected, std::vector<Extent> holes) const {
    std::sort(holes.begin(), holes.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
    if (hash_outside(file, e.block_bytes, e.file_bytes, holes) != expected)
      fail(ExitCode::checkpoint, "{}: its HDF5 metadata do not match their checksum: the file was altered. {}", file.path(), restore);
  }
};

CheckpointReader::CheckpointReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->folder = resolve_folder(path);
  auto file = PosixFile::open(impl_->folder + "/" + index_file, ExitCode::checkpoint);
  impl_->envelope = read_envelope(file, "index");
  impl_->index = parse_index_directory(impl_->envelope.directory, file.path());
  if (impl_->envelope.format != checkpoint_format(impl_->index.layout))
    fail(ExitCode::checkpoint, "{}: its first line says format {}, and its layout is of format {}: it was altered. {}", file.path(),
         impl_->envelope.format, checkpoint_format(impl_->index.layout), restore);
  impl_->envelope.directory.clear();  // parsed: the deck and the layout are held once
  impl_->layout_hash = hash_text(layout_text(impl_->index.layout));
  for (std::size_t i = 0; i < impl_->index.layout.tensors.size(); ++i) impl_->tensors[impl_->index.layout.tensors[i].name] = i;
}
CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

const CheckpointMeta& CheckpointReader::meta() const { return impl_->index.meta; }
const CheckpointLayout& CheckpointReader::layout() const { return impl_->index.layout; }
const std::string& CheckpointReader::folder() const { return impl_->folder; }
std::string CheckpointReader::digest() const { return impl_->envelope.hash.hex(); }

void CheckpointReader::require_shards() const {
  for (int number = 0; number < impl_->index.layout.shards; ++number) impl_->open_shard(number);
}

const CheckpointTensor* CheckpointReader::find(const std::string& tensor) const {
  auto it = impl_->tensors.find(tensor);
  return it == impl_->tensors.end() ? nullptr : &impl_->index.layout.tensors[it->second];
}

void CheckpointReader::read(const std::string& group, const CheckpointTensor& tensor, std::int64_t begin, std::span<float> out) const {
  read_box(group, tensor, whole_box(tensor.shape), out, begin);
}

void CheckpointReader::read_box(const std::string& group, const CheckpointTensor& tensor, const Box& box, std::span<float> out,
                                std::int64_t begin) const {
  const auto n = static_cast<std::int64_t>(out.size());
  TESSERA_REQUIRE(lies_in(box, tensor.shape) && begin >= 0 && begin + n <= box.elements(), "{} ({}), box {}: [{}, +{})", tensor.name,
                  tensor.shape.str(), box.str(), begin, n);
  const std::size_t number = impl_->group_number(group);
  for (auto& piece : tensor.pieces)
    if (piece.box == box) return impl_->read_unit(number, piece.unit, piece.offset + begin, out);
  for (auto& part : flat_range_boxes(box.count, begin, begin + n)) {
    const auto elements = static_cast<std::size_t>(part.elements());
    impl_->read_pieces(number, tensor, outside(part, box), out.first(elements));
    out = out.subspan(elements);
  }
}

void CheckpointReader::read_unit(const std::string& group, int unit, std::int64_t begin, std::span<float> out) const {
  auto& units = impl_->index.layout.units;
  TESSERA_REQUIRE(unit >= 0 && unit < static_cast<int>(units.size()));
  TESSERA_REQUIRE(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= units[static_cast<std::size_t>(unit)].elements);
  impl_->read_unit(impl_->group_number(group), unit, begin, out);
}

void CheckpointReader::verify(const std::function<void(std::int64_t, std::int64_t)>& progress, int part, int parts) const {
  auto& layout = impl_->index.layout;
  const std::string index_path = impl_->folder + "/" + index_file;
  auto index = PosixFile::open(index_path, ExitCode::checkpoint);
  auto envelope = read_envelope(index, "index");
  impl_->verify_structure(index, envelope, impl_->index.structure, {});
  std::int64_t done = 0, total = 0, piece = 0;
  for (auto& u : layout.units) total += u.elements * 4 * static_cast<std::int64_t>(layout.groups.size());
  constexpr std::int64_t blocks_at_once = 4 * run_blocks;
  const AlignedFloats buffer = aligned_floats(blocks_at_once * hash_block);
  for (int number = 0; number < layout.shards; ++number) {
    auto shard = impl_->open_shard(number);
    std::vector<Extent> holes;
    for (std::size_t i = 0; i < shard.directory.slices.size(); ++i) {
      auto& c = shard.directory.slices[i];
      for (std::int64_t k = 0; k < c.blocks(); k += blocks_at_once) {
        if (piece++ % parts != part) continue;
        auto count = std::min(blocks_at_once, c.blocks() - k);
        impl_->read_blocks(shard, i, k, count, buffer.get());
        done += std::min(count * hash_block, c.elements() - k * hash_block) * 4;
        if (progress) progress(done, total);
      }
      if (c.elements() == 0) continue;
      holes.push_back({c.data_at, c.data_at + c.elements() * 4});
      holes.push_back({c.hashes_at, c.hashes_at + c.blocks() * 16});
    }
    if (number % parts == part) impl_->verify_structure(shard.file, shard.envelope, shard.directory.structure, std::move(holes));
  }
}

std::string CheckpointReader::tensor_hash(const std::string& group, const CheckpointTensor& tensor) const {
  Hasher hasher;
  std::vector<float> chunk(static_cast<std::size_t>(hash_block));
  for (std::int64_t at = 0, n = tensor.shape.elements(); at < n;) {
    auto part = std::span(chunk).first(static_cast<std::size_t>(std::min(hash_block, n - at)));
    read(group, tensor, at, part);
    hasher.update(part.data(), part.size_bytes());
    at += static_cast<std::int64_t>(part.size());
  }
  return hasher.digest().hex();
}

}  // namespace tessera::io
