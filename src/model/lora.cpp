#include "model/lora.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "base/check.hpp"
#include "base/glob.hpp"

namespace tessera {
namespace {

constexpr std::string_view suffix_a = ".lora_a", suffix_b = ".lora_b", weight = ".weight";

/// The matrices of a layer that may have an adapter, and Hugging Face's names of their modules.
struct Target {
  std::string_view ours, theirs;
};
constexpr std::array<Target, 7> targets = {{{"attention.wq", "q_proj"},
                                            {"attention.wk", "k_proj"},
                                            {"attention.wv", "v_proj"},
                                            {"attention.wo", "o_proj"},
                                            {"mlp.w_gate", "gate_proj"},
                                            {"mlp.w_up", "up_proj"},
                                            {"mlp.w_down", "down_proj"}}};

const Target* target_of(std::string_view tensor) {
  const auto found = std::ranges::find_if(targets, [&](const Target& t) { return tensor.ends_with(t.ours); });
  return found == targets.end() ? nullptr : &*found;
}

bool matches(std::string_view pattern, std::string_view tensor, const Target& target) {
  return pattern == "all-linear" || matches_glob(pattern, tensor) || matches_glob(pattern, target.ours) ||
         matches_glob(pattern, target.ours.substr(target.ours.find('.') + 1)) || matches_glob(pattern, target.theirs);
}

bool is_adapted(const LoraKeys& lora, std::string_view tensor) {
  const Target* target = target_of(tensor);
  return target &&
         (lora.targets.empty() || std::ranges::any_of(lora.targets, [&](const std::string& p) { return matches(p, tensor, *target); }));
}

void require_targets(const std::vector<Parameter>& table, const LoraKeys& lora) {
  for (const std::string& pattern : lora.targets)
    if (std::ranges::none_of(table, [&](const Parameter& p) {
          const Target* target = target_of(p.name);
          return target && matches(pattern, p.name, *target);
        }))
      fail(ExitCode::usage,
           "lora.targets: \"{}\" is no matrix of an attention or MLP of this model. Adapters stand beside wq, wk, wv, wo{}, which may be "
           "called as Hugging Face does (q_proj), by patterns of tensors (\"layers.3.*\"), or \"all-linear\".",
           pattern,
           std::ranges::any_of(table, [](const Parameter& p) { return p.expert >= 0; }) ? " (experts have none in this version)"
                                                                                        : ", w_gate, w_up and w_down");
}

/// The two matrices beside p.
void add_adapter(std::vector<Parameter>& table, const Parameter& p, std::int64_t rank) {
  const std::int64_t N = p.shape.dims.at(0), K = p.shape.dims.at(1);
  const std::string theirs = "base_model.model." + p.export_name.substr(0, p.export_name.size() - weight.size());
  // A is uniform in 1 / sqrt(K) around 0, as PEFT draws it (He et al.'s bound with a slope of sqrt(5)).
  Parameter a{.name = lora_a(p.name),
              .shape = {rank, K},
              .layer = p.layer,
              .init = Init::uniform,
              .std = 1 / std::sqrt(3 * static_cast<double>(K)),
              .decay = true,
              .tp_dim = p.tp_dim == 1 ? 1 : -1,
              .adapter = true,
              .export_name = theirs + ".lora_A.weight"};
  Parameter b{.name = lora_b(p.name),
              .shape = {N, rank},
              .layer = p.layer,
              .init = Init::zeros,
              .decay = true,
              .tp_dim = p.tp_dim == 0 ? 0 : -1,
              .adapter = true,
              .export_name = theirs + ".lora_B.weight"};
  table.push_back(std::move(a));
  table.push_back(std::move(b));
}

/// The name of the tensor that an adapter's matrix A stands beside, or nothing.
std::string_view adapted_by(const Parameter& p) {
  const std::string_view name = p.name;
  return p.adapter && name.ends_with(suffix_a) ? name.substr(0, name.size() - suffix_a.size()) : std::string_view{};
}

}  // namespace

std::string lora_a(std::string_view tensor) { return fmt::format("{}{}", tensor, suffix_a); }
std::string lora_b(std::string_view tensor) { return fmt::format("{}{}", tensor, suffix_b); }

double lora_scale(const LoraKeys& lora) {
  const auto rank = static_cast<double>(lora.rank);
  return lora.alpha / (lora.scaling == "rslora" ? std::sqrt(rank) : rank);
}

void add_adapters(std::vector<Parameter>& table, const LoraKeys& lora) {
  if (lora.rank == 0) return;
  require_targets(table, lora);
  std::vector<Parameter> all;
  std::vector<Parameter> of_layer;  // adapted, and not yet followed by their adapters
  const auto add_pending = [&] {
    for (const Parameter& p : of_layer) add_adapter(all, p, lora.rank);
    of_layer.clear();
  };
  for (Parameter& p : table) {
    if (!of_layer.empty() && of_layer.back().layer != p.layer) add_pending();
    if (is_adapted(lora, p.name)) of_layer.push_back(p);
    p.frozen = p.trained;
    all.push_back(std::move(p));
  }
  add_pending();
  table = std::move(all);
}

std::vector<AdaptedColumns> adapted_columns(const ModelShape& s, const std::string& w, std::int64_t N) {
  if (s.lora.rank == 0 || !target_of(w)) return {};
  std::vector<AdaptedColumns> columns;
  const auto add = [&](const std::string& tensor, std::int64_t first, std::int64_t count) {
    if (is_adapted(s.lora, tensor)) columns.push_back({tensor, first, count});
  };
  const auto neighbour = [&](const char* leaf) { return w.substr(0, w.rfind('.') + 1) + leaf; };
  if (w.ends_with("attention.wq")) {
    const std::int64_t queries = s.H * s.D, keys = (N - queries) / 2;
    add(w, 0, queries), add(neighbour("wk"), queries, keys), add(neighbour("wv"), queries + keys, keys);
  } else if (w.ends_with("mlp.w_gate")) {
    add(w, 0, N / 2), add(neighbour("w_up"), N / 2, N / 2);
  } else {
    add(w, 0, N);
  }
  return columns;
}

std::string describe_lora(const ModelKeys& model, const std::vector<Parameter>& table) {
  if (model.lora.rank == 0) return "";
  std::int64_t matrices = 0, parameters = 0;
  for (const Parameter& p : table)
    if (p.adapter) matrices += adapted_by(p).empty() ? 0 : 1, parameters += p.shape.elements();
  return fmt::format("rank {}, alpha {} ({}scale {:.4g}), beside {} matrices, {} parameters", model.lora.rank, model.lora.alpha,
                     model.lora.scaling == "rslora" ? "rsLoRA, " : "", lora_scale(model.lora), matrices,
                     human_count(static_cast<double>(parameters)));
}

std::vector<std::string> peft_target_modules(const std::vector<Parameter>& table) {
  std::map<std::string_view, std::vector<std::string>> adapted;  // by leaf of the module
  std::map<std::string_view, std::size_t> all;
  const auto has_adapter = [&](const Parameter& p) {
    return std::ranges::any_of(table, [&](const Parameter& a) { return adapted_by(a) == p.name; });
  };
  for (const Parameter& p : table) {
    const Target* target = p.adapter ? nullptr : target_of(p.name);
    if (!target) continue;
    ++all[target->theirs];
    if (has_adapter(p)) adapted[target->theirs].push_back(p.export_name.substr(0, p.export_name.size() - weight.size()));
  }
  std::vector<std::string> modules;
  for (const Target& target : targets) {
    const auto found = adapted.find(target.theirs);
    if (found == adapted.end()) continue;
    if (found->second.size() == all[target.theirs])
      modules.emplace_back(target.theirs);
    else
      modules.insert(modules.end(), found->second.begin(), found->second.end());
  }
  return modules;
}

}  // namespace tessera
