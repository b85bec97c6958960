// One row a key of a machine profile. Reading, printing and the messages for misspelt keys are all made from this table.
#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <variant>

#include "machine/profile.hpp"

namespace tessera {

/// What a user writes for the value.
enum class MachineValue {
  text,          ///< "8 x H100"
  count,         ///< 8
  bytes,         ///< "80 GB"
  seconds,       ///< "4 us"
  flops,         ///< "989.4 TFLOP/s"
  traffic,       ///< "3.35 TB/s"
  watts,         ///< "700 W"
  share,         ///< 0.85: above 0, at most 1
  number,        ///< 2.5: above 0
  sizes,         ///< [256, 4096]: an axis
  amounts,       ///< ["256 KiB", "64 MiB"]: an axis of bytes
  flops_list,    ///< ["200 GFLOP/s", "220 GFLOP/s"], or one for all sizes
  traffic_list,  ///< ["20 GB/s", "50 GB/s"], or one
  keys           ///< ["overhead.*", "transfer.latency"]: patterns of keys
};

enum class Needed {
  always,
  with_section,  ///< where any key of its section is given
  never
};

using MachineField = std::variant<std::string*, std::int64_t*, double*, std::vector<double>*, std::vector<std::string>*>;

struct MachineKey {
  std::string name;  ///< "gemm.bf16.peak": section, dot, leaf
  MachineValue value;
  Needed needed;
  std::string help;
  std::function<MachineField(MachineProfile&)> field;
  std::vector<std::string> axes = {};  ///< of a list of rates: the keys of its sizes, of the same section

  std::string section() const { return name.substr(0, name.rfind('.')); }
  std::string leaf() const { return name.substr(name.rfind('.') + 1); }
};

/// All keys, in the order in which a profile is printed.
const std::vector<MachineKey>& machine_keys();

/// A unit of a quantity, largest first in each family.
struct MachineUnit {
  std::string_view name;
  double size;
};
std::span<const MachineUnit> units_of(MachineValue value);

/// A positive number with a unit of `value`, into `out`. Returns what is wrong, or nothing.
std::string read_quantity(const std::string& text, MachineValue value, double& out);
/// "219.4 GFLOP/s": the largest unit of which it is at least one; decimal ones stand before binary ones.
std::string print_quantity(double number, MachineValue value);

}  // namespace tessera
