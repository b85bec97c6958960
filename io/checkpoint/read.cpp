// Reading: every block is compared with its checksum before a value of it is given out.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <list>
#include <unordered_map>

#include "base/log.hpp"
#include "io/checkpoint/block_stream.hpp"
#include "io/checkpoint/finite.hpp"
#include "io/checkpoint/shard_file.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/path_state.hpp"
#include "models/model_folder.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t most_at_hand = 64;  // open shards, and blocks that are read in parts: of a tensor in so many pieces none comes twice
constexpr std::int64_t blocks_at_once = 16;                            // a verification's
constexpr std::int64_t window_elements = blocks_at_once * hash_block;  // what short runs are read together in
constexpr std::size_t most_runs = 1 << 16;
constexpr std::string_view reach = "Look at the path's links and permissions and at the file system; a checkpoint may be there.";
/// A verified block that was wanted only in part: the next part is often asked for soon.
struct BlockAtHand {
  int file = -1;
  std::size_t slice = 0;
  std::int64_t block = 0;
  std::vector<float> values = std::vector<float>(static_cast<std::size_t>(hash_block));
};

/// The folder that holds the index: `path` is the folder, a link to it, or the index itself.
std::string resolve_folder(const std::string& path) {
  const PathState there = look_at(path);
  if (there.nothing())
    fail(ExitCode::checkpoint, "{}: no such checkpoint. Give a step folder, checkpoints/latest, or a checkpoint.h5.{}", path,
         instead_of_checkpoint(path));
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
        fail(ExitCode::checkpoint, "{}: this folder is not a checkpoint, and the newest checkpoint in it cannot be read: {}", path,
             head.fault);
    }
    if (const std::string instead = instead_of_checkpoint(folder.string()); !instead.empty())
      fail(ExitCode::checkpoint, "{}: it is not a checkpoint.{}", path, instead);
    fail(ExitCode::checkpoint, "{}: the index {} is missing. {}", folder.string(), index_file, restore_advice);
  }
  return folder.string();
}

}  // namespace

struct CheckpointReader::Impl {
  std::string folder;
  PathState state;  ///< of the index that was read
  Envelope envelope;
  IndexDirectory index;
  Hash128 layout_hash;
  std::unordered_map<std::string, std::vector<std::size_t>> tensors;  // of a name, in order
  std::list<ShardFile> files;                                         // most recently used first
  std::list<BlockAtHand> blocks;                                      // most recently used first
  BlockStream stream;                                                 // of the files
  std::size_t most_blocks = 1;
  std::set<int>* noted = nullptr;     // see only_note
  std::array<PageBuffer, 2> windows;  // of window_elements, once needed

  void open(const std::string& path) {
    folder = resolve_folder(path);
    auto file = PosixFile::open(folder + "/" + index_file, ExitCode::checkpoint);
    state = file.state();
    envelope = read_envelope(file, "index");
    index = parse_index_directory(envelope.directory, file.path());
    if (envelope.format != checkpoint_format(index.layout))
      fail(ExitCode::checkpoint, "{}: its first line says format {}, but its layout is of format {}: it was altered. {}", file.path(),
           envelope.format, checkpoint_format(index.layout), restore_advice);
  }

  bool gone() const {
    const PathState now = look_at(folder + "/" + index_file);
    return !now.unknown() && !now.same_as(state);
  }

  void verify(const std::function<void(std::int64_t, std::int64_t)>& progress, int part, int parts) const;

  /// A fault of a checkpoint that was taken away is not one of its files.
  template <class Read>
  auto unless_gone(Read&& read) const {
    try {
      return read();
    } catch (const Error&) {
      if (!gone()) throw;
      throw CheckpointGone(
          ExitCode::checkpoint,
          fmt::format("{}: it was removed or replaced while it was read, because its run keeps only the newest checkpoint.keep. Name one "
                      "that is there, or checkpoints/latest; to keep more, raise checkpoint.keep or set checkpoint.keep_every.",
                      folder));
    }
  }

  std::size_t group_number(const std::string& group) const {
    auto& groups = index.layout.groups;
    auto it = std::find(groups.begin(), groups.end(), group);
    if (it == groups.end()) fail(ExitCode::checkpoint, "{}: it has no group '{}', only {}.", folder, group, fmt::join(groups, ", "));
    return static_cast<std::size_t>(it - groups.begin());
  }

  ShardFile& file(int number) {
    for (auto it = files.begin(); it != files.end(); ++it)
      if (it->number() == number) {
        files.splice(files.begin(), files, it);
        return files.front();
      }
    if (files.size() >= most_at_hand) {
      stream.leave(files.back());
      files.pop_back();
    }
    files.push_front(open_file(number));
    return files.front();
  }

  ShardFile open_file(int number) const {
    ShardFile file(folder, index.layout, layout_hash, number);
    if (file.envelope().hash != index.files[static_cast<std::size_t>(number)])
      fail(ExitCode::checkpoint, "{}: this shard was not written together with {} of the folder: files of two checkpoints are mixed. {}",
           file.path(), index_file, restore_advice);
    return file;
  }

