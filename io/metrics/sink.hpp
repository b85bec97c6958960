// Where rows of a run go beside metrics.jsonl. What a sink holds is made anew of that file at each start, so it has every row once, also
// those from before it was asked for.
#pragma once
#include <functional>

#include "io/metrics/metrics.hpp"

namespace tessera::io {

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void write(const MetricRow& row) = 0;
};

/// Gives the rows of a metrics.jsonl in their order. Lines that are none are left out; the file must be there.
void read_rows(const std::string& path, const std::function<void(const MetricRow&)>& row);

}  // namespace tessera::io
