// Products of linear layers in fp8 (precision.fp8): which they are.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "kernels/fp8_history/fp8_history.hpp"
#include "model/table/parameters.hpp"

namespace tessera {

struct Fp8Shape {
  Fp8Recipe recipe = Fp8Recipe::none;
  std::vector<std::string> skip = {};  ///< patterns of tensors whose products stay in the compute type
  /// The matrices of products, each with those joined to it by the first's name. In delayed scaling each has histories.
  std::vector<std::string> matrices = {};
  std::int64_t history = 0;  ///< steps of each
  int margin = 0;

  bool delayed() const { return recipe == Fp8Recipe::tensorwise_delayed; }
  /// Whether a whole matrix has a scale.
  bool of_tensors() const { return delayed() || recipe == Fp8Recipe::tensorwise; }
  /// Whether the product that reads this tensor, and those joined to it, is in fp8.
  bool takes(std::string_view tensor) const;
  /// The number of a matrix, and of a history.
  std::int64_t number_of(std::string_view matrix) const;
  std::int64_t history_of(std::string_view matrix, kernels::Fp8Tensor tensor) const;
  std::int64_t history_count() const;
};
/// Of a deck's model.
Fp8Shape fp8_shape(const Deck& deck);

/// Throws Error(usage) that names a pattern of precision.fp8_skip of no tensor with the names nearest to it, and two tensors of one product
/// of which one is skipped.
void check_fp8_skip(const std::vector<Parameter>& table, const PrecisionKeys& precision);

/// "rowwise: products of 85.1 M of 123.6 M parameters in matrices; those of others are in bf16"; empty where none is.
std::string describe_fp8(const std::vector<Parameter>& table, const PrecisionKeys& precision);

}  // namespace tessera
