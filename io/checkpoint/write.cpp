// Writing shards and the index. HDF5 lays the file out in memory (metadata only); the bytes go to the disk by our own large writes, hashed
// on the way, because those are faster than HDF5's and tell why they failed.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "io/checkpoint/envelope.hpp"
#include "io/checkpoint/format.hpp"
#include "io/files/task_queue.hpp"

namespace tessera::io {
namespace {

constexpr std::int64_t piece_elements = 8 * hash_block;  // one write

/// Slices ordered as the directory wants them, each given exactly once and of the right length.
std::vector<const ShardSource*> order_slices(const CheckpointLayout& layout, const std::vector<UnitSlice>& held,
                                             std::span<const ShardSlice> slices) {
  TESSERA_REQUIRE(slices.size() == held.size() * layout.groups.size(), "{} slices given, {} expected", slices.size(),
                  held.size() * layout.groups.size());
  std::vector<const ShardSource*> ordered(slices.size());
  for (auto& s : slices) {
    TESSERA_REQUIRE(s.group >= 0 && s.group < static_cast<int>(layout.groups.size()));
    auto found = std::find_if(held.begin(), held.end(), [&](auto& h) { return h.unit == s.unit; });
    TESSERA_REQUIRE(found != held.end(), "unit {} is not held by this shard", s.unit);
    auto& place = ordered[static_cast<std::size_t>(s.group) * held.size() + static_cast<std::size_t>(found - held.begin())];
    TESSERA_REQUIRE(!place && s.data.elements() == found->end - found->begin, "group {} unit {}: {} elements, {} expected", s.group, s.unit,
                    s.data.elements(), found->end - found->begin);
    place = &s.data;
  }
  return ordered;
}

/// HDF5's part of a shard file. Fills in where each slice lies.
Image shard_image(const std::string& path, std::int64_t block, const CheckpointLayout& layout, const std::vector<UnitSlice>& held,
                  ShardDirectory& d) {
  return build_image(path, block, [&](hdf5::File& file) {
    file.set_attribute("tessera_format", std::int64_t{checkpoint_format(layout)});
    file.set_attribute("step", d.step);
    file.set_attribute("shard", std::int64_t{d.shard});
    file.set_attribute("shards", std::int64_t{layout.shards});
    file.set_attribute("hash_block", hash_block);
    std::size_t i = 0;
    for (auto& group : layout.groups) {
      file.create_group("/" + group);
      for (auto& h : held) {
        auto& unit = layout.units[static_cast<std::size_t>(h.unit)];
        auto& s = d.slices[i++];
        std::string name = "/" + group + "/" + unit.name;
        auto data = file.create_contiguous(name, hdf5::Element::f32, {s.elements()});
        data.set_attribute("begin", s.begin);
        data.set_attribute("end", s.end);
        data.set_attribute("unit_elements", unit.elements);
        auto hashes = file.create_contiguous(name + ".xxh3", hdf5::Element::u64, {s.blocks(), 2});
        s.data_at = data.raw_offset(), s.hashes_at = hashes.raw_offset();
      }
    }
  });
}

/// All bits are 0.
bool is_nothing(std::span<const float> values) {
  const std::span<const std::byte> bytes = std::as_bytes(values);
  return bytes.empty() || (bytes.front() == std::byte{0} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

/// Writes a piece and gives the hash of each of its blocks, high and low words. Zeros, of which the moments of frozen tensors are made,
/// stay a hole of the file.
void write_piece(PosixFile& out, std::int64_t at, std::span<const float> piece, std::uint64_t* hashes) {
  for (std::size_t b = 0; b < piece.size(); b += static_cast<std::size_t>(hash_block)) {
    auto block = piece.subspan(b, std::min(static_cast<std::size_t>(hash_block), piece.size() - b));
    auto hash = hash_bytes(block.data(), block.size_bytes());
    *hashes++ = hash.high, *hashes++ = hash.low;
  }
  if (is_nothing(piece)) return out.leave_hole(at, static_cast<std::int64_t>(piece.size_bytes()));
  out.write(at, piece.data(), piece.size_bytes());
  out.start_writeback(at, static_cast<std::int64_t>(piece.size_bytes()));
}

/// Writes all slices, hashed on the way, then their tables of block hashes; fills in the tables' digests.
void write_slices(PosixFile& out, std::vector<SliceEntry>& slices, const std::vector<const ShardSource*>& data) {
  std::vector<std::vector<std::uint64_t>> tables;
  for (auto& s : slices) tables.emplace_back(static_cast<std::size_t>(s.blocks()) * 2);
  TaskQueue queue;
  for (std::size_t i = 0; i < slices.size(); ++i)
    for (std::int64_t from = 0; from < slices[i].elements(); from += piece_elements) {
      auto n = std::min(piece_elements, slices[i].elements() - from);
      auto hashes = tables[i].data() + from / hash_block * 2;
      queue.push([&out, source = data[i], from, n, hashes, at = slices[i].data_at + from * 4] {
        std::vector<float> own;
        write_piece(out, at, source->values(from, n, own), hashes);
      });
    }
  queue.wait();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    auto bytes = tables[i].size() * 8;
    if (bytes > 0) out.write(slices[i].hashes_at, tables[i].data(), bytes);
    slices[i].digest = hash_bytes(tables[i].data(), bytes);
  }
}

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

/// The envelope last, then everything to the disk.
void finish_file(PosixFile& out, int format, std::string_view kind, std::string directory, std::int64_t file_bytes, std::int64_t block) {
  Envelope e{.format = format, .directory = std::move(directory), .hash = {}, .file_bytes = file_bytes, .block_bytes = block};
  e.hash = hash_text(e.directory);
  write_envelope(out, kind, e);
  out.truncate(file_bytes);
  out.sync();
  out.close();
}

/// Every shard is there, whole, of this step and layout; returns the hashes of their directories.
std::vector<Hash128> shard_hashes(const std::string& folder, const CheckpointLayout& layout, std::int64_t step) {
  std::vector<Hash128> out;
  auto digest = hash_text(layout_text(layout));
  for (int shard = 0; shard < layout.shards; ++shard) {
    auto file = PosixFile::open(folder + "/" + shard_file(shard), ExitCode::storage);
    auto e = read_envelope(file, "shard");
    auto d = parse_shard_directory(e.directory, file.path());
    if (d.step != step || d.shard != shard || d.layout != digest)
      fail(ExitCode::storage, "{}: it is not shard {} of step {} of this run's layout. Do not write two runs into one folder.", file.path(),
           shard, step);
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
        sources.push_back({shard_file(slice.shard), "/" + group + "/" + unit.name, slice.end - slice.begin, at, outside(box, all)});
        at += box.elements();
      }
    }
  }
  file.create_virtual("/" + group + "/" + t.name, hdf5::Element::f32, scalar ? std::vector<std::int64_t>{1} : t.shape.dims, sources);
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
    file.create_text("/layout", layout_text(layout));
    for (auto& group : layout.groups) {
      file.create_group("/" + group);
      for (auto& t : layout.tensors) map_tensor(file, group, layout, t);
    }
  });
}

}  // namespace

