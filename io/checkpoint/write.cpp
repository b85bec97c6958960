// Writing shards and the index. HDF5 lays the file out in memory (metadata only); the bytes go to the disk by our own large writes, hashed
// on the way, because those are faster than HDF5's and tell why they failed.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "io/checkpoint/finite.hpp"
#include "io/checkpoint/shard_file.hpp"
#include "io/files/task_queue.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t piece_elements = 8 * hash_block;  // one write

/// Slices ordered as the directory wants them, each given exactly once and of the right length.
std::vector<const ShardSource*> order_slices(const std::vector<GroupSlice>& held, std::span<const ShardSlice> slices) {
  TESSERA_REQUIRE(slices.size() == held.size(), "{} slices given, {} expected", slices.size(), held.size());
  std::vector<const ShardSource*> ordered(slices.size());
  for (auto& s : slices) {
    auto found = std::find_if(held.begin(), held.end(), [&](auto& h) { return h.group == s.group && h.of.unit == s.unit; });
    TESSERA_REQUIRE(found != held.end(), "unit {} of group {} is not held by this shard", s.unit, s.group);
    auto& place = ordered[static_cast<std::size_t>(found - held.begin())];
    TESSERA_REQUIRE(!place && s.data.elements() == found->of.end - found->of.begin, "group {} unit {}: {} elements, {} expected", s.group,
                    s.unit, s.data.elements(), found->of.end - found->of.begin);
    place = &s.data;
  }
  return ordered;
}

/// What HDF5 puts into a shard file. Fills in where each slice lies. A file of several shards has a group of each, `shard-N`.
Image file_image(const std::string& path, std::int64_t block, const CheckpointLayout& layout, ShardDirectory& d) {
  return build_image(path, block, [&](hdf5::File& file) {
    file.set_attribute("tessera_format", std::int64_t{checkpoint_format(layout)});
    file.set_attribute("step", d.step);
    if (layout.files.empty()) file.set_attribute("shard", std::int64_t{d.shards.front()});
    file.set_attribute("shards", std::int64_t{layout.shards});
    file.set_attribute("hash_block", hash_block);
    auto s = d.slices.begin();
    for (int shard : d.shards) {
      const std::string place = place_of(layout, shard);
      if (!place.empty()) file.create_group(place);
      for (auto& group : layout.groups) file.create_group(place + "/" + group);
      for (auto& [group, held] : slices_of_groups(layout, shard)) {
        auto& unit = layout.units[static_cast<std::size_t>(held.unit)];
        const std::string name = place + "/" + layout.groups[static_cast<std::size_t>(group)] + "/" + unit.name;
        auto data = file.create_contiguous(name, hdf5::Element::f32, {s->elements()});
        data.set_attribute("begin", s->begin);
        data.set_attribute("end", s->end);
        data.set_attribute("unit_elements", unit.elements);
        auto hashes = file.create_contiguous(name + ".xxh3", hdf5::Element::u64, {s->blocks(), 2});
        s->data_at = data.raw_offset(), s->hashes_at = hashes.raw_offset(), ++s;
      }
    }
  });
}

/// A shard file as all of its writers know it before anything is written: every place in it, and nothing of the data.
struct FilePlan {
  std::string path;
  ShardDirectory directory;
  std::int64_t most_bytes = 0;  ///< more than it will have: HDF5's own bytes are not known before the image is made
  std::int64_t block = 0;
  Image image = {};

  bool shared() const { return directory.shards.size() > 1; }
};

FilePlan plan_file(const std::string& root, std::int64_t step, const CheckpointLayout& layout, int number) {
  FilePlan file;
  file.path = partial_folder(root, step) + "/" + shard_file(number);
  ShardDirectory& d = file.directory;
  d.step = step, d.shards = shards_in(layout, number), d.layout = hash_text(layout_text(layout));
  for (int shard : d.shards)
    for (auto& [group, held] : slices_of_groups(layout, shard)) d.slices.push_back({held.begin, held.end, 0, 0, {}});
  file.most_bytes = 256 << 10;
  for (auto& s : d.slices) file.most_bytes += s.elements() * 4 + s.blocks() * 16 + (16 << 10);
  // Every number of a slice's entry may grow to 13 digits.
  file.block = user_block_for(static_cast<std::int64_t>(write_directory(d, layout).size() + d.slices.size() * 40));
  return file;
}

/// A shard's slices among those of its file.
std::span<SliceEntry> slices_in(FilePlan& file, const CheckpointLayout& layout, int shard) {
  std::size_t first = 0, n = 0;
  for (int member : file.directory.shards) {
    n = slices_of_groups(layout, member).size();
    if (member == shard) break;
    first += n;
  }
  return std::span(file.directory.slices).subspan(first, n);
}

