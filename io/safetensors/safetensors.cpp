#include "io/safetensors/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <map>
#include "base/json.hpp"

#include "base/check.hpp"
#include "io/files/page_buffer.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t buffer_bytes = 4 << 20;

std::string_view format_name(DType t) {
  TESSERA_REQUIRE(is_float(t), "safetensors of {}", name_of(t));
  return row_of(t).safetensors;
}

std::int64_t bytes_of(const SafetensorsEntry& e) { return e.shape.elements() * static_cast<std::int64_t>(size_of(e.dtype)); }

/// Length and JSON; the tensors start at a multiple of 8.
std::string header_text(const std::vector<SafetensorsEntry>& entries) {
  Json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::int64_t at = 0;
  for (auto& e : entries) {
    TESSERA_REQUIRE(!header.contains(e.name), "tensor {} occurs twice", e.name);
    header[e.name] = {{"dtype", format_name(e.dtype)}, {"shape", e.shape.dims}, {"data_offsets", {at, at + bytes_of(e)}}};
    at += bytes_of(e);
  }
  std::string json = header.dump();
  json.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(json.size()), 8)), ' ');
  std::uint64_t length = json.size();
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[static_cast<std::size_t>(i)] = static_cast<char>(length >> (8 * i));
  return text + json;
}

}  // namespace

struct SafetensorsWriter::Impl {
  AtomicFile out;
  std::vector<SafetensorsEntry> entries;
  std::int64_t at = 0, end = 0;  // bytes of the file: where the buffer begins, and in all
  std::array<PageBuffer, 2> memory;
  std::size_t turn = 0, filled = 0;
  Hasher hasher;
  std::future<void> writing;  // ends before what it writes

  explicit Impl(const std::string& path, std::vector<SafetensorsEntry> e) : out(path), entries(std::move(e)) {}

  std::byte* buffer() { return memory[turn].bytes(buffer_bytes).data(); }

  void take(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto n = std::min(bytes.size(), buffer_bytes - filled);
      std::memcpy(buffer() + filled, bytes.data(), n);
      filled += n;
      if (filled == buffer_bytes) flush();
      bytes = bytes.subspan(n);
    }
  }

  /// By a thread, while the other buffer fills.
  void flush() {
    wait();
    writing = std::async(std::launch::async, [this, from = buffer(), n = filled, begin = at] {
      out.file().write(begin, from, n);
      out.file().start_writeback(begin, static_cast<std::int64_t>(n));  // where it did not go past the page cache
      hasher.update(from, n);
    });
    at += static_cast<std::int64_t>(filled);
    filled = 0, turn = 1 - turn;
  }
  void wait() {
    if (writing.valid()) writing.get();
  }
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries)
    : impl_(std::make_unique<Impl>(path, std::move(entries))) {
  auto header = header_text(impl_->entries);
  impl_->end = static_cast<std::int64_t>(header.size());
  for (auto& e : impl_->entries) impl_->end += bytes_of(e);
  impl_->out.file().reserve(impl_->end);  // a full disk is found before any work
  impl_->out.file().use_direct();
  impl_->take(std::as_bytes(std::span(header)));
}
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  auto& w = *impl_;
  TESSERA_REQUIRE(w.at + static_cast<std::int64_t>(w.filled + bytes.size()) <= w.end, "more bytes than were declared");
  w.take(bytes);
}

Hash128 SafetensorsWriter::finish() {
  impl_->flush();
  impl_->wait();
  TESSERA_REQUIRE(impl_->at == impl_->end, "{} of {} bytes were given", impl_->at, impl_->end);
  impl_->out.commit();
  return impl_->hasher.digest();
}

std::int64_t safetensors_bytes(const SafetensorsFile& file) {
  auto bytes = static_cast<std::int64_t>(header_text(file.entries).size());
  for (auto& e : file.entries) bytes += bytes_of(e);
  return bytes;
}

std::vector<SafetensorsFile> plan_safetensors(const std::vector<SafetensorsEntry>& entries, std::int64_t max_bytes) {
  std::vector<SafetensorsFile> files(1);
  std::int64_t filled = 0;
  for (auto& e : entries) {
    if (filled > 0 && filled + bytes_of(e) > max_bytes) files.emplace_back(), filled = 0;
    files.back().entries.push_back(e);
    filled += bytes_of(e);
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name = files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return files;
}

std::string safetensors_index(const std::vector<SafetensorsFile>& files) {
  std::int64_t total = 0;
  std::map<std::string, std::string> names;  // sorted by name, as Hugging Face writes it
  for (auto& f : files)
    for (auto& e : f.entries) names[e.name] = f.name, total += bytes_of(e);
  Json map = Json::object();
  for (const auto& [name, file] : names) map[name] = file;
  return Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n";
}

}  // namespace tessera::io
