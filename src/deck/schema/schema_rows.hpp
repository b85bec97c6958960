// What a row of the schema is written with. A new key is a field in deck.hpp and a row in the file of its section.
#pragma once
#include <type_traits>
#include <vector>

#include "base/limits.hpp"
#include "deck/schema/schema.hpp"

namespace tessera::schema {

// Rows by section, in the order of docs/deck.md.
std::vector<Key> run_keys();
std::vector<Key> model_keys();
std::vector<Key> data_keys();
std::vector<Key> optimizer_keys();
std::vector<Key> learning_rate_keys();
std::vector<Key> cycle_keys();
std::vector<Key> precision_keys();
std::vector<Key> zero_keys();
std::vector<Key> zeropp_keys();
std::vector<Key> offload_keys();
std::vector<Key> activation_keys();
std::vector<Key> mesh_keys();
std::vector<Key> context_keys();
std::vector<Key> pipeline_keys();
std::vector<Key> topology_keys();
std::vector<Key> checkpoint_keys();
std::vector<Key> evaluate_keys();
std::vector<Key> samples_keys();
std::vector<Key> metrics_keys();
std::vector<Key> guard_keys();
std::vector<Key> machine_keys();
std::vector<Key> preflight_keys();
std::vector<Key> watchdog_keys();

template <class F>
FieldRef field_of(F) {
  using T = std::remove_reference_t<std::invoke_result_t<F, Deck&>>;
  if constexpr (Worded<T>)
    return ModeField{.words = enum_words<T>,
                     .read = [](const Deck& d) { return word_of(F{}(const_cast<Deck&>(d))); },  // F only forms a reference
                     .write = [](Deck& d, std::string_view word) { F{}(d) = from_word<T>(word).value(); }};
  else
    return static_cast<T& (*)(Deck&)>(F{});
}

using enum KeyType;
using Refusals = std::vector<std::pair<std::string_view, std::string_view>>;
inline constexpr double max_dim = 1 << 24;

}  // namespace tessera::schema

// The name of a key is the path of its field: the two cannot drift apart.
#define KEY(path) .name = #path, .field = field_of([](Deck& d) -> decltype((std::declval<Deck&>().path)) { return d.path; })

// A section of its own whose fields belong to the model's.
#define MODEL_KEY(path) \
  .name = #path, .field = field_of([](Deck& d) -> decltype((std::declval<Deck&>().model.path)) { return d.model.path; })