/// All bits are 0.
bool is_nothing(std::span<const float> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  return bytes.empty() || (bytes.front() == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

/// Who hears of values that are no numbers: the first of a piece, by its place in it.
using NotFinite = std::function<void(std::int64_t at, float value)>;

/// Writes a piece and gives the hash of each of its blocks, high and low words. Zeros, of which the moments of frozen tensors are made,
/// stay a hole of the file.
void write_piece(PosixFile& out, std::int64_t at, std::span<const float> piece, std::uint64_t* hashes, const NotFinite& not_finite) {
  for (std::size_t b = 0; b < piece.size(); b += static_cast<std::size_t>(hash_block)) {
    auto block = piece.subspan(b, std::min(static_cast<std::size_t>(hash_block), piece.size() - b));
    if (const std::int64_t bad = first_not_finite(block); bad >= 0)
      not_finite(static_cast<std::int64_t>(b) + bad, block[static_cast<std::size_t>(bad)]);
    auto hash = hash_bytes(block.data(), block.size_bytes());
    *hashes++ = hash.high, *hashes++ = hash.low;
  }
  if (is_nothing(piece)) return out.leave_hole(at, static_cast<std::int64_t>(piece.size_bytes()));
  out.write(at, piece.data(), piece.size_bytes());
  out.start_writeback(at, static_cast<std::int64_t>(piece.size_bytes()));
}

/// Writes all slices, hashed on the way, then their tables of block hashes; fills in the tables' digests. `not_finite` gets a slice and an
/// element of it, and throws.
void write_slices(PosixFile& out, std::span<SliceEntry> slices, const std::vector<const ShardSource*>& data,
                  const std::function<void(std::size_t slice, std::int64_t element, float value)>& not_finite) {
  std::vector<std::vector<std::uint64_t>> tables;
  for (auto& s : slices) tables.emplace_back(static_cast<std::size_t>(s.blocks()) * 2);
  TaskQueue queue;
  for (std::size_t i = 0; i < slices.size(); ++i)
    for (std::int64_t from = 0; from < slices[i].elements(); from += piece_elements) {
      auto n = std::min(piece_elements, slices[i].elements() - from);
      auto hashes = tables[i].data() + from / hash_block * 2;
      queue.push([&out, &not_finite, i, source = data[i], from, n, hashes, at = slices[i].data_at + from * 4](PageBuffer& own) {
        write_piece(out, at, source->values(from, n, own), hashes,
                    [&](std::int64_t place, float value) { not_finite(i, from + place, value); });
      });
    }
  queue.wait();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    auto bytes = tables[i].size() * 8;
    if (bytes > 0) out.write(slices[i].hashes_at, tables[i].data(), bytes);
    slices[i].digest = hash_bytes(tables[i].data(), bytes);
  }
}

/// Where a shard's data and checksums lie in its file, with what HDF5 has between them.
Extent extent_of(std::span<const SliceEntry> slices) {
  Extent all{};
  for (auto& s : slices) {
    if (s.elements() == 0) continue;
    all.begin = all.end == 0 ? s.data_at : std::min({all.begin, s.data_at, s.hashes_at});
    all.end = std::max({all.end, s.data_at + s.elements() * 4, s.hashes_at + s.blocks() * 16});
  }
  return all;
}

/// The envelope last, then everything to the disk.
void finish_file(PosixFile& out, int format, std::string_view kind, std::string directory, std::int64_t file_bytes, std::int64_t block) {
  Envelope e{.format = format, .directory = std::move(directory), .hash = {}, .file_bytes = file_bytes, .block_bytes = block};
  e.hash = hash_text(e.directory);
  write_envelope(out, kind, e);
  out.truncate(file_bytes);
  out.sync();
  out.close();
}

/// A file whose data are written and whose slices have their digests.
void finish_shards(PosixFile& out, FilePlan& file, const CheckpointLayout& layout) {
  file.directory.structure = hash_outside(file.image.memory, file.block, file.image.bytes, data_extents(file.directory));
  finish_file(out, checkpoint_format(layout), "shard", write_directory(file.directory, layout), file.image.bytes, file.block);
}

/// Every shard file is there, whole, of this step (or, linked, of an earlier one) and layout; returns the hashes of their directories.
std::vector<Hash128> file_hashes(const std::string& folder, const CheckpointLayout& layout, std::int64_t step,
                                 std::span<const int> linked) {
  std::vector<Hash128> out;
  auto digest = hash_text(layout_text(layout));
  for (int number = 0; number < file_count(layout); ++number) {
    auto file = PosixFile::open(folder + "/" + shard_file(number), ExitCode::storage);
    auto e = read_envelope(file, "shard");
    auto d = parse_shard_directory(e.directory, file.path());
    const bool of_this = std::ranges::find(linked, number) == linked.end() ? d.step == step : d.step <= step;
    if (!of_this || d.shards != shards_in(layout, number) || d.layout != digest)
      fail(ExitCode::storage, "{}: it is not shard {} of step {} of this run's layout. Do not write two runs into one folder.", file.path(),
           number, step);
    out.push_back(e.hash);
  }
  return out;
}

/// One virtual dataset: the tensor in its natural shape, mapped onto the shards that hold its elements.
void map_tensor(hdf5::File& file, const std::string& group, const CheckpointLayout& layout, const CheckpointTensor& t) {
  const bool scalar = t.shape.dims.empty();
  std::vector<hdf5::VirtualSource> sources;
  for (auto& piece : t.pieces) {
    auto& unit = layout.units[static_cast<std::size_t>(piece.unit)];
    auto all = scalar ? Box{{0}, {1}} : piece.box;
    for (auto& [slice, begin, end] : parts_of(layout, piece)) {
      std::int64_t at = begin - slice.begin;
      for (auto& box : flat_range_boxes(all.count, begin - piece.offset, end - piece.offset)) {
        sources.push_back({shard_file(file_of(layout, slice.shard)), place_of(layout, slice.shard) + "/" + group + "/" + unit.name,
                           slice.end - slice.begin, at, outside(box, all)});
        at += box.elements();
      }
    }
  }
  file.create_virtual("/" + group + "/" + t.name, hdf5::Element::f32, scalar ? std::vector<std::int64_t>{1} : t.shape.dims, sources);
}

void put_value(hdf5::File& file, hdf5::Group& run, const CheckpointValue& value) {
  constexpr std::int64_t chunk = 1024;
  if (value.list)
    file.create_extendible("/run/" + value.name, hdf5::Element::f32, chunk).append(std::span<const float>(value.numbers));
  else if (value.integer)
    run.set_attribute(value.name, static_cast<std::int64_t>(value.number));
  else
    run.set_attribute(value.name, value.number);
}

Image index_image(const std::string& path, std::int64_t block, const CheckpointLayout& layout, const CheckpointMeta& meta) {
  return build_image(path, block, [&](hdf5::File& file) {
    file.set_attribute("tessera_format", std::int64_t{checkpoint_format(layout)});
    file.set_attribute("tessera_version", meta.version);
    file.set_attribute("program", meta.program);
    file.set_attribute("step", meta.step);
    file.set_attribute("sample_cursor", meta.sample_cursor);
    file.set_attribute("seed", meta.seed);
    file.set_attribute("identity", meta.identity);
    file.create_text("/deck", meta.deck);
    hdf5::Group run = file.create_group("/run");
    for (const CheckpointValue& value : meta.values) put_value(file, run, value);
    if (!meta.data.empty()) {
      const std::string data = data_text(meta.data);
      file.set_attribute("data_files", static_cast<std::int64_t>(meta.data.size()));
      // Of one file, as most runs have, without JSON.
      file.set_attribute("data_xxh3", meta.data.size() == 1 ? meta.data.front().digest : hash_text(data).hex());
      file.create_text("/data", data);
    }
    file.create_text("/layout", layout_text(layout));
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      file.create_group("/" + layout.groups[g]);
      for (auto& t : layout.tensors)
        if (layout.lies_in(t, static_cast<int>(g))) map_tensor(file, layout.groups[g], layout, t);
    }
  });
}