std::span<const float> ShardSource::values(std::int64_t at, std::int64_t n, std::vector<float>& own) const {
  if (!fetch_) return values_.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n));
  own.resize(static_cast<std::size_t>(n));
  fetch_(at, own);
  return own;
}

void write_shard(const std::string& root, std::int64_t step, const CheckpointLayout& layout, int shard,
                 std::span<const ShardSlice> slices) {
  require_layout(layout);
  TESSERA_REQUIRE(shard >= 0 && shard < layout.shards);
  auto held = slices_of(layout, shard);
  auto ordered = order_slices(layout, held, slices);
  ShardDirectory d{.step = step, .shard = shard, .layout = hash_text(layout_text(layout)), .structure = {}, .slices = {}};
  std::int64_t data_bytes = 0;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    SliceEntry s{held[i % held.size()].begin, held[i % held.size()].end, 0, 0, {}};
    data_bytes += s.elements() * 4 + s.blocks() * 16;
    d.slices.push_back(s);
  }
  const std::string path = partial_folder(root, step) + "/" + shard_file(shard);
  auto out = PosixFile::create(path);
  // A full disk is found here, before any work. HDF5's own bytes are not known yet: this is more than they take.
  out.reserve(data_bytes + static_cast<std::int64_t>(d.slices.size()) * (16 << 10) + (256 << 10));
  // Every number of a slice's entry may grow to 13 digits.
  auto block = user_block_for(static_cast<std::int64_t>(write_directory(d, layout).size() + d.slices.size() * 40));
  auto image = shard_image(path, block, layout, held, d);
  copy_image(image, out);
  out.use_direct();
  write_slices(out, d.slices, ordered);
  d.structure = hash_outside(image.memory, block, image.bytes, data_extents(d));
  finish_file(out, checkpoint_format(layout), "shard", write_directory(d, layout), image.bytes, block);
}

void write_index(const std::string& root, const CheckpointLayout& layout, const CheckpointMeta& meta) {
  require_layout(layout);
  const std::string folder = partial_folder(root, meta.step), path = folder + "/" + index_file;
  IndexDirectory d{.meta = meta, .layout = layout, .structure = {}, .shards = shard_hashes(folder, layout, meta.step)};
  auto block = user_block_for(static_cast<std::int64_t>(write_directory(d).size()));
  auto image = index_image(path, block, layout, meta);
  auto out = PosixFile::create(path);
  out.reserve(image.bytes);
  copy_image(image, out);
  d.structure = hash_outside(image.memory, block, image.bytes, {});
  finish_file(out, checkpoint_format(layout), "index", write_directory(d), image.bytes, block);
}

}  // namespace tessera::io
