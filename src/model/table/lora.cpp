#include "model/table/lora.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "base/check.hpp"
#include "base/glob.hpp"
#include "families/names.hpp"
#include "model/table/frozen.hpp"

namespace tessera {
namespace {

constexpr std::string_view suffix_a = ".lora_a", suffix_b = ".lora_b", peft_prefix = "base_model.model.";

/// The matrices of a layer that may have an adapter: "BLOCK.NAME" ends their names, of experts with a number between.
struct Target {
  std::string_view block, ours;
  bool of_experts() const { return block == "experts" || block == "shared"; }
};
constexpr std::array<Target, 13> targets = {{{"attention", "wq"},
                                             {"attention", "wk"},
                                             {"attention", "wv"},
                                             {"attention", "wo"},
                                             {"mlp", "w_gate"},
                                             {"mlp", "w_up"},
                                             {"mlp", "w_down"},
                                             {"shared", "w_gate"},
                                             {"shared", "w_up"},
                                             {"shared", "w_down"},
                                             {"experts", "w_gate"},
                                             {"experts", "w_up"},
                                             {"experts", "w_down"}}};

/// "wq" of "layers.3.attention.wq".
std::string_view last_of(std::string_view name) { return name.substr(name.rfind('.') + 1); }

const Target* target_of(std::string_view tensor) {
  const std::string_view leaf = last_of(tensor);
  std::string_view rest = tensor.substr(0, tensor.size() - std::min(tensor.size(), leaf.size() + 1));
  if (const std::string_view number = last_of(rest); number.find_first_not_of("0123456789") == number.npos && number.size() < rest.size())
    rest.remove_suffix(number.size() + 1);
  const auto found = std::ranges::find_if(targets, [&](const Target& t) { return t.block == last_of(rest) && t.ours == leaf; });
  return found == targets.end() ? nullptr : &*found;
}

/// Whether `end` is all of a name or what follows one of its dots, as PEFT's target_modules go.
bool ends_with_words(std::string_view name, std::string_view end) {
  return name.ends_with(end) && (name.size() == end.size() || name[name.size() - end.size() - 1] == '.');
}

/// A pattern is of our names, of whole names of modules, or of the usual last word of one. The end of a module's name stands for itself.
bool matches(std::string_view pattern, std::string_view tensor, const Target& target) {
  if (pattern == "all-linear" || matches_glob(pattern, tensor) || matches_glob(pattern, target.ours) ||
      matches_glob(pattern, fmt::format("{}.{}", target.block, target.ours)))
    return true;
  const std::vector<std::string> modules = modules_of(tensor);
  return matches_glob(pattern, last_of(modules.front())) ||
         std::ranges::any_of(modules, [&](const std::string& m) { return ends_with_words(m, pattern) || matches_glob(pattern, m); });
}

bool is_adapted(const LoraKeys& lora, std::string_view tensor) {
  const Target* target = target_of(tensor);
  if (!target) return false;
  if (lora.targets.empty()) return !target->of_experts();
  return std::ranges::any_of(lora.targets, [&](const std::string& p) { return matches(p, tensor, *target); });
}

void require_targets(const std::vector<Parameter>& table, const LoraKeys& lora) {
  for (const std::string& pattern : lora.targets)
    if (std::ranges::none_of(table, [&](const Parameter& p) {
          const Target* target = target_of(p.name);
          return target && matches(pattern, p.name, *target);
        }))
      fail(ExitCode::usage,
           "lora.targets: \"{}\" is not a matrix of an attention, MLP or expert of this model. Name wq, wk, wv, wo, w_gate, w_up and "
           "w_down, also as Hugging Face does (q_proj, self_attn.q_proj, layers.3.self_attn.q_proj). Patterns of tensors (\"layers.3.*\", "
           "\"experts.*\") and \"all-linear\" work too.",
           pattern);
  // Rows of experts travel between ranks without the numbers of their tokens.
  for (const Parameter& p : table)
    if (lora.dropout > 0 && p.expert >= 0 && is_adapted(lora, p.name))
      fail(ExitCode::usage,
           "lora.dropout: lora.targets describe {}, and adapters of experts have no dropout in this version. Set lora.dropout = 0.0, or "
           "name matrices of attention and the shared expert alone.",
           p.name);
  // One product multiplies the rows of all experts.
  std::map<std::pair<int, std::string_view>, std::array<const Parameter*, 2>> seen;  // by layer and name: without an adapter, with one
  for (const Parameter& p : table) {
    if (p.expert < 0 || !target_of(p.name)) continue;
    auto& both = seen[{p.layer, last_of(p.name)}];
    both[is_adapted(lora, p.name) ? 1 : 0] = &p;
    if (both[0] && both[1])
      fail(ExitCode::usage, "lora.targets match {} but not {}: either all experts of a layer have adapters, or none. Use \"experts.{}\".",
           both[1]->name, both[0]->name, last_of(p.name));
  }
}

/// The two matrices beside p.
std::array<Parameter, 2> adapter_of(const Parameter& p, std::int64_t rank) {
  const std::int64_t N = p.shape.dims.at(0), K = p.shape.dims.at(1);
  const std::string theirs = std::string(peft_prefix) + module_of(p.export_name);
  // A is uniform in 1 / sqrt(K) around 0, as PEFT draws it (He et al.'s bound with a slope of sqrt(5)).
  Parameter a{.name = lora_a(p.name),
              .shape = {rank, K},
              .part = p.part,
              .layer = p.layer,
              .expert = p.expert,
              .init = Init::uniform,
              .std = 1 / std::sqrt(3 * static_cast<double>(K)),
              .decay = true,
              .tp_dim = p.tp_dim == 1 ? 1 : -1,
              .adapter = true,
              .export_name = theirs + ".lora_A.weight"};
  Parameter b{.name = lora_b(p.name),
              .shape = {N, rank},
              .part = p.part,
              .layer = p.layer,
              .expert = p.expert,
              .init = Init::zeros,
              .decay = true,
              .tp_dim = p.tp_dim == 0 ? 0 : -1,
              .adapter = true,
              .export_name = theirs + ".lora_B.weight"};
  return {std::move(a), std::move(b)};
}

/// Adapters of a layer's tensors: of experts the matrices A of all are neighbours, which one product takes, and so are the matrices B.
void append_adapters(std::vector<Parameter>& table, const std::vector<Parameter>& of_layer, std::int64_t rank) {
  std::map<std::string_view, std::array<std::vector<Parameter>, 2>> of_experts;  // by name
  for (const Parameter& p : of_layer) {
    std::array<Parameter, 2> both = adapter_of(p, rank);
    for (std::size_t i = 0; i < both.size(); ++i) {
      if (p.expert < 0) {
        table.push_back(std::move(both[i]));
        continue;
      }
      std::vector<Parameter>& alike = of_experts[last_of(p.name)][i];
      both[i].joined = !alike.empty();
      alike.push_back(std::move(both[i]));
    }
  }
  for (auto& [name, matrices] : of_experts)
    for (std::vector<Parameter>& alike : matrices) std::ranges::move(alike, std::back_inserter(table));
}

/// A pattern of tensors or modules, or the end of the name of a module around the tensor, wherever it begins, as PEFT goes by them.
bool names_whole(std::string_view pattern, std::string_view tensor) {
  if (matches_glob(pattern, tensor)) return true;
  for (std::string module : modules_of(tensor))
    for (; !module.empty(); module.resize(module.rfind('.') == module.npos ? 0 : module.rfind('.')))
      if (module.ends_with(pattern) || matches_glob(pattern, module)) return true;
  return false;
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
  return lora.alpha / (lora.scaling == LoraScaling::rslora ? std::sqrt(rank) : rank);
}

void add_adapters(std::vector<Parameter>& table, const LoraKeys& lora) {
  if (lora.rank == 0) return;
  require_targets(table, lora);
  std::vector<Parameter> all;
  std::vector<Parameter> of_layer;  // adapted, and not yet followed by their adapters
  const auto add_pending = [&] {
    append_adapters(all, of_layer, lora.rank);
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

void train_whole(std::vector<Parameter>& table, const LoraKeys& lora) {
  if (lora.rank == 0) return;
  for (const std::string& pattern : lora.modules_to_save) {
    bool any = false;
    for (Parameter& p : table) {
      if (p.adapter || !p.trained || !names_whole(pattern, p.name)) continue;
      if (is_adapted(lora, p.name))
        fail(ExitCode::usage, "lora.modules_to_save: \"{}\" describes {}, which has an adapter. Leave it out here or in lora.targets.",
             pattern, p.name);
      p.frozen = false, any = p.whole = true;
    }
    const bool of_head = names_whole(pattern, "head.weight") && std::ranges::find(table, "head.weight", &Parameter::name) == table.end();
    if (!any)
      fail(ExitCode::usage, "lora.modules_to_save: no module of this model is called \"{}\"; {}", pattern,
           of_head ? std::string("its head is its embedding (model.tied), which is called \"embed_tokens\"")
                   : fmt::format("the nearest tensors are {}", fmt::join(nearest_names(table, pattern), ", ")));
  }
  require_joined_alike(table, "lora.modules_to_save");
}

bool is_saved_with_adapter(const Parameter& p) { return p.adapter || p.whole; }

std::string peft_name(const Parameter& p) { return p.adapter ? p.export_name : std::string(peft_prefix) + p.export_name; }

std::vector<AdaptedColumns> adapted_columns(const ModelShape& s, const std::string& w, std::int64_t N) {
  if (s.lora.rank == 0 || !target_of(w)) return {};
  std::vector<AdaptedColumns> columns;
  const auto add = [&](const std::string& tensor, std::int64_t first, std::int64_t count) {
    if (is_adapted(s.lora, tensor))
      columns.push_back({tensor, first, count, static_cast<std::uint32_t>(target_of(tensor) - targets.data())});
  };
  const auto neighbour = [&](const char* leaf) { return w.substr(0, w.rfind('.') + 1) + leaf; };
  if (w.ends_with("attention.wq")) {
    const Attention& a = s.attention;
    const std::int64_t queries = a.H * a.D, keys = (N - queries) * a.D / (a.D + a.Dv), values = N - queries - keys;
    add(w, 0, queries), add(neighbour("wk"), queries, keys), add(neighbour("wv"), queries + keys, values);
  } else if (w.ends_with(".w_gate")) {
    add(w, 0, N / 2), add(neighbour("w_up"), N / 2, N / 2);
  } else {
    add(w, 0, N);
  }
  return columns;
}

std::string describe_lora(const ModelKeys& model, const std::vector<Parameter>& table) {
  if (model.lora.rank == 0) return "";
  std::int64_t matrices = 0, parameters = 0;
  std::vector<Parameter> whole;
  for (const Parameter& p : table) {
    if (p.adapter) matrices += adapted_by(p).empty() ? 0 : 1, parameters += p.shape.elements();
    if (p.whole) whole.push_back(p);
  }
  const std::string beside = whole.empty()
                                 ? ""
                                 : fmt::format("; {} tensor{} trained whole, {} parameters", whole.size(), whole.size() == 1 ? "" : "s",
                                               human_count(static_cast<double>(parameter_count(whole))));
  return fmt::format("rank {}, alpha {} ({}scale {:.4g}){}, on {} matrices, {} parameters{}", model.lora.rank, model.lora.alpha,
                     model.lora.scaling == LoraScaling::rslora ? "rsLoRA, " : "", lora_scale(model.lora),
                     model.lora.dropout > 0 ? fmt::format(", dropout {}", model.lora.dropout) : "", matrices,
                     human_count(static_cast<double>(parameters)), beside);
}

std::vector<std::string> peft_target_modules(const std::vector<Parameter>& table) {
  struct Modules {
    std::string leaf;
    std::size_t all = 0;
    std::vector<std::string> adapted = {};
  };
  std::vector<Modules> by_leaf;
  std::set<std::string_view> adapted;
  for (const Parameter& p : table) adapted.insert(adapted_by(p));
  for (const Parameter& p : table) {
    if (p.adapter || !target_of(p.name)) continue;
    const std::string module = module_of(p.export_name);
    auto found = std::ranges::find(by_leaf, last_of(module), &Modules::leaf);
    if (found == by_leaf.end()) found = by_leaf.insert(by_leaf.end(), {.leaf = std::string(last_of(module))});
    ++found->all;
    if (adapted.contains(p.name)) found->adapted.push_back(module);
  }
  std::vector<std::string> modules;
  for (Modules& m : by_leaf) {
    if (m.adapted.size() == m.all) m.adapted = {m.leaf};
    std::ranges::move(m.adapted, std::back_inserter(modules));
  }
  return modules;
}

bool is_tied_whole(const ModelKeys& model, const std::vector<Parameter>& table) {
  return model.tied && std::ranges::any_of(table, [](const Parameter& p) { return p.whole && p.part == Part::embedding; });
}

std::vector<std::string> peft_modules_to_save(const std::vector<Parameter>& table) {
  std::vector<std::string> modules;
  for (const Parameter& p : table)
    if (p.whole && std::ranges::find(modules, module_of(p.export_name)) == modules.end()) modules.push_back(module_of(p.export_name));
  return modules;
}

}  // namespace tessera
