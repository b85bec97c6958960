#include "io/metrics/event_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t castagnoli = 0x82f63b78;  // reflected
constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ castagnoli : crc >> 1;
    table[i] = crc;
  }
  return table;
}();

/// The least of protobuf's wire format that scalars need (proto/event.proto and summary.proto of TensorFlow).
class Message {
 public:
  std::string bytes;
  void number(int field, std::uint64_t value) { key(field, 0), varint(value); }
  void real(int field, double value) { key(field, 1), raw(&value, sizeof value); }
  void single(int field, float value) { key(field, 5), raw(&value, sizeof value); }
  void text(int field, std::string_view value) { key(field, 2), varint(value.size()), bytes += value; }

 private:
  void key(int field, int type) { varint(static_cast<std::uint64_t>(field << 3 | type)); }
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
    bytes += static_cast<char>(value);
  }
  void raw(const void* data, std::size_t size) { bytes.append(static_cast<const char*>(data), size); }
};
static_assert(std::endian::native == std::endian::little);

std::string record(const std::string& bytes) {
  const auto raw = [](auto value) {
    std::string text(sizeof value, '\0');
    std::memcpy(text.data(), &value, sizeof value);
    return text;
  };
  const std::string length = raw(static_cast<std::uint64_t>(bytes.size()));
  return length + raw(masked_crc(length)) + bytes + raw(masked_crc(bytes));
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary. Summary: 1 value. Value: 1 tag, 2 simple_value.
std::string version_record(double time) {
  Message event;
  event.real(1, time);
  event.text(3, "brain.Event:2");
  return record(event.bytes);
}

struct Scalars {
  Message summary;
  void add(std::string_view tag, double number) {
    if (!std::isfinite(number)) return;
    Message value;
    value.text(1, tag);
    value.single(2, static_cast<float>(number));
    summary.text(1, value.bytes);
  }
};

/// "" of a row without a step, or without a number.
std::string record_of(const MetricRow& row) {
  std::int64_t step = -1;
  double time = 0;
  Scalars scalars;
  for (const auto& [key, value] : row) {
    if (const auto* i = std::get_if<std::int64_t>(&value))
      key == "step" ? static_cast<void>(step = *i) : scalars.add(key, static_cast<double>(*i));
    else if (const auto* d = std::get_if<double>(&value))
      key == "time" ? static_cast<void>(time = *d) : scalars.add(key, *d);
    else if (const auto* all = std::get_if<std::vector<std::int64_t>>(&value))
      for (std::size_t n = 0; n < all->size(); ++n) scalars.add(fmt::format("{}/{}", key, n), static_cast<double>((*all)[n]));
    else if (const auto* named = std::get_if<NamedNumbers>(&value))
      for (const auto& [name, number] : *named) scalars.add(fmt::format("{}/{}", key, name), number);
  }
  if (step < 0 || scalars.summary.bytes.empty()) return "";
  Message event;
  event.real(1, time);
  event.number(2, static_cast<std::uint64_t>(step));
  event.text(5, scalars.summary.bytes);
  return record(event.bytes);
}

}  // namespace

std::uint32_t masked_crc(std::span<const char> bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) crc = crc >> 8 ^ crc_table[(crc ^ static_cast<unsigned char>(byte)) & 255];
  return std::rotr(~crc, 15) + 0xa282ead8;
}

EventFile::EventFile(const std::string& folder, double now, const std::string& history) {
  std::error_code error;
  if (fs::is_symlink(folder, error))
    fail(ExitCode::storage,
         "{} is a link to {}, which may hold event files of other runs, and this run would remove them. Remove the link, or set "
         "metrics.tensorboard = false; `tensorboard --logdir` takes a folder of runs.",
         folder, fs::read_symlink(folder, error).string());
  fs::create_directories(folder, error);
  if (error) fail_storage("make the folder", folder, error.value());
  std::vector<std::string> earlier;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename(); name.starts_with("events.out.tfevents.") && name.ends_with(".tessera"))
      earlier.push_back(entry.path());
  std::string all = version_record(now);
  read_rows(history, [&](const MetricRow& row) { all += record_of(row); });
  // A later name, so that a TensorBoard that looks on turns to it.
  std::string path;
  for (auto seconds = static_cast<std::int64_t>(now);; ++seconds) {
    path = fmt::format("{}/events.out.tfevents.{:010}.tessera", folder, seconds);
    if (earlier.empty() || path > *std::ranges::max_element(earlier)) break;
  }
  AtomicFile fresh(path);
  fresh.file().write(0, all.data(), all.size());
  fresh.commit();
  for (const std::string& file : earlier) fs::remove(file, error);
  file_ = PosixFile::update(path);
  end_ = static_cast<std::int64_t>(all.size());
}

void EventFile::write(const MetricRow& row) {
  const std::string bytes = record_of(row);
  file_.write(end_, bytes.data(), bytes.size());
  end_ += static_cast<std::int64_t>(bytes.size());
}

}  // namespace tessera::io
