// The weights that a run begins with where run.init names a model of Hugging Face, and lora.init an adapter beside it.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/box.hpp"
#include "deck/deck.hpp"
#include "exchange/adapter_weights.hpp"
#include "exchange/part_values.hpp"
#include "io/safetensors/safetensors_model.hpp"
#include "model/table/huggingface.hpp"
#include "topology/world.hpp"

namespace tessera {

class Engine;
struct ModelSource;

class InitialWeights {
 public:
  /// Reads config.json and the headers of run.init. Throws Error(usage) that lists every key of config.json that cannot be served, or every
  /// key of [model] that says another model; Error(data) for files that cannot be read, and with the names of tensors that are missing, of
  /// another shape or type, or not of such a model. `warn`: says what is legal and unusual.
  InitialWeights(const Deck& deck, bool warn);

  /// For a process that reads each value once.
  void read_once() { model_.read_once(); }
  /// Whether the files have it; other tensors are drawn.
  bool has(const Parameter& parameter) const { return parameter.adapter ? adapter_.has_value() : places_.contains(parameter.name); }
  /// Elements [at, at + out.size()) of a box of a tensor that it has, exactly as they stand in the file. Rows of tokens that the deck's
  /// model has and the file's has not are the mean of its rows. Throws Error(data).
  void read(const Parameter& parameter, const Box& box, std::int64_t at, std::span<float> out) const;
  /// "models/Llama-3.2-1B (LlamaForCausalLM, 146 tensors, 2.30 GiB)"
  std::string describe() const;

 private:
  InitialWeights(const Deck& deck, const ModelSource& source, bool warn);
  void find_means(const Deck& deck);
  void read_longer(const io::SafetensorsModel::Tensor& tensor, const Box& box, std::int64_t at, std::span<float> out) const;

  /// Where a tensor of ours stands.
  struct Place {
    FileTensor tensor;
    TensorPart part;
  };

  std::string architecture_;
  io::SafetensorsModel model_;
  std::map<std::string, Place, std::less<>> places_;
  std::map<std::string, std::vector<float>, std::less<>> means_;  ///< rows of the tensors that have more rows here than in the file
  std::optional<AdapterWeights> adapter_;
};

/// Every rank reads what it keeps; collective, and a fault of one ends all with one message.
void load_initial_weights(const World& world, Engine& engine, const InitialWeights& weights);

}  // namespace tessera
