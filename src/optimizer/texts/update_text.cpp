#include "optimizer/texts/update_text.hpp"

#include "base/check.hpp"

namespace tessera {

UpdateOperand UpdateText::state(std::string_view group) { return state(group, shape.moments); }

UpdateOperand UpdateText::state(std::string_view group, kernels::StateType type) {
  TESSERA_REQUIRE(std::ssize(record_.state) < kernels::most_update_states, "{} is more than an update keeps", group);
  record_.state.push_back({group, type});
  return {UpdateOperand::Kind::state, static_cast<int>(record_.state.size()) - 1, type};
}

UpdateOperand UpdateText::sums(std::int64_t count) {
  TESSERA_REQUIRE(record_.sums == 0 && count <= kernels::most_update_sums, "{} sums of a tensor", record_.sums + count);
  record_.sums = count;
  return {UpdateOperand::Kind::sums};
}

void UpdateText::run(std::string_view kernel, std::vector<UpdateUse> uses, decltype(UpdateCall::code) code) {
  record_.phases.back().push_back({kernel, std::move(uses), code, shape.moments, shape.stochastic});
}

void UpdateText::meet() { record_.phases.emplace_back(); }

}  // namespace tessera
