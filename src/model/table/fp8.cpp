#include "model/table/fp8.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.hpp"
#include "base/glob.hpp"
#include "model/table/frozen.hpp"

namespace tessera {
namespace {

/// A pattern stands for the tensors that it describes, and for those whose names go on after it and a dot.
bool skips(const std::string& pattern, std::string_view tensor) {
  return matches_glob(pattern, tensor) || matches_glob(pattern + ".*", tensor);
}
bool is_skipped(const std::vector<std::string>& patterns, std::string_view tensor) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return skips(pattern, tensor); });
}

}  // namespace

bool Fp8Shape::takes(std::string_view tensor) const { return recipe != Fp8Recipe::none && !is_skipped(skip, tensor); }

std::int64_t Fp8Shape::number_of(std::string_view matrix) const {
  const auto found = std::ranges::find(matrices, matrix);
  TESSERA_REQUIRE(found != matrices.end(), "{} is read by no product in fp8", matrix);
  return found - matrices.begin();
}

std::int64_t Fp8Shape::history_of(std::string_view matrix, kernels::Fp8Tensor tensor) const {
  return kernels::fp8_history_of(number_of(matrix), tensor, std::ssize(matrices));
}

std::int64_t Fp8Shape::history_count() const { return kernels::fp8_tensors * std::ssize(matrices); }

Fp8Shape fp8_shape(const Deck& deck) {
  const PrecisionKeys& precision = deck.precision;
  Fp8Shape shape{.recipe = precision.fp8, .skip = precision.fp8_skip};
  if (shape.recipe == Fp8Recipe::none) return shape;
  if (shape.delayed()) shape.history = precision.fp8_history, shape.margin = static_cast<int>(precision.fp8_margin);
  for (const Parameter& p : parameter_table(deck.model))
    if (p.shape.dims.size() == 2 && !p.adapter && !p.joined && shape.takes(p.name)) shape.matrices.push_back(p.name);
  return shape;
}

void check_fp8_skip(const std::vector<Parameter>& table, const PrecisionKeys& precision) {
  if (precision.fp8 == Fp8Recipe::none) return;
  for (const std::string& pattern : precision.fp8_skip)
    if (std::ranges::none_of(table, [&](const Parameter& p) { return skips(pattern, p.name); }))
      fail(ExitCode::usage, "precision.fp8_skip: no tensor of this model matches \"{}\"; the nearest names are {}", pattern,
           fmt::join(nearest_names(table, pattern), ", "));
  for (std::size_t i = 1; i < table.size(); ++i) {
    const bool before = is_skipped(precision.fp8_skip, table[i - 1].name), now = is_skipped(precision.fp8_skip, table[i].name);
    if (table[i].joined && before != now)
      fail(ExitCode::usage, "precision.fp8_skip: one product reads {} and {}, but only {} is skipped. Skip both or neither.",
           table[i - 1].name, table[i].name, now ? table[i].name : table[i - 1].name);
  }
  const auto multiplied = [&](const Parameter& p) {
    return p.shape.dims.size() == 2 && !p.adapter && !is_skipped(precision.fp8_skip, p.name);
  };
  if (std::ranges::none_of(table, multiplied))
    fail(ExitCode::usage, "precision.fp8_skip leaves no product in fp8. Leave a pattern out, or set precision.fp8 = \"none\".");
}

std::string describe_fp8(const std::vector<Parameter>& table, const PrecisionKeys& precision) {
  if (precision.fp8 == Fp8Recipe::none) return "";
  double taken = 0, all = 0;
  for (const Parameter& p : table) {
    if (p.shape.dims.size() != 2) continue;
    const auto elements = static_cast<double>(p.shape.elements());
    all += elements;
    if (!p.adapter && !is_skipped(precision.fp8_skip, p.name)) taken += elements;
  }
  return fmt::format("{}: products of {} of {} parameters in matrices; the others are in {}", word_of(precision.fp8), human_count(taken),
                     human_count(all), name_of(precision.compute));
}

}  // namespace tessera
