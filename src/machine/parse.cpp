// From TOML text to a profile, or to the list of everything that is wrong with it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "base/check.hpp"
#include "base/glob.hpp"
#include "base/regular_file.hpp"
#include "deck/schema/hints.hpp"
#include "deck/schema/syntax.hpp"
#include "deck/schema/value.hpp"
#include "machine/keys.hpp"
#include "machine/shipped.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_file_bytes = 1 << 20;  // a measured profile is a hundredth of it
constexpr std::size_t most_sizes = 64;             // on an axis

/// "text", "a number", ...: what stands in a file, for messages.
std::string found(const toml::node& node) {
  if (const auto v = node.value_exact<std::string>()) return "the text " + toml_string(shortened(*v));
  if (const auto v = node.value_exact<std::int64_t>()) return fmt::format("{}", *v);
  if (const auto v = node.value_exact<double>()) return shortest(*v);
  if (const auto v = node.value_exact<bool>()) return *v ? "true" : "false";
  return node.is_array() ? "a list" : node.is_table() ? "a section" : "a date or time";
}

std::string example_of(MachineValue value) {
  using enum MachineValue;
  switch (value) {
    case bytes:
    case amounts:
      return "\"80 GB\"";
    case seconds:
      return "\"4 us\"";
    case flops:
    case flops_list:
      return "\"989.4 TFLOP/s\"";
    case watts:
      return "\"700 W\"";
    default:
      return "\"3.35 TB/s\"";
  }
}

