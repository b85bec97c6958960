// Rows as TensorBoard's event files have them: records of length, checksum, bytes, checksum, whose bytes are protobuf messages of scalars.
#pragma once
#include <span>

#include "io/files/posix_file.hpp"
#include "io/metrics/sink.hpp"

namespace tessera::io {

/// A number of a row is a scalar of its key's name, at the row's `step` and its `time` (seconds since 1970); lists and named numbers are
/// one of `KEY/NUMBER` or `KEY/NAME` each.
class EventFile : public MetricsSink {
 public:
  /// FOLDER/events.out.tfevents.SECONDS.tessera, in place of those that earlier starts left there, with the rows of `history`, a
  /// metrics.jsonl.
  EventFile(const std::string& folder, double now, const std::string& history);
  void write(const MetricRow& row) override;

 private:
  PosixFile file_;
  std::int64_t end_ = 0;
};

/// CRC-32C as records hold it: turned by 15 bits, and 0xa282ead8 added.
std::uint32_t masked_crc(std::span<const char> bytes);

}  // namespace tessera::io
