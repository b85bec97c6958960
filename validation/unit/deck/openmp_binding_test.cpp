// Which ranks keep what their environment asks of OpenMP's threads.
#include "deck/openmp_binding.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::openmp_binding_test {
namespace {

/// What is left of such an environment.
std::vector<std::string> left_of(std::vector<std::string> entries, bool whole_node) {
  std::vector<char*> environment;
  for (std::string& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  leave_openmp_binding(environment.data(), whole_node);
  std::vector<std::string> left;
  for (char** entry = environment.data(); *entry; ++entry) left.emplace_back(*entry);
  return left;
}

TEST(OpenMpBinding, IsLeftByRanksThatWouldShareCores) {
  const std::vector<std::string> all = {"A=1",          "OMP_PROC_BIND=close", "PMI_SIZE=2", "OMP_PLACES=cores", "OMP_NUM_THREADS=4",
                                        "OMP_PLACES_=x"};
  const std::vector<std::string> rest = {"A=1", "PMI_SIZE=2", "OMP_NUM_THREADS=4", "OMP_PLACES_=x"};
  EXPECT_EQ(left_of(all, true), rest);
  EXPECT_EQ(left_openmp_binding(), "OMP_PROC_BIND and OMP_PLACES");
  EXPECT_EQ(left_of(all, false), all) << "the launcher has bound the ranks";
  EXPECT_EQ(left_openmp_binding(), "");
  for (const char* launcher : {"OMPI_COMM_WORLD_SIZE=8", "SLURM_STEP_NUM_TASKS=3", "PMI_SIZE=2"})
    EXPECT_EQ(left_of({launcher, "GOMP_CPU_AFFINITY=0-3"}, true), std::vector<std::string>{launcher});
  for (const std::vector<std::string>& kept :
       {std::vector<std::string>{"OMP_PROC_BIND=close"}, {"PMI_SIZE=1", "OMP_PLACES=cores"}, {"PMI_SIZE=2", "OMP_PROC_BIND=false"}, {}})
    EXPECT_EQ(left_of(kept, true), kept);
}

}  // namespace
}  // namespace tessera::openmp_binding_test