  /// A block of a slice, verified. The last ones stay at hand, since streams ask for them in parts.
  const float* one_block(ShardFile& s, std::size_t slice, std::int64_t block) {
    auto wanted = [&](auto& b) { return b.file == s.number() && b.slice == slice && b.block == block; };
    auto wanted_before = [&](auto& b) { return b.file == s.number() && b.slice == slice && b.block == block - 1; };
    if (auto found = std::find_if(blocks.begin(), blocks.end(), wanted); found != blocks.end()) {
      blocks.splice(blocks.begin(), blocks, found);
    } else if (const float* found_there = stream.find(s, slice, block)) {
      return found_there;
    } else if (!blocks.empty() && wanted_before(blocks.front())) {
      return stream.start(s, slice, block);
    } else {
      const bool goes_on = std::ranges::any_of(blocks, wanted_before);  // beside others, whose turns come between
      if (blocks.size() < most_blocks) blocks.emplace_back();
      blocks.splice(blocks.begin(), blocks, std::prev(blocks.end()));
      blocks.front().file = -1;  // until the block has proved itself
      if (goes_on) s.read_ahead(slice, block);
      s.read_blocks(slice, block, 1, blocks.front().values.data());
      blocks.front().file = s.number(), blocks.front().slice = slice, blocks.front().block = block;
    }
    return blocks.front().values.data();
  }

