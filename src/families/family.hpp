// A family of models as transformers knows it: its config.json both ways, and the names of its tensors. A row a family, which its file
// defines (families/NAME.cpp); table.cpp lists them.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "deck/deck.hpp"

namespace tessera {

/// A trait of a model (deck/schema/traits.hpp) that a family's files say; monostate: none.
using TraitField = std::variant<std::monostate, std::int64_t ModelKeys::*, double ModelKeys::*, bool ModelKeys::*, Activation ModelKeys::*>;

/// A key of config.json, read and written by one row. Exports have the rows in their order.
struct FamilyKey {
  std::string_view name;
  /// What the key says; none: exports have `fixed`, and the model does not depend on it.
  TraitField field = {};
  bool required = false;        ///< without it Family::standard holds
  std::string_view also = {};   ///< another name of the key, which is read and not written
  std::string_view fixed = {};  ///< JSON
  std::string_view why = {};    ///< why a file that says something other than `fixed` is refused; "": such a file is another row's
};

/// How a tensor of ours lies in the one of theirs that it is named by.
enum class Fused : std::uint8_t {
  no,      ///< it is that tensor
  rows,    ///< with all others of ours that have its name: their rows follow one another, in the order of the model's tensors
  experts  ///< the same of each expert's, whose number counts along a dim before the rows
};

/// A tensor by both names, with # for the number of a layer or an expert: "layers.#.attention.wq",
/// "model.layers.#.self_attn.q_proj.weight".
struct TensorName {
  std::string_view ours, theirs;
  Fused fused = Fused::no;
  bool turned = false;       ///< theirs is (in, out), ours (out, in)
  bool interleaved = false;  ///< of two that are fused the rows lie in turns: the first one's first, the other's first, and so on
  bool fp32 = false;         ///< in exports of any type
  bool pairs = false;        ///< of each head neighbouring rows are rotated together, which lie half a head apart in ours
};

/// A scalar in files that is the same in all of them: exports have it behind `after`, a tensor of ours.
struct ConstantTensor {
  std::string_view after, theirs;  ///< as in TensorName
  double value = 0;
};

/// What config.json says of windows, and what it means by what it leaves out.
struct WindowRule {
  enum class Key : std::uint8_t {
    none,     ///< the class computes none
    always,   ///< sliding_window; where it is null there is none
    switched  ///< sliding_window, if use_sliding_window is true
  };
  Key key = Key::none;
  std::int64_t standard = 0;  ///< of a file without sliding_window; 0: none
  bool lists = false;         ///< layer_types says which layers have it
  /// What layer_types calls a layer of attention where it has layers of other kinds, which are all that it says then. Its class has those
  /// of a file that does not say any.
  std::string_view attention = {};
  /// Which layers have it where no list says so, by a layer's number and max_window_layers; null: all.
  bool (*slides)(std::int64_t layer, std::int64_t number) = nullptr;
  /// The key of that number where it is another, and its value in a file without it.
  std::string_view number_key = {};
  std::int64_t number = 0;
};

/// What config.json says of rotations where layers with a window have one of their own.
struct RotationRule {
  bool by_window = false;
  double theta = 0;                 ///< base of layers with a window, of a file that does not say it
  std::string_view theta_key = {};  ///< where transformers 4 says it; "": nowhere
  bool partial = false;             ///< partial_rotary_factor says which part of a head is rotated
  bool longrope_alone = false;      ///< what is scaled is longrope ("su" and "yarn" are), by a key beside it for its original context
};

class ConfigReader;
class Json;
struct LayerKeys;

struct Family {
  std::string_view type, architecture;  ///< model_type; the one of `architectures`
  /// Of several families that can say a model it is exported as the one of the lowest turn; never: of none, since another family says all
  /// that this one says.
  int turn = 0;
  static constexpr int never = 100;
  /// What a file says by the keys that it leaves out. kv_heads 0: as many as heads; head_dim 0: hidden_size / num_attention_heads. Of
  /// traits that neither `keys` nor `says` has, its models have these.
  ModelKeys standard = {};
  /// Traits that read_model and put_model say.
  std::span<const TraitField> says = {};
  /// What its class asks of a model beside, and a reader does not; null: nothing.
  bool (*takes)(const ModelKeys&) = nullptr;
  bool may_lack_experts = false;  ///< of a class with experts
  WindowRule window = {};
  RotationRule rotation = {};
  /// What no row of `keys` says of the model; null: nothing.
  void (*read_model)(ConfigReader&, ModelKeys&) = nullptr;
  void (*put_model)(Json&, const ModelKeys&) = nullptr;
  /// What else differs from layer to layer; null: nothing.
  void (*read_layers)(ConfigReader&, std::vector<LayerKeys>&) = nullptr;
  void (*put_layers)(Json&, const ModelKeys&) = nullptr;
  /// attention_bias is one switch for the biases of q, k, v and of the output. A deck that says the former alone is exported with zeros for
  /// the latter, where it is no model of another family.
  bool output_bias = false;
  /// Layers behind the model's that predict further tokens, of a file that does not say how many (num_nextn_predict_layers). Their class
  /// does not load them as a model's, nor are they here; a note says so. 0: files with any are refused.
  std::int64_t further_layers = 0;
  bool dropout = false;   ///< its files may ask for dropout in training, which a note says is left out
  bool mxfp4 = false;     ///< experts' matrices of its files may be MXFP4 (exchange/part_values.hpp), which is read alone
  bool own_code = false;  ///< its first files bring code (auto_map), which is the class of transformers since
  /// In the place of shared_keys, of a class that has names of its own for them, and keys of neither rotations nor windows.
  std::span<const FamilyKey> own_keys = {};
  std::span<const FamilyKey> keys = {};    ///< beyond those of all families (shared_keys)
  std::span<const TensorName> names = {};  ///< that differ from those of most families (names.cpp)
  std::span<const ConstantTensor> constants = {};
  std::string_view prefix = {};  ///< of names, which files may leave out
  /// How tensors end that files may have and that the model makes itself, behind the number of a layer: masks, for one.
  std::span<const std::string_view> buffers = {};
  std::span<const FamilyKey> first_keys() const;
};

/// Keys that all families have, to which an export adds others.
std::span<const FamilyKey> shared_keys();

const std::vector<Family>& families();
/// GPT-2 as checkpoints of llm.c have it: no matrix is turned. It is none of families().
const Family& llmc_family();
/// By its model_type; nullptr: none.
const Family* family_named(std::string_view type);
/// The family that the model is exported as, by one rule: each trait of the model that is not the family's own is one that its files say,
/// and the config.json that is written so reads back as the model. nullptr: no class of transformers has such a model.
const Family* family_of(const ModelKeys& model);
/// Whether the rule holds of one family.
bool can_say(const Family& family, const ModelKeys& model);
/// The family that the model is exported as. Throws Error(usage) where none is: it names the traits that the nearest family cannot say.
const Family& require_family(const ModelKeys& model);

}  // namespace tessera
