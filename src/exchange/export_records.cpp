#include "exchange/export_records.hpp"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>
#include "base/json.hpp"

#include "base/log.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
constexpr const char* ending = ".finished";
constexpr std::int64_t piece_bytes = 4 << 20;

struct Record {
  std::string identity, described, digest;
};

/// Error(usage) where it is no record of ours.
Record read_record(const std::string& path) {
  try {
    const Json record = Json::parse(io::read_small_file(path, ExitCode::usage));
    return {record.at("identity").get<std::string>(), record.at("export").get<std::string>(), record.at("xxh3").get<std::string>()};
  } catch (const JsonError& error) {
    fail(ExitCode::usage, "{}: it cannot be parsed ({}). Remove it, and the file beside it is written again.", path, error.what());
  }
}

std::string digest_of(const std::string& path) {
  const auto file = io::PosixFile::open(path, ExitCode::storage);
  const std::int64_t bytes = file.size();
  std::vector<char> piece(static_cast<std::size_t>(piece_bytes));
  Hasher hasher;
  for (std::int64_t at = 0; at < bytes; at += piece_bytes) {
    file.read_ahead(at + piece_bytes, 4 * piece_bytes);
    hasher.update(piece.data(), file.read(at, piece.data(), piece.size()));
  }
  return hasher.digest().hex();
}

}  // namespace

ExportRecords::ExportRecords(std::string folder, const Hash128& identity, std::string described)
    : folder_(std::move(folder)), identity_(identity.hex()), described_(std::move(described)) {}

void ExportRecords::require_none_of_another() const {
  std::error_code none;  // a folder that is not there has no records, and one that cannot be read is refused where it is written
  for (fs::directory_iterator it(folder_, none), end; !none && it != end; it.increment(none)) {
    if (it->path().extension() != ending) continue;
    const Record record = read_record(it->path().string());
    if (record.identity != identity_)
      fail(ExitCode::usage,
           "{} holds an unfinished export of {}, but this one is of {}. Finish that one with its own command, or give another or an empty "
           "folder.",
           folder_, record.described, described_);
  }
}

std::string ExportRecords::name(const std::string& file) { return file + ending; }

bool ExportRecords::stands(const std::string& file, std::int64_t bytes) const {
  const std::string whole = folder_ + "/" + file;
  if (io::look_at(path(file)).nothing() || io::look_at(whole).nothing()) return false;
  const Record record = read_record(path(file));
  if (io::PosixFile::open(whole, ExitCode::storage).size() == bytes && digest_of(whole) == record.digest) return true;
  warning("{} differs from what an earlier start wrote: it is written again", whole);
  return false;
}

void ExportRecords::finished(const std::string& file, const Hash128& digest) const {
  const std::string text = Json{{"identity", identity_}, {"export", described_}, {"xxh3", digest.hex()}}.dump(2) + "\n";
  io::AtomicFile out(path(file));
  out.file().write(0, text.data(), text.size());
  out.commit();
}

void ExportRecords::remove(std::span<const std::string> files) const {
  for (const std::string& file : files)
    if (::unlink(path(file).c_str()) != 0 && errno != ENOENT) io::fail_storage("remove", path(file), errno);
  io::sync_folder(folder_);
}

}  // namespace tessera
