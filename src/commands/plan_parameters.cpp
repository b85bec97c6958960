// tessera plan --parameters: a model of so many parameters, without a deck or in the place of a deck's.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.hpp"
#include "commands/plan_options.hpp"
#include "io/files/path_state.hpp"
#include "model/table/model_of_size.hpp"
#include "model/table/parameters.hpp"

namespace tessera {
namespace {

constexpr const char* shape_keys[] = {"layers", "width", "heads", "kv_heads", "head_dim", "ff_width"};

std::int64_t read_parameters(const std::string& text) {
  const double number = read_count(text, "MBT");
  if (!(number >= 1e4 && number <= 1e14))
    fail(ExitCode::usage, "--parameters {}: give a number from 1e4 to 1e14, for example 7e9 or 7B", text);
  return std::llround(number);
}

/// What a plan of no deck leaves open, with a shape that another takes the place of.
std::string deck_of_any_shape(const PlanOptions& o) {
  return usual_deck("[model]\nlayers = 1\nwidth = 128\nheads = 1\nff_width = 384\nvocab = 32000\n", 4096, most_ranks(o));
}

}  // namespace

double read_count(const std::string& text, std::string_view units) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  constexpr std::pair<std::string_view, double> sizes[] = {{"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}};
  if (error != std::errc{} || unit.empty()) return error == std::errc{} ? number : 0;
  for (const auto& [name, size] : sizes)
    if (unit == name && units.find(name) != units.npos) return number * size;
  return 0;
}

PlanOptions with_parameters(PlanOptions o) {
  if (o.parameters.empty()) return o;
  const std::int64_t wanted = read_parameters(o.parameters);
  if (o.path.find('=') != o.path.npos && io::look_at(o.path).nothing()) o.overrides.insert(o.overrides.begin(), o.path), o.path.clear();
  if (o.path.empty()) o.text = deck_of_any_shape(o), o.path = "--parameters " + o.parameters;
  const ModelKeys like = require_deck(read_deck(o, o.overrides, 0)).model;
  if (like.experts > 0)
    fail(ExitCode::usage, "--parameters makes dense models, but {} has model.experts = {}: give the shape by its keys", o.path,
         like.experts);
  for (const char* key : shape_keys)
    for (const std::string& said : o.overrides)
      if (said.starts_with(fmt::format("model.{}=", key)))
        fail(ExitCode::usage, "--parameters {} chooses model.{}, which {} sets too: leave out one of them", o.parameters, key, said);
  const ModelKeys m = model_of_size(wanted, like);
  const std::int64_t values[] = {m.layers, m.width, m.heads, m.kv_heads, m.head_dim, m.ff_width};
  for (std::size_t i = 0; i < std::size(values); ++i) o.overrides.push_back(fmt::format("model.{}={}", shape_keys[i], values[i]));
  const std::int64_t count = parameter_count(parameter_table(m));
  o.shape = fmt::format("model.layers={} width={} heads={} kv_heads={} head_dim={} ff_width={} vocab={}: {} parameters ({:+.2f} % of {})",
                        m.layers, m.width, m.heads, m.kv_heads, m.head_dim, m.ff_width, m.vocab, count,
                        100 * (static_cast<double>(count) / static_cast<double>(wanted) - 1), o.parameters);
  return o;
}

}  // namespace tessera
