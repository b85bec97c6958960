// Where rows of a run go beside metrics.jsonl. What a sink holds is made anew of that file at each start, so it has every row once, also
// those from before it was asked for.
#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "io/metrics/metrics.hpp"

namespace tessera::io {

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void write(const MetricRow& row) = 0;
};

/// Gives the rows of a metrics.jsonl in their order. Lines that are none are left out; the file must be there.
void read_rows(const std::string& path, const std::function<void(const MetricRow&)>& row);
/// Those of a part of such a file, whose last line may be under way. `first_is_cut`: it may begin within a line.
std::vector<MetricRow> rows_of(std::string_view text, bool first_is_cut = false);

}  // namespace tessera::io
