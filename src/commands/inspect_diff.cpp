#include "commands/inspect_diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/check.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/files/byte_progress.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

/// A tensor of a group that both have, or why it is not compared.
struct Difference {
  std::string group, tensor;
  std::string fault;                          ///< "only in A" and the like; "" where values were compared
  std::int64_t elements = 0, differing = 0;   ///< by their bits
  std::int64_t not_finite = 0;                ///< of the differing ones, in either
  double largest = 0, squares = 0, norm = 0;  ///< of finite differences; squares of A's values
  bool same() const { return fault.empty() && differing == 0; }
  double relative() const { return norm > 0 ? std::sqrt(squares / norm) : squares > 0 ? INFINITY : 0; }
};

class Comparison {
 public:
  Comparison(const io::CheckpointReader& a, const io::CheckpointReader& b) : a_(a), b_(b) {}

  std::vector<Difference> of_all(const std::string& only) {
    std::vector<Difference> all;
    for (const std::string& group : a_.layout().groups)
      for (const io::CheckpointTensor& tensor : a_.layout().tensors)
        if (only.empty() || tensor.name == only) all.push_back(pair_of(group, tensor));
    for (const std::string& group : b_.layout().groups)
      for (const io::CheckpointTensor& tensor : b_.layout().tensors)
        if ((only.empty() || tensor.name == only) && !(has(a_, group) && a_.find(tensor.name)))
          all.push_back({.group = group, .tensor = tensor.name, .fault = "only in " + b_.folder()});
    std::int64_t total = 0;
    for (const Difference& one : all) total += one.fault.empty() ? 8 * one.elements : 0;
    io::ByteProgress progress("compare", total);
    for (Difference& one : all)
      if (one.fault.empty()) compare(one, progress);
    return all;
  }

 private:
  static bool has(const io::CheckpointReader& reader, const std::string& group) {
    return std::ranges::find(reader.layout().groups, group) != reader.layout().groups.end();
  }

  Difference pair_of(const std::string& group, const io::CheckpointTensor& tensor) const {
    Difference found{.group = group, .tensor = tensor.name, .fault = "", .elements = tensor.shape.elements()};
    const io::CheckpointTensor* other = b_.find(tensor.name);
    if (!has(b_, group) || !other)
      found.fault = "only in " + a_.folder();
    else if (other->shape.dims != tensor.shape.dims)
      found.fault = fmt::format("of shape {} and {}", tensor.shape.str(), other->shape.str());
    return found;
  }

  void compare(Difference& found, io::ByteProgress& progress) {
    const io::CheckpointTensor &a = *a_.find(found.tensor), &b = *b_.find(found.tensor);
    std::vector<float> left(static_cast<std::size_t>(io::hash_block)), right = left;
    for (std::int64_t at = 0; at < found.elements; at += io::hash_block) {
      const auto n = static_cast<std::size_t>(std::min(io::hash_block, found.elements - at));
      a_.read(found.group, a, at, std::span(left).first(n));
      b_.read(found.group, b, at, std::span(right).first(n));
      for (std::size_t i = 0; i < n; ++i) {
        const double x = left[i], y = right[i];
        if (std::isfinite(x)) found.norm += x * x;
        if (std::bit_cast<std::uint32_t>(left[i]) == std::bit_cast<std::uint32_t>(right[i])) continue;
        ++found.differing;
        if (!std::isfinite(x) || !std::isfinite(y)) {
          ++found.not_finite;
          continue;
        }
        found.largest = std::max(found.largest, std::abs(x - y));
        found.squares += (x - y) * (x - y);
      }
      progress.add(static_cast<std::int64_t>(8 * n));
    }
  }

  const io::CheckpointReader &a_, &b_;
};

Json json_of(const Difference& d) {
  Json row{{"group", d.group}, {"name", d.tensor}};
  if (!d.fault.empty())
    row["fault"] = d.fault;
  else
    row.update({{"elements", d.elements},
                {"differing", d.differing},
                {"not_finite", d.not_finite},
                {"largest", d.largest},
                {"relative", std::isfinite(d.relative()) ? Json(d.relative()) : Json()}});
  return row;
}

void print_differences(const std::vector<const Difference*>& differing) {
  std::size_t wide = 6;
  const auto label = [](const Difference& d) { return d.group + "/" + d.tensor; };
  for (const Difference* d : differing) wide = std::max(wide, label(*d).size());
  fmt::print("\n{:<{}}  {:>14} {:>14} {:>11} {:>11}\n", "tensor", wide, "elements", "differing", "largest", "relative");
  for (const Difference* d : differing) {
    if (!d->fault.empty())
      fmt::print("{:<{}}  {}\n", label(*d), wide, d->fault);
    else
      fmt::print("{:<{}}  {:>14} {:>14} {:>11.4g} {:>11.4g}{}\n", label(*d), wide, d->elements, d->differing, d->largest, d->relative(),
                 d->not_finite > 0 ? fmt::format("  {} not finite", d->not_finite) : "");
  }
}

}  // namespace

int run_diff(const DiffOptions& o) {
  const io::CheckpointReader a(o.path), b(o.other);
  if (!o.tensor.empty() && !a.find(o.tensor) && !b.find(o.tensor))
    fail(ExitCode::usage, "neither {} nor {} holds a tensor '{}'. `tessera inspect {} --brief` lists them.", a.folder(), b.folder(),
         o.tensor, o.path);
  const std::vector<Difference> all = Comparison(a, b).of_all(o.tensor);
  std::vector<const Difference*> differing;
  for (const Difference& d : all)
    if (!d.same()) differing.push_back(&d);
  if (o.json) {
    Json rows = Json::array();
    for (const Difference* d : differing) rows.push_back(json_of(*d));
    const Json j{{"folder", a.folder()},   {"other", b.folder()},
                 {"step", a.meta().step},  {"other_step", b.meta().step},
                 {"compared", all.size()}, {"same", all.size() - differing.size()},
                 {"differing", rows}};
    std::puts(j.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    fmt::print("{} (step {})\n{} (step {})\n", a.folder(), a.meta().step, b.folder(), b.meta().step);
    if (!differing.empty()) print_differences(differing);
    fmt::print("{}{} of {} tensors of all groups have the same bits\n", differing.empty() ? "" : "\n", all.size() - differing.size(),
               all.size());
  }
  return static_cast<int>(differing.empty() ? ExitCode::ok : ExitCode::checkpoint);
}

}  // namespace tessera