/// Reads one file into a profile.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  ParsedMachine read(const std::string& text) {
    toml::table tables;
    const bool whole = read_toml(text, file_, tables, faults_);
    walk(tables, "");
    for (const MachineKey& key : machine_keys())
      if (whole && !given_.contains(key.name) && !mentioned_.contains(key.name) && is_needed(key))
        fault({}, key.name, fmt::format("is required and missing: {}; add `{} = ...` under [{}]", key.help, key.leaf(), key.section()));
    share_axes();
    if (whole) check();
    std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) {
      return std::tuple(a.line == 0, a.line, a.column) < std::tuple(b.line == 0, b.line, b.column);
    });
    return {profile_, faults_};
  }

 private:
  struct Place {
    int line = 0, column = 0;
  };
  static Place place_of(const toml::source_region& region) {
    return {static_cast<int>(region.begin.line), static_cast<int>(region.begin.column)};
  }
  void fault(const Place& at, const std::string& key, const std::string& message) {
    faults_.push_back({file_, at.line, at.column, key, message});
    mentioned_.insert(key);
  }

  static const MachineKey* find(const std::string& name) {
    const auto& keys = machine_keys();
    const auto it = std::find_if(keys.begin(), keys.end(), [&](const MachineKey& k) { return k.name == name; });
    return it == keys.end() ? nullptr : &*it;
  }
  static bool is_section(const std::string& name) {
    return std::ranges::any_of(machine_keys(), [&](const MachineKey& k) { return k.name.starts_with(name + "."); });
  }

  void walk(const toml::table& table, const std::string& section) {
    for (const auto& [key, node] : table) {
      const std::string name = section.empty() ? std::string(key.str()) : fmt::format("{}.{}", section, key.str());
      const Place at = place_of(key.source());
      if (const MachineKey* row = find(name)) {
        given_.insert({name, place_of(node.source())});
        if (std::string wrong = assign(*row, node); !wrong.empty()) fault(place_of(node.source()), name, wrong);
      } else if (is_section(name) && node.is_table()) {
        sections_.insert(name);
        walk(*node.as_table(), name);
      } else if (is_section(name)) {
        fault(at, name, fmt::format("is a section, not a key; its keys belong under [{}]", name));
      } else {
        unknown(at, name, section, node.is_table());
      }
    }
  }

  void unknown(const Place& at, const std::string& name, const std::string& section, bool is_table) {
    // Words that may follow here: of keys, or of sections.
    std::vector<std::string> words;
    const std::string before = section.empty() ? "" : section + ".";
    for (const MachineKey& key : machine_keys()) {
      if (!key.name.starts_with(before)) continue;
      const std::string rest = key.name.substr(before.size()), word = rest.substr(0, rest.find('.'));
      if ((word != rest) == is_table && std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
    }
    const std::vector<std::string_view> views(words.begin(), words.end());
    const std::string best(nearest(std::string_view(name).substr(before.size()), views)), meant = before + best;
    const char* what = is_table ? "section" : "key";
    if (!best.empty())  // what was written wrongly is not missing too
      for (const MachineKey& key : machine_keys())
        if (key.name == meant || (is_table && key.name.starts_with(meant + "."))) mentioned_.insert(key.name);
    fault(at, name,
          best.empty() ? fmt::format("is not a {} of a machine profile; there are {}", what,
                                     words.empty() ? std::string("none here") : fmt::format("{}", fmt::join(words, ", ")))
                       : fmt::format("is not a {} of a machine profile; did you mean {}?", what, is_table ? "[" + meant + "]" : meant));
  }

  std::string assign(const MachineKey& key, const toml::node& node) {
    const MachineField field = key.field(profile_);
    switch (key.value) {
      case MachineValue::text: {
        const auto text = node.value_exact<std::string>();
        if (!text) return fmt::format("expected text in double quotes, got {}", found(node));
        *std::get<std::string*>(field) = *text;
        return {};
      }
      case MachineValue::count: {
        const auto count = node.value_exact<std::int64_t>();
        if (!count) return fmt::format("expected a whole number, got {}", found(node));
        if (*count < 1 || *count > 1000000) return fmt::format("{} is out of range: from 1 to 1000000", *count);
        *std::get<std::int64_t*>(field) = *count;
        return {};
      }
      case MachineValue::bytes: {
        double value = 0;
        std::string wrong = assign_quantity(key.value, node, value);
        if (wrong.empty() && value > 9e18) wrong = fmt::format("{} is out of range", found(node));
        if (wrong.empty()) *std::get<std::int64_t*>(field) = static_cast<std::int64_t>(value);
        return wrong;
      }
      case MachineValue::seconds:
      case MachineValue::flops:
      case MachineValue::traffic:
      case MachineValue::watts:
        return assign_quantity(key.value, node, *std::get<double*>(field));
      case MachineValue::share:
      case MachineValue::number:
        return assign_number(key.value, node, *std::get<double*>(field));
      case MachineValue::keys:
        return assign_keys(node, *std::get<std::vector<std::string>*>(field));
      default:
        return assign_list(key, node, *std::get<std::vector<double>*>(field));
    }
  }

  static std::string assign_quantity(MachineValue value, const toml::node& node, double& out) {
    const auto text = node.value_exact<std::string>();
    if (!text) return fmt::format("expected text with a unit, got {}; write for example {}", found(node), example_of(value));
    return read_quantity(*text, value, out);
  }

  static std::string assign_number(MachineValue value, const toml::node& node, double& out) {
    const auto number = node.is_number() ? node.value<double>() : std::nullopt;
    if (!number) return fmt::format("expected a number, got {}", found(node));
    const double most = value == MachineValue::share ? 1 : 1e9;
    if (!(*number > 0 && *number <= most)) return fmt::format("{} is out of range: above 0, at most {:g}", shortest(*number), most);
    out = *number;
    return {};
  }

  static std::string assign_keys(const toml::node& node, std::vector<std::string>& out) {
    if (!node.is_array()) return fmt::format("expected a list of keys, got {}", found(node));
    for (const toml::node& element : *node.as_array()) {
      const auto pattern = element.value_exact<std::string>();
      if (!pattern) return fmt::format("expected a list of keys, got {} in it", found(element));
      if (std::ranges::none_of(machine_keys(), [&](const MachineKey& k) { return matches_glob(*pattern, k.name); }))
        return fmt::format("{} is neither a key of a machine profile nor a pattern of some (\"overhead.*\")",
                           toml_string(shortened(*pattern)));
      out.push_back(*pattern);
    }
    return {};
  }

  /// Sizes, amounts and rates. A rate may also stand alone, for all sizes.
  std::string assign_list(const MachineKey& key, const toml::node& node, std::vector<double>& out) {
    const bool is_axis = key.value == MachineValue::sizes || key.value == MachineValue::amounts;
    out.clear();
    if (!is_axis && !node.is_array()) return assign_quantity(key.value, node, out.emplace_back());
    if (!node.is_array()) return fmt::format("expected a list, got {}", found(node));
    for (const toml::node& element : *node.as_array()) {
      double value = 0;
      std::string wrong;
      if (key.value != MachineValue::sizes) {
        wrong = assign_quantity(key.value, element, value);
      } else if (const auto size = element.value_exact<std::int64_t>(); size && *size > 0) {
        value = static_cast<double>(*size);
      } else {
        wrong = fmt::format("expected a list of positive whole numbers, got {} in it", found(element));
      }
      if (!wrong.empty()) return wrong;
      out.push_back(value);
    }
    if (out.empty()) return "is an empty list";
    if (is_axis && out.size() > most_sizes) return fmt::format("has {} sizes; at most {} are read", out.size(), most_sizes);
    if (is_axis && std::ranges::adjacent_find(out, std::greater_equal<>()) != out.end())
      return "does not rise: list the sizes from the smallest to the largest";
    return {};
  }

  /// A compute type's three sections come together.
  bool is_needed(const MachineKey& key) const {
    if (key.needed != Needed::with_section) return key.needed == Needed::always;
    for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
      const std::string end = fmt::format(".{}", name_of(dtype));
      if (key.section().ends_with(end)) return std::ranges::any_of(sections_, [&](const std::string& s) { return s.ends_with(end); });
    }
    return sections_.contains(key.section());
  }

  void share_axes() {
    for (const DType dtype : {DType::bf16, DType::f32, DType::f16, DType::e4m3}) {
      ComputeRates& r = profile_.rates(dtype);
      r.input_gradient.axes = r.weight_gradient.axes = r.forward.axes;
      r.attention_backward.axes = r.attention_forward.axes;
      const auto axes = r.kernels["stream"].axes;
      std::erase_if(r.kernels, [](const auto& kernel) { return kernel.second.rates.empty(); });
      for (auto& [name, grid] : r.kernels) grid.axes = axes;
    }
  }

  Place place(const std::string& key) const {
    const auto it = given_.find(key);
    return it == given_.end() ? Place{} : it->second;
  }

  /// What several keys say together.
  void check() {
    for (const MachineKey& key : machine_keys()) check_lengths(key);
    for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) check_peak(dtype, std::string(name_of(dtype)));
    check_peak(DType::e4m3, "fp8");
    check_order();
    if (!profile_.device.empty() && profile_.device != "cuda" && profile_.device != "host")
      fault(place("machine.device"), "machine.device",
            fmt::format("{} is not a value of this key; it takes \"cuda\", \"host\"", toml_string(profile_.device)));
    const auto wants = [&](const char* key, bool there, const char* why) {
      if (!there && !mentioned_.contains(key)) fault(place("machine.device"), key, fmt::format("is missing: {}", why));
    };
    if (profile_.device == "cuda") {
      wants("machine.device_memory", profile_.device_memory > 0, "ranks compute on GPUs; add `device_memory = \"80 GB\"` under [machine]");
      wants("transfer.up", profile_.transfer.up > 0, "ranks compute on GPUs; add [transfer] with latency, up and down");
    }
    if (profile_.ranks_per_node > 1)
      wants("collectives.node.latency", profile_.node.all_gather > 0, "a node has several ranks; add [collectives.node]");
    if (sections_.empty() || std::ranges::none_of(sections_, [](const std::string& s) { return s.starts_with("gemm."); }))
      fault({}, "gemm", "is missing: add [gemm.bf16] or [gemm.fp32], with [attention] and [kernels] of the same type");
  }

  void check_lengths(const MachineKey& key) {
    if (key.axes.empty() || !given_.contains(key.name) || mentioned_.contains(key.name)) return;
    std::size_t wanted = 1;
    for (const std::string& axis : key.axes) {
      const std::string name = fmt::format("{}.{}", key.section(), axis);
      if (!given_.contains(name) || mentioned_.contains(name)) return;
      wanted *= std::get<std::vector<double>*>(find(name)->field(profile_))->size();
    }
    const std::size_t there = std::get<std::vector<double>*>(key.field(profile_))->size();
    if (there != 1 && there != wanted)
      fault(place(key.name), key.name,
            fmt::format("has {} rates, but {} of this section make {} sizes: give one each, or one for all", there,
                        fmt::join(key.axes, " x "), wanted));
  }

  /// Nothing computes faster than the hardware: what is predicted from a profile cannot exceed its peak.
  void check_peak(DType dtype, const std::string& type) {
    const ComputeRates& r = profile_.rates(dtype);
    const auto below = [&](const char* room, const char* leaf, const RateGrid& grid) {
      const std::string name = fmt::format("{}.{}.{}", room, type, leaf);
      if (r.peak > 0 && grid.fastest() > r.peak && !mentioned_.contains(name))
        fault(
            place(name), name,
            fmt::format("has a rate of {:.4g} TFLOP/s, above gemm.{}.peak of {:.4g} TFLOP/s", grid.fastest() / 1e12, type, r.peak / 1e12));
    };
    below("gemm", "forward", r.forward), below("gemm", "input_gradient", r.input_gradient),
        below("gemm", "weight_gradient", r.weight_gradient);
    below("attention", "forward", r.attention_forward), below("attention", "backward", r.attention_backward);
  }

  /// Losses that would be gains.
  void check_order() {
    const auto& e = profile_.efficiency;
    if (e.given() && !(e.low <= e.likely && e.likely <= e.high) && !mentioned_.contains("efficiency.likely"))
      fault(place("efficiency.likely"), "efficiency.likely",
            fmt::format("is {}, which is not between efficiency.low of {} and efficiency.high of {}", shortest(e.likely), shortest(e.low),
                        shortest(e.high)));
    const auto& power = profile_.power;
    if (power.limit > power.rated && power.rated > 0 && !mentioned_.contains("power.limit"))
      fault(place("power.limit"), "power.limit",
            fmt::format("of {:g} W is above power.rated of {:g} W, at which the rates were measured", power.limit, power.rated));
    if (profile_.contention >= 1 && !mentioned_.contains("contention.compute"))
      fault(place("contention.compute"), "contention.compute", "is 1: compute would stop during collectives; give less");
    if (profile_.sharing.second_wave >= 1 && !mentioned_.contains("contention.second_wave"))
      fault(place("contention.second_wave"), "contention.second_wave", "is 1: products would stop during collectives; give less");
  }

  std::string file_;
  MachineProfile profile_;
  std::vector<Fault> faults_;
  std::map<std::string, Place> given_;
  std::set<std::string> sections_, mentioned_;  ///< keys that a fault speaks of already
};

}  // namespace

