// A checkpoint whose values were altered by whoever can also write checksums: nothing in the files tells.
#pragma once
#include <string>
#include <vector>

#include "io/checkpoint/format.hpp"
#include "io/checkpoint/shard_file.hpp"

namespace tessera::test {

/// Puts `value` in the place of an element of a unit, in the shard that holds it, and all checksums that follow.
inline void alter_checkpoint(const std::string& folder, const std::string& group, int unit, std::int64_t element, float value) {
  using namespace io;
  const std::string index_path = folder + "/" + index_file;
  auto index = PosixFile::update(index_path);
  Envelope index_head = read_envelope(index, "index");
  IndexDirectory all = parse_index_directory(index_head.directory, index_path);
  const CheckpointLayout& layout = all.layout;
  const auto rewrite = [](PosixFile& file, std::string_view kind, Envelope head, std::string directory) {
    head.directory = std::move(directory), head.hash = hash_text(head.directory);
    write_envelope(file, kind, head);
    return head.hash;
  };
  for (int number = 0; number < file_count(layout); ++number) {
    const std::string path = folder + "/" + shard_file(number);
    auto file = PosixFile::update(path);
    const Envelope head = read_envelope(file, "shard");
    ShardDirectory d = parse_shard_directory(head.directory, path);
    auto entry = d.slices.begin();
    for (const int shard : d.shards)
      for (const auto& [g, s] : slices_of_groups(layout, shard)) {
        SliceEntry& e = *entry++;
        if (layout.groups[static_cast<std::size_t>(g)] != group || s.unit != unit || element < e.begin || element >= e.end) continue;
        file.write(e.data_at + 4 * (element - e.begin), &value, sizeof value);
        std::vector<std::uint64_t> table;
        std::vector<float> block(static_cast<std::size_t>(hash_block));
        for (std::int64_t at = 0; at < e.elements(); at += hash_block) {
          const auto bytes = static_cast<std::size_t>(4 * std::min(hash_block, e.elements() - at));
          file.read(e.data_at + 4 * at, block.data(), bytes);
          const Hash128 hash = hash_bytes(block.data(), bytes);
          table.insert(table.end(), {hash.high, hash.low});
        }
        file.write(e.hashes_at, table.data(), 8 * table.size());
        e.digest = hash_bytes(table.data(), 8 * table.size());
      }
    all.files[static_cast<std::size_t>(number)] = rewrite(file, "shard", head, write_directory(d, layout));
  }
  rewrite(index, "index", index_head, write_directory(all));
}

}  // namespace tessera::test
