// One row a deck key. Parsing, defaults, printing, the reference page and the hints for misspelt keys are all read from this table.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// A field that holds one of fixed words, as an enum of deck/modes.hpp.
struct ModeField {
  std::span<const std::string_view> words;
  std::string_view (*read)(const Deck&);
  void (*write)(Deck&, std::string_view word);  ///< one of the words
};
/// How a key finds its field in a deck: one function for each type that a field can have.
using FieldRef =
    std::variant<std::int64_t& (*)(Deck&), double& (*)(Deck&), bool& (*)(Deck&), std::string& (*)(Deck&), DType& (*)(Deck&),
                 std::vector<std::string>& (*)(Deck&), std::vector<std::int64_t>& (*)(Deck&), std::vector<double>& (*)(Deck&),
                 std::vector<OptimizerGroup>& (*)(Deck&), std::vector<RampPhase>& (*)(Deck&), std::vector<KindKeys>& (*)(Deck&), ModeField>;

/// What a user writes for the value.
enum class KeyType {
  integer,   ///< 12
  elements,  ///< a number of tensor elements: an integer, or a float that is whole: 5e8
  bytes,     ///< text with a unit: "64 MiB"
  duration,  ///< text with a unit: "30 min"; the field holds seconds
  real,      ///< 0.1
  boolean,   ///< true
  text,      ///< "cosine"; with choices: one of them
  texts,     ///< ["attention", "mlp.gate_up"]
  paths,     ///< "a.h5" or ["a.h5", "b.h5"]
  integers,  ///< [9, 8, 7]
  reals,     ///< [0.7, 3]
  groups,    ///< [{ tensors = ["head.*"], learning_rate = 1e-4 }], or a table [[optimizer.groups]] each
  phases,    ///< [{ until_step = 100, global = 8 }], or a table [[batch.ramp]] each
  kinds,     ///< [{ name = "L", window = 1024 }], or a table [[model.kinds]] each
  toggle,    ///< "auto", true or false; the field is a mode with these words
  counted    ///< a word of the choices, or an integer; kept as text
};

/// What "auto" means for a key.
enum class Auto {
  no,        ///< not a value of this key
  resolved,  ///< the parser puts a value in its place
  kept       ///< stays in the deck (0 for numbers), and the program decides at run time
};

struct Limits {
  std::optional<double> least = {}, above = {};  ///< from: inclusive, exclusive
  std::optional<double> most = {}, below = {};   ///< to: inclusive, exclusive
};

/// What of a model reads a key, where the function that is trained depends on it: its trait.
enum class ReadBy {
  none,       ///< nothing does: how weights begin and are trained, and what exports declare
  size,       ///< all of it: numbers of layers, heads, features and tokens
  ends,       ///< embedding or head
  attention,  ///< Attention
  block,      ///< Block: norms, the feed-forward block, and how both join the stream
  router,     ///< Router: experts
  balance,    ///< losses and biases that train routers
  rotation,   ///< Rotation: which features of a head are rotated
  angles,     ///< Rotation: by how much
  layers      ///< which layers are of which kind
};

struct Key {
  std::string_view name;  ///< "zero.stage": section, dot, leaf
  FieldRef field;
  ReadBy read_by = ReadBy::none;  ///< of a key of [model]
  std::string_view theirs = "";   ///< of a trait: what files of other programs call the same
  KeyType type;
  bool required = false;  ///< the key must be given; else its default is the initial value of its field (deck.hpp)
  std::string_view unit = "";
  Limits limits = {};
  std::vector<std::string_view> choices = {};  ///< of a mode: its words, and the table leaves them out
  std::string_view zero = "";                  ///< of a real: the word that stands for 0
  Auto automatic = Auto::no;
  bool identity = false;  ///< part of deck_identity
  bool silent = false;    ///< of identity: no part of it where it has its default, so that runs from before the key keep theirs
  /// Values that name a mode which is not there, with the reason and what to set. Compared with the value as text.
  std::vector<std::pair<std::string_view, std::string_view>> refused = {};
  std::string_view beyond = "";  ///< said instead of the plain range when the value is over the upper limit
  std::string_view help = "";

  std::string_view section() const { return name.substr(0, name.rfind('.')); }
  std::string_view leaf() const { return name.substr(name.rfind('.') + 1); }
};

/// All keys, in the order in which a deck is printed; the keys of a section are neighbours.
std::span<const Key> deck_keys();
/// The row of a full name, or nullptr.
const Key* find_key(std::string_view name);
/// Of a key of [optimizer] the optimizers that read it, where not all do; else none.
std::vector<std::string_view> readers_of(const Key& key);
/// "[zero.offload_param]" exists: some key stands in it or below it.
bool is_section(std::string_view name);

}  // namespace tessera
