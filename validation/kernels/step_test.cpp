#include "step_cases.hpp"

namespace tessera::kernels::testing::step_test {
namespace {

TEST(Step, IsItsDefinition) {
  for (const StepCase& c : step_cases()) {
    SCOPED_TRACE(::testing::Message() << c);
    expect_by_definition(c, step_on_host(c));
  }
}

TEST(Step, SumsOfAnotherTierJoin) {
  JoinedSums sums;
  host::join_sums({}, &sums.mine, &sums.other);
  JoinedSums::expect_joined(sums.mine);
}

}  // namespace
}  // namespace tessera::kernels::testing::step_test