/// One shard on its way into a file.
struct ShardWriting {
  ShardWriting(const std::string& root, std::int64_t of_step, const CheckpointLayout& of_layout, int of_shard,
               std::span<const ShardSlice> slices)
      : step(of_step), layout(of_layout), shard(of_shard) {
    require_layout(layout);
    TESSERA_REQUIRE(shard >= 0 && shard < layout.shards);
    held = slices_of_groups(layout, shard);
    ordered = order_slices(held, slices);
    file = plan_file(root, step, layout, file_of(layout, shard));
  }
  void lay_out() { file.image = file_image(file.path, file.block, layout, file.directory); }
  void write(PosixFile& out) {
    out.use_direct();
    write_slices(out, slices_in(file, layout, shard), ordered, [&](std::size_t slice, std::int64_t element, float value) {
      auto& [group, of] = held[slice];
      fail(ExitCode::numerics, "step {}: {}: values that are not finite are not saved.", step,
           describe_not_finite(layout, layout.groups[static_cast<std::size_t>(group)], of.unit, of.begin + element, value));
    });
  }

  std::int64_t step;
  const CheckpointLayout& layout;
  int shard;
  std::vector<GroupSlice> held = {};
  std::vector<const ShardSource*> ordered = {};
  FilePlan file = {};
};

