// Checkpoint files. The first byte of an input says what the rest is: `i` the directory of an index, `s` that of a shard, each with the
// checksum that belongs to it, so that what lies behind the checksum is reached; any other: a whole file.
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/envelope.hpp"
#include "io/checkpoint/format.hpp"
#include "validation/fuzz/fuzz.hpp"

namespace tessera::fuzz {
namespace {

/// Written and read, as a file would be.
std::string through_envelope(std::string_view kind, std::string_view directory) {
  io::PosixFile file = io::PosixFile::in_memory("input");
  io::Envelope envelope{
      .format = io::newest_checkpoint_format, .directory = std::string(directory), .hash = hash_text(std::string(directory))};
  envelope.block_bytes = io::user_block_for(static_cast<std::int64_t>(directory.size()));
  envelope.file_bytes = envelope.block_bytes + 4096;
  io::write_envelope(file, kind, envelope);
  file.truncate(envelope.file_bytes);
  const io::Envelope read = io::read_envelope(file, kind);
  if (read.directory != directory) defect("an envelope that gives another directory");
  return read.directory;
}

void read_index(std::string_view directory) {
  const io::IndexDirectory index = io::parse_index_directory(through_envelope("index", directory), "checkpoint.h5");
  // An accepted index can be asked for everything, and is written as it was read.
  for (int shard = 0; shard < std::min(index.layout.shards, 64); ++shard) io::slices_of(index.layout, shard);
  for (const io::CheckpointTensor& tensor : index.layout.tensors)
    for (const io::CheckpointPiece& piece : tensor.pieces) io::parts_of(index.layout, piece);
  const io::IndexDirectory again = io::parse_index_directory(io::write_directory(index), "written");
  if (io::layout_text(again.layout) != io::layout_text(index.layout) || again.meta.deck != index.meta.deck || again.files != index.files)
    defect("an index that is another as it is written");
}

}  // namespace

const ExitCode refusal = ExitCode::checkpoint;

void read_input(std::string_view bytes) {
  if (bytes.empty()) return;
  if (bytes.front() == 'i') return read_index(bytes.substr(1));
  if (bytes.front() == 's')
    return static_cast<void>(io::parse_shard_directory(through_envelope("shard", bytes.substr(1)), "shard-00000.h5"));
  const io::CheckpointReader reader(folder_with("checkpoint.h5", bytes.substr(1)));
  reader.require_shards();
  defect("an index whose shards are not there is taken for whole");
}

}  // namespace tessera::fuzz