std::string read_quantity(const std::string& text, MachineValue value, double& out) {
  const std::string help = fmt::format("write for example {}", example_of(value));
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (error != std::errc{}) return fmt::format("{} is not a number with a unit; {}", toml_string(shortened(text)), help);
  if (unit.empty()) return fmt::format("{} has no unit; {}", toml_string(text), help);
  std::vector<std::string_view> names;
  for (const MachineUnit& u : units_of(value)) {
    names.push_back(u.name);
    if (u.name != unit) continue;
    out = number * u.size;
    if (!std::isfinite(out) || out < 0) return fmt::format("{} is out of range: it cannot be negative or infinite", toml_string(text));
    if (out == 0 && value != MachineValue::seconds)
      return fmt::format("{} is out of range: above 0; leave missing parts out", toml_string(text));
    return {};
  }
  return fmt::format("{} is not a unit of it; the units are {}", toml_string(shortened(std::string(unit))), fmt::join(names, ", "));
}

ParsedMachine parse_machine_text(const std::string& text, const std::string& name) { return Reader(name).read(text); }

ParsedMachine parse_machine(const std::string& path) {
  std::string text, why;
  std::error_code ignored;  // what cannot be looked at is refused where it is read
  if (!std::filesystem::exists(path, ignored))
    if (const auto shipped = shipped_machine(path))
      return parse_machine_text(std::string(shipped->text), fmt::format("inputs/machines/{}.toml", shipped->name));
  if (!read_regular(path, most_file_bytes, text, why))
    why += fmt::format(" Profiles that come with the program, by name: {}.", fmt::join(shipped_machines(), ", "));
  if (!why.empty()) return {.profile = {}, .faults = {{path, 0, 0, "", why}}};
  return parse_machine_text(text, path);
}

MachineProfile require_machine(const std::string& path) {
  const ParsedMachine parsed = parse_machine(path);
  if (parsed.faults.empty()) return parsed.profile;
  std::string all =
      fmt::format("the machine profile has {}:", parsed.faults.size() == 1 ? "a fault" : fmt::format("{} faults", parsed.faults.size()));
  for (const Fault& f : parsed.faults) all += "\n  " + f.str();
  throw Error(ExitCode::usage, all);
}

}  // namespace tessera