/// Whether what is written of `d` overwrites all of this file but zeros.
bool has_places_of(const std::string& path, const ShardDirectory& d) {
  if (look_at(path).kind != PathState::Kind::file) return false;
  try {
    const auto file = PosixFile::open(path, ExitCode::storage);
    if (file.has_other_names()) return false;
    const ShardDirectory of = parse_shard_directory(read_envelope(file, "shard").directory, path);
    return of.layout == d.layout && of.shards == d.shards;
  } catch (const Error&) {
    return false;  // what is damaged is not written over, and goes with its folder
  }
}

}  // namespace

std::span<const float> ShardSource::values(std::int64_t at, std::int64_t n, PageBuffer& own) const {
  if (!fetch_) return values_.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
  const std::span<float> values = own.floats(n);
  fetch_(at, values);
  return values;
}

void write_shard(const std::string& root, std::int64_t step, const CheckpointLayout& layout, int shard, std::span<const ShardSlice> slices,
                 Readers readers) {
  ShardWriting writing(root, step, layout, shard, slices);
  FilePlan& file = writing.file;
  // Whoever comes first makes a shared file, and nobody shortens it.
  auto out = file.shared() ? PosixFile::update(file.path, readers) : PosixFile::create(file.path, readers);
  // A full disk or a limit on file sizes is found here, before any work.
  file.shared() ? out.reserve(1, file.most_bytes - 1) : out.reserve(file.most_bytes);
  writing.lay_out();
  if (const Extent all = extent_of(slices_in(file, layout, shard)); file.shared())
    out.reserve(all.end - all.begin, all.begin);
  else
    copy_image(file.image, out);
  writing.write(out);
  if (!file.shared()) return finish_shards(out, file, layout);
  out.sync();
  out.close();
}

void write_shard_over(const std::string& over, const std::string& root, std::int64_t step, const CheckpointLayout& layout, int shard,
                      std::span<const ShardSlice> slices) {
  ShardWriting writing(root, step, layout, shard, slices);
  FilePlan& file = writing.file;
  TESSERA_REQUIRE(!file.shared());
  if (!has_places_of(over, file.directory)) return write_shard(root, step, layout, shard, slices, Readers::owner);
  const std::string unfinished = file.path + ".unfinished";
  rename_path(over, unfinished);
  auto out = PosixFile::update(unfinished, Readers::owner);
  writing.lay_out();
  if (out.size() != file.image.bytes) out.reserve(file.most_bytes);
  copy_image(file.image, out);
  writing.write(out);
  finish_shards(out, file, layout);
  rename_path(unfinished, file.path);
}

void seal_file(const std::string& root, std::int64_t step, const CheckpointLayout& layout, int number) {
  auto file = plan_file(root, step, layout, number);
  if (!file.shared()) return;  // its writer has
  file.image = file_image(file.path, file.block, layout, file.directory);
  auto out = PosixFile::update(file.path);
  out.reserve(file.block);
  copy_image(file.image, out, data_extents(file.directory));
  for (auto& s : file.directory.slices) {
    std::vector<std::uint64_t> table(static_cast<std::size_t>(s.blocks()) * 2);
    const auto read = out.read(s.hashes_at, table.data(), table.size() * 8);
    // No block has the hash 0: a part that is not there reads as a hole.
    if (read != table.size() * 8 || std::any_of(table.begin(), table.end(), [](std::uint64_t word) { return word == 0; }))
      fail(ExitCode::storage, "{}: data that another rank wrote into it is missing. Check that all ranks see the same file system.",
           file.path);
    s.digest = hash_bytes(table.data(), table.size() * 8);
  }
  finish_shards(out, file, layout);
}

bool link_file(const std::string& from, const std::string& root, std::int64_t step, const CheckpointLayout& layout, int number) {
  try {
    const ShardFile whole(from, layout, hash_text(layout_text(layout)), number);
    return ::link(whole.path().c_str(), (partial_folder(root, step) + "/" + shard_file(number)).c_str()) == 0;
  } catch (const Error&) {
    return false;
  }
}

void unlink_file(const std::string& root, std::int64_t step, int number) {
  const std::string path = partial_folder(root, step) + "/" + shard_file(number);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_storage("remove the name", path, errno);
}

void write_index(const std::string& root, const CheckpointLayout& layout, const CheckpointMeta& meta, std::span<const int> linked) {
  require_layout(layout);
  const std::string folder = partial_folder(root, meta.step), path = folder + "/" + index_file;
  IndexDirectory d{.meta = meta, .layout = layout, .structure = {}, .files = file_hashes(folder, layout, meta.step, linked)};
  auto block = user_block_for(static_cast<std::int64_t>(write_directory(d).size()));
  auto image = index_image(path, block, layout, meta);
  auto out = PosixFile::create(path);
  out.reserve(image.bytes);
  copy_image(image, out);
  d.structure = hash_outside(image.memory, block, image.bytes, {});
  finish_file(out, checkpoint_format(layout), "index", write_directory(d), image.bytes, block);
}

}  // namespace tessera::io
