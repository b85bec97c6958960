// How a unit travels whose matrices are read by products in fp8 alone: those as codes of 8 bits, all else as it is. Pure functions.
#pragma once
#include <string>
#include <vector>

#include "kernels/fp8_runs/fp8_runs.hpp"
#include "model/table/fp8.hpp"
#include "model/table/layout.hpp"

namespace tessera {

/// A run of a rank's part. Elements are of the unit, bytes of the part's block.
struct CodedRun {
  kernels::Fp8Run run;
  int matrix = -1;  ///< of codes
};
/// A unit in equal parts, one a rank, each in a block of as many bytes.
struct CodedParts {
  std::int64_t block = 0;
  std::vector<std::string> matrices = {};         ///< that travel as codes, each with those joined to it by the first's name
  std::vector<std::vector<CodedRun>> parts = {};  ///< in order
};
/// Of all blocks, one after the other.
std::vector<kernels::Fp8Run> all_runs(const CodedParts& coded);

/// Of no parts where no matrix of the unit travels as codes: those of layers and the head, not the embedding, whose rows are looked up.
CodedParts coded_parts(const Layout& layout, int unit, int parts, const Fp8Shape& fp8);

}  // namespace tessera
