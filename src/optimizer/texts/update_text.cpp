#include "optimizer/texts/update_text.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace tessera {

UpdateOperand UpdateText::state(std::string_view group) { return state(group, shape.moments); }

UpdateOperand UpdateText::state(std::string_view group, kernels::StateType type) {
  TESSERA_REQUIRE(std::ssize(record_.state) < kernels::most_update_states, "{} is more than an update keeps", group);
  record_.state.push_back({.group = group, .type = type});
  return {UpdateOperand::Kind::state, static_cast<int>(record_.state.size()) - 1, type};
}

UpdateOperand UpdateText::state(std::string_view group, kernels::Extent of) {
  record_.state.push_back({.group = group, .of = of});
  return {.kind = UpdateOperand::Kind::state, .row = static_cast<int>(record_.state.size()) - 1, .of = of};
}

UpdateOperand UpdateText::line_sums() {
  record_.lines = true;
  return {UpdateOperand::Kind::lines};
}

UpdateOperand UpdateText::sums(std::int64_t count) {
  TESSERA_REQUIRE(record_.sums == 0 && count <= kernels::most_update_sums, "{} sums of a tensor", record_.sums + count);
  record_.sums = count;
  return {UpdateOperand::Kind::sums};
}

void UpdateText::run(std::string_view kernel, std::vector<UpdateUse> uses, decltype(UpdateCall::code) code) {
  record_.phases.back().calls.push_back({kernel, std::move(uses), code, shape.moments, shape.stochastic});
}

void UpdateText::run_once(std::string_view kernel, std::vector<UpdateUse> uses, decltype(UpdateCall::code) code) {
  run(kernel, std::move(uses), code);
  record_.phases.back().calls.back().once = true;
}

void UpdateText::reduce(const UpdateOperand& sums) {
  record_.phases.back().reduces = sums.kind;
  record_.phases.emplace_back();
}

void UpdateText::orthogonalize() {
  TESSERA_REQUIRE(record_.phases.size() == 1 && record_.sums == 0, "{} phases before the reduction of matrices", record_.phases.size());
  record_.orthogonal = shape.orthogonal;
  reduce(matrices());
}

void UpdateText::take_mean_by_signs(const UpdateOperand& momentum) {
  record_.momentum = momentum.row;
  reduce({UpdateOperand::Kind::signs});
  reduce({UpdateOperand::Kind::mean_signs});
}

float OrthogonalMatrices::scale(std::int64_t rows, std::int64_t columns) const {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return static_cast<float>(matches_adamw ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c)));
}

}  // namespace tessera
