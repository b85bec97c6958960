// One rule says which models a family has: those that its files say, and that read back.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "deck/schema/traits.hpp"
#include "deck/schema/value.hpp"
#include "families/names.hpp"
#include "families/read_config.hpp"
#include "families/write_config.hpp"

namespace tessera {
namespace {

/// Keys of [model] that every family says, as far as files can (sizes, angles, kinds of layers), and those that are no part of a model.
const std::vector<const Key*>& keys_of_all() {
  static const std::vector<const Key*> keys = [] {
    using enum ReadBy;
    std::vector<const Key*> found;
    for (const Key& key : deck_keys())
      if (key.section() == "model" && std::ranges::count(std::array{none, size, balance, angles, layers}, key.read_by) > 0)
        found.push_back(&key);
    return found;
  }();
  return keys;
}

/// What families can say of a model.
class Sayable {
 public:
  explicit Sayable(const ModelKeys& model) { mine_.model = model; }

  bool by(const Family& family) {
    const ModelKeys& m = mine_.model;
    if (m.experts == 0 && !family.may_lack_experts && std::ranges::find(family.keys, experts, &FamilyKey::field) != family.keys.end())
      return false;
    say(family);
    return said_.model == m && (!family.takes || family.takes(m)) && reads_back(family);
  }

  /// Traits that a family cannot say: "model.qkv_bias = true".
  std::vector<std::string> unsaid(const Family& family) {
    say(family);
    std::vector<std::string> keys;
    for (const Key& key : deck_keys())
      if (const std::string value = value_text(key, mine_); key.section() == "model" && value != value_text(key, said_))
        keys.push_back(fmt::format("{} = {}", key.name, value));
    return keys;
  }

 private:
  static constexpr TraitField experts = &ModelKeys::experts;

  /// Said is what a file of the family can say of the model, and for the rest the family's own.
  void say(const Family& family) {
    ModelKeys& said = said_.model;
    const ModelKeys& m = mine_.model;
    said = family.standard;
    for (const Key* key : keys_of_all())
      if (key->name != "model.router_balance" || said.router_balance == RouterBalance::loss) copy_key(*key, mine_, said_);
    said.lora = m.lora;
    for (const FamilyKey& key : family.first_keys()) copy(key.field);
    for (const FamilyKey& key : family.keys) copy(key.field);
    for (const TraitField& field : family.says) copy(field);
    if (family.output_bias) said.qkv_bias = m.qkv_bias, said.attention_out_bias = m.attention_out_bias;
  }

  void copy(const TraitField& trait) {
    std::visit(
        [&](const auto& field) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(field)>, std::monostate>) said_.model.*field = mine_.model.*field;
        },
        trait);
  }

  bool reads_back(const Family& family) {
    std::vector<Fault> faults;
    const ModelSource source = read_huggingface_config(model_config(family, mine_).dump(), "config.json", faults);
    return faults.empty() && same_function(mine_.model, source.model);
  }

  Deck mine_, said_;
};

std::vector<const Family*> in_turn() {
  std::vector<const Family*> all;
  for (const Family& family : families())
    if (family.turn != Family::never) all.push_back(&family);
  std::ranges::stable_sort(all, {}, &Family::turn);
  return all;
}

const Family* family_that_says(const ModelKeys& m) {
  static const std::vector<const Family*> all = in_turn();
  Sayable model(m);
  const auto found = std::ranges::find_if(all, [&](const Family* family) { return model.by(*family); });
  return found == all.end() ? nullptr : *found;
}

const Family* find_family(const ModelKeys& m) {
  const Family* found = family_that_says(m);
  if (found || !m.qkv_bias || m.attention_out_bias) return found;
  // Of a class with one switch for both an export has zeros for the output's.
  ModelKeys both = m;
  both.attention_out_bias = true;
  const Family* other = family_that_says(both);
  return other && other->output_bias ? other : nullptr;
}

}  // namespace

bool can_say(const Family& family, const ModelKeys& m) { return Sayable(m).by(family); }

const Family* family_of(const ModelKeys& m) {
  // Tables and names of a run ask for one model again and again.
  thread_local std::optional<std::pair<ModelKeys, const Family*>> last;
  if (!last || !(last->first == m)) last.emplace(m, find_family(m));
  return last->second;
}

const Family& require_family(const ModelKeys& m) {
  const Family* family = family_of(m);
  if (family && m.router_balance == RouterBalance::bias && TensorNames(family).of("layers.0.moe.router_bias").empty())
    fail(ExitCode::usage,
         "model.router_balance = \"bias\" chooses experts with biases, but {} has no tensors for them, and without them tokens would go to "
         "other experts; --format hdf5 writes any model",
         family->architecture);
  if (family) return *family;
  Sayable model(m);
  const Family* nearest = nullptr;
  std::vector<std::string> fewest;
  for (const Family* one : in_turn())
    if (std::vector<std::string> unsaid = model.unsaid(*one); !nearest || unsaid.size() < fewest.size()) nearest = one, fewest = unsaid;
  const std::string layers = describe_layers(m);
  fail(ExitCode::usage,
       "no supported class of transformers has this model: the files of {}, the nearest, cannot express {}; --format hdf5 writes any model",
       nearest->architecture,
       fewest.empty() ? fmt::format("its sizes, its rotation or its layers ({}) together", layers.empty() ? "all see all tokens" : layers)
                      : fmt::format("{}", fmt::join(fewest, ", ")));
}

}  // namespace tessera
