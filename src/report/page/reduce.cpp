#include "report/page/reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

std::vector<std::size_t> bucket_ends(std::size_t rows, std::size_t most_buckets) {
  std::vector<std::size_t> ends;
  const std::size_t buckets = std::min(rows, std::max<std::size_t>(most_buckets, 1));
  for (std::size_t i = 1; i <= buckets; ++i) ends.push_back(rows * i / buckets);
  return ends;
}

ReducedColumn reduce_column(std::span<const double> column, std::span<const std::size_t> ends, bool geometric) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  ReducedColumn reduced;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0, logarithms = 0;
    std::int64_t count = 0;
    for (const double value : column.subspan(begin, end - begin)) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value), high = std::max(high, value), sum += value, ++count;
      if (value > 0) logarithms += std::log(value);
    }
    reduced.low.push_back(count > 0 ? low : none);
    reduced.high.push_back(count > 0 ? high : none);
    const double n = static_cast<double>(count), mean = geometric && low > 0 ? std::exp(logarithms / n) : sum / n;
    reduced.mean.push_back(count > 0 ? std::clamp(mean, low, high) : none);
    begin = end;
  }
  return reduced;
}

std::string number_list(std::span<const double> numbers, int digits) {
  std::string text = "[";
  for (const double number : numbers) {
    if (text.size() > 1) text += ',';
    text += std::isfinite(number) ? fmt::format("{:.{}g}", number, digits) : "null";
  }
  return text + "]";
}

}  // namespace tessera
