#include "zero/coded_parts.hpp"

#include <algorithm>

namespace tessera {
namespace {

/// Tensors that lie one after the other and are of one form.
struct Stretch {
  Range elements;
  int matrix = -1;
};

std::vector<Stretch> stretches_of(const Layout& layout, const Unit& unit, const Fp8Shape& fp8, std::vector<std::string>& matrices) {
  std::vector<Stretch> all;
  for (const Slot& slot : unit.slots) {
    const Parameter& p = layout.table[static_cast<std::size_t>(slot.parameter)];
    if (p.joined && !all.empty()) {
      all.back().elements.end = slot.offset + slot.elements;
      continue;
    }
    const bool coded =
        p.shape.dims.size() == 2 && !p.adapter && p.part != Part::embedding && p.part != Part::positions && fp8.takes(p.name);
    all.push_back({{slot.offset, slot.offset + slot.elements}, coded ? static_cast<int>(matrices.size()) : -1});
    if (coded) matrices.push_back(p.name);
  }
  return all;
}

}  // namespace

CodedParts coded_parts(const Layout& layout, int unit, int parts, const Fp8Shape& fp8) {
  const Unit& u = layout.units[static_cast<std::size_t>(unit)];
  CodedParts coded;
  const std::vector<Stretch> stretches = stretches_of(layout, u, fp8, coded.matrices);
  if (coded.matrices.empty()) return {};
  const std::int64_t part = u.elements / parts;
  for (int r = 0; r < parts; ++r) {
    auto& runs = coded.parts.emplace_back();
    std::int64_t byte = 0;
    for (const Stretch& s : stretches) {
      const std::int64_t begin = std::max(s.elements.begin, r * part), end = std::min(s.elements.end, (r + 1) * part);
      if (begin >= end) continue;
      runs.push_back({{begin, end - begin, byte, s.matrix >= 0}, s.matrix});
      byte += kernels::run_bytes(end - begin, s.matrix >= 0);
    }
    coded.block = std::max(coded.block, byte);
  }
  return coded;
}

std::vector<kernels::Fp8Run> all_runs(const CodedParts& coded) {
  std::vector<kernels::Fp8Run> all;
  for (std::size_t part = 0; part < coded.parts.size(); ++part)
    for (const CodedRun& run : coded.parts[part]) {
      all.push_back(run.run);
      all.back().byte += static_cast<std::int64_t>(part) * coded.block;
    }
  return all;
}

}  // namespace tessera