  /// Elements [begin, begin + out.size()) of a slice, counted from the slice's own begin.
  void read_slice(ShardFile& s, std::size_t slice, std::int64_t begin, std::span<float> out) {
    auto length = s.slice(slice).elements();
    while (!out.empty()) {
      std::int64_t block = begin / hash_block, inside = begin % hash_block, wanted = static_cast<std::int64_t>(out.size()), n;
      bool to_the_end = begin + wanted == length;  // of the slice: its last block may be short
      auto whole = inside > 0 ? 0 : to_the_end ? ceil_div(wanted, hash_block) : wanted / hash_block;
      if (whole > 0) {
        n = std::min(whole * hash_block, wanted);
        s.read_blocks(slice, block, whole, out.data());
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
      const int shard = holder_of(unit, k), number_of_file = file_of(index.layout, shard);
      const auto here = out.first(static_cast<std::size_t>(n));
      if (noted) {
        noted->insert(number_of_file);
        std::ranges::fill(here, 0.0f);
      } else {
        auto& s = file(number_of_file);
        read_slice(s, s.slice_of(shard, group, number), begin - from, here);
      }
      begin += n;
      out = out.subspan(static_cast<std::size_t>(n));
    }
  }

  /// A box of a tensor's natural shape, row-major, from whatever pieces hold it.
  void read_pieces(std::size_t group, const CheckpointTensor& tensor, const Box& box, std::span<float> out) {
    most_blocks = std::max(most_blocks, std::min(tensor.pieces.size(), most_at_hand));
    // One window is read while the runs of the other go to their places; whoever leaves waits for both.
    std::array<std::future<void>, 2> copies;
    std::size_t turn = 0;
    for (auto& piece : tensor.pieces) {
      auto common = overlap(piece.box, box);
      if (!common) continue;
      // Short runs that lie near each other in the unit are read together.
      std::vector<BoxRun> runs;
      auto flush = [&] {
        if (runs.empty()) return;
        auto first = runs.front().from, n = runs.back().from + runs.back().elements - first;
        if (runs.size() == 1) {
          read_unit(group, piece.unit, piece.offset + first,
                    out.subspan(static_cast<std::size_t>(runs.front().to), static_cast<std::size_t>(n)));
        } else {
          const std::size_t mine = turn++ % copies.size();
          if (copies[mine].valid()) copies[mine].get();
          float* window = windows[mine].floats(window_elements).data();
          read_unit(group, piece.unit, piece.offset + first, {window, static_cast<std::size_t>(n)});
          copies[mine] =
              std::async(n < hash_block ? std::launch::deferred : std::launch::async, [window, first, out, moved = std::move(runs)] {
                for (auto& r : moved) std::copy_n(window + (r.from - first), r.elements, out.begin() + r.to);
              });
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
    for (std::future<void>& copy : copies)
      if (copy.valid()) copy.get();
  }
};

CheckpointReader::CheckpointReader(const std::string& path) : impl_(std::make_unique<Impl>()) {
  const auto target = [&path] {
    std::error_code e;
    return fs::canonical(path, e);
  };
  for (int tries = 1;; ++tries) {
    const fs::path before = target();
    try {
      impl_->open(path);
      break;
    } catch (const Error&) {
      if (tries == most_checkpoints_tried || target() == before) throw;
    }
  }
  impl_->envelope.directory.clear();  // parsed: the deck and the layout are held once
  impl_->layout_hash = hash_text(layout_text(impl_->index.layout));
  for (std::size_t i = 0; i < impl_->index.layout.tensors.size(); ++i) impl_->tensors[impl_->index.layout.tensors[i].name].push_back(i);
}
CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;

const CheckpointMeta& CheckpointReader::meta() const { return impl_->index.meta; }
const CheckpointLayout& CheckpointReader::layout() const { return impl_->index.layout; }
const std::string& CheckpointReader::folder() const { return impl_->folder; }
std::string CheckpointReader::digest() const { return impl_->envelope.hash.hex(); }

bool CheckpointReader::gone() const { return impl_->gone(); }

void CheckpointReader::only_note(std::set<int>& files) { impl_->noted = &files; }

void CheckpointReader::require_shards() const {
  impl_->unless_gone([&] {
    for (int number = 0; number < file_count(impl_->index.layout); ++number) impl_->open_file(number);
  });
}

bool goes_on_with_next(const CheckpointGone& gone, const std::string& path) {
  if (!look_at(path).exists()) return false;
  warning("{} Continues with the checkpoint that {} links to now.", gone.what(), path);
  return true;
}

const CheckpointTensor* CheckpointReader::find(const std::string& tensor) const {
  auto it = impl_->tensors.find(tensor);
  return it == impl_->tensors.end() ? nullptr : &impl_->index.layout.tensors[it->second.front()];
}

const CheckpointTensor* CheckpointReader::find(const std::string& group, const std::string& tensor) const {
  auto& layout = impl_->index.layout;
  auto it = impl_->tensors.find(tensor);
  auto number = std::find(layout.groups.begin(), layout.groups.end(), group);
  if (it == impl_->tensors.end() || number == layout.groups.end()) return nullptr;
  for (const std::size_t i : it->second)
    if (layout.lies_in(layout.tensors[i], static_cast<int>(number - layout.groups.begin()))) return &layout.tensors[i];
  return nullptr;
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
  impl_->unless_gone([&] {
    for (auto& piece : tensor.pieces)
      if (piece.box == box) return impl_->read_unit(number, piece.unit, piece.offset + begin, out);
    for (auto& part : flat_range_boxes(box.count, begin, begin + n)) {
      const auto elements = static_cast<std::size_t>(part.elements());
      impl_->read_pieces(number, tensor, outside(part, box), out.first(elements));
      out = out.subspan(elements);
    }
  });
}

void CheckpointReader::read_unit(const std::string& group, int unit, std::int64_t begin, std::span<float> out) const {
  auto& units = impl_->index.layout.units;
  TESSERA_REQUIRE(unit >= 0 && unit < static_cast<int>(units.size()));
  TESSERA_REQUIRE(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= units[static_cast<std::size_t>(unit)].elements);
  impl_->unless_gone([&] { impl_->read_unit(impl_->group_number(group), unit, begin, out); });
}

void CheckpointReader::verify(const std::function<void(std::int64_t, std::int64_t)>& progress, int part, int parts) const {
  impl_->unless_gone([&] { impl_->verify(progress, part, parts); });
}

void CheckpointReader::Impl::verify(const std::function<void(std::int64_t, std::int64_t)>& progress, int part, int parts) const {
  auto& layout = index.layout;
  const std::string index_path = folder + "/" + index_file;
  auto file_of_index = PosixFile::open(index_path, ExitCode::checkpoint);
  const auto head = read_envelope(file_of_index, "index");
  if (hash_outside(file_of_index, head.block_bytes, head.file_bytes, {}) != index.structure)
    fail(ExitCode::checkpoint, "{}: its HDF5 metadata do not match their checksum: the file was altered. {}", index_path, restore_advice);
  std::int64_t done = 0, total = layout.bytes(), piece = 0;
  PageBuffer scratch;
  const std::span<float> buffer = scratch.floats(blocks_at_once * hash_block);
  for (int number = 0; number < file_count(layout); ++number) {
    auto file = open_file(number);
    for (std::size_t i = 0; i < file.directory().slices.size(); ++i) {
      auto& c = file.slice(i);
      for (std::int64_t k = 0; k < c.blocks(); k += blocks_at_once) {
        if (piece++ % parts != part) continue;
        auto count = std::min(blocks_at_once, c.blocks() - k);
        file.read_blocks(i, k, count, buffer.data());
        const std::int64_t elements = std::min(count * hash_block, c.elements() - k * hash_block);
        const std::span<const float> values = buffer.first(static_cast<std::size_t>(elements));
        if (const std::int64_t bad = first_not_finite(values); bad >= 0) {
          const auto [group, unit] = file.place_of(i);
          fail(ExitCode::checkpoint, "{}: {}: it was saved after a fault. Use an older checkpoint of the run.", folder,
               describe_not_finite(layout, group, unit, c.begin + k * hash_block + bad, values[static_cast<std::size_t>(bad)]));
        }
        done += elements * 4;
        if (progress) progress(done, total);
      }
    }
    if (number % parts == part) file.verify_structure();
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
