#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "deck/schema/value.hpp"
#include "machine/keys.hpp"

namespace tessera {
namespace {

std::string quoted(double number, MachineValue kind) { return fmt::format("\"{}\"", print_quantity(number, kind)); }

/// Bytes are whole: the largest unit that divides them.
std::string whole_bytes(double value) {
  for (const char* order : {"TB", "TiB", "GB", "GiB", "MB", "MiB", "KB", "KiB", "B"})
    for (const MachineUnit& unit : units_of(MachineValue::bytes))
      if (unit.name == order && value >= unit.size && std::fmod(value, unit.size) == 0)
        return fmt::format("\"{:.0f} {}\"", value / unit.size, unit.name);
  return "\"0 B\"";
}

std::string list(const std::vector<double>& values, MachineValue kind) {
  if (values.size() == 1 && kind != MachineValue::sizes && kind != MachineValue::amounts) return quoted(values.front(), kind);
  std::vector<std::string> texts;
  for (const double v : values)
    texts.push_back(kind == MachineValue::sizes     ? fmt::format("{:.0f}", v)
                    : kind == MachineValue::amounts ? whole_bytes(v)
                                                    : quoted(v, kind));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

/// The value after `=`; empty where the profile does not say it.
std::string text_of(const MachineKey& key, MachineProfile& profile) {
  const MachineField field = key.field(profile);
  if (const auto* text = std::get_if<std::string*>(&field)) return (*text)->empty() ? "" : toml_string(**text);
  if (const auto* count = std::get_if<std::int64_t*>(&field)) {
    if (**count == 0) return "";
    return key.value == MachineValue::bytes ? whole_bytes(static_cast<double>(**count)) : fmt::format("{}", **count);
  }
  if (key.value == MachineValue::share || key.value == MachineValue::number) {
    const double number = *std::get<double*>(field);
    return number == 0 ? "" : shortest(number);
  }
  if (const auto* number = std::get_if<double*>(&field))
    return **number == 0 && key.value != MachineValue::seconds ? "" : quoted(**number, key.value);
  if (const auto* patterns = std::get_if<std::vector<std::string>*>(&field)) {
    std::vector<std::string> texts;
    for (const std::string& pattern : **patterns) texts.push_back(toml_string(pattern));
    return texts.empty() ? "" : fmt::format("[{}]", fmt::join(texts, ", "));
  }
  const auto& values = *std::get<std::vector<double>*>(field);
  return values.empty() ? "" : list(values, key.value);
}

/// Latencies may be 0, so a section is there where anything else of it is.
bool says_more_than_latency(const std::string& section, MachineProfile& profile) {
  for (const MachineKey& key : machine_keys())
    if (key.section() == section && (section == "overhead" || key.value != MachineValue::seconds) && !text_of(key, profile).empty())
      return true;
  return false;
}

}  // namespace

std::string print_quantity(double number, MachineValue value) {
  for (const MachineUnit& unit : units_of(value))
    if (number >= unit.size) return fmt::format("{:.5g} {}", number / unit.size, unit.name);
  return fmt::format("{:.5g} {}", number / units_of(value).back().size, units_of(value).back().name);
}

std::string print_machine(const MachineProfile& profile) {
  MachineProfile copy = profile;  // fields are reached through references
  std::string out, section;
  for (const MachineKey& key : machine_keys()) {
    const std::string text = text_of(key, copy);
    if (text.empty() || !says_more_than_latency(key.section(), copy)) continue;
    if (key.section() != section) out += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", section = key.section());
    out += fmt::format("{} = {}\n", key.leaf(), text);
  }
  return out;
}

}  // namespace tessera
