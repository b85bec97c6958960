// THE table of tensors. Units, shards, initial weights, decay, checkpoints and exports derive from it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.hpp"
#include "deck/deck.hpp"

namespace tessera {

enum class Init : std::uint8_t { zeros, ones, constant, normal, uniform };
/// `shared`: the matrices of the expert that takes every token.
enum class Part : std::uint8_t { embedding, positions, layer, shared, experts, head };

/// One tensor of the model. Matrices are (out, in), as Hugging Face stores them.
struct Parameter {
  std::string name;  ///< "layers.3.attention.wq"
  Shape shape;
  Part part = Part::layer;
  int layer = -1;   ///< of all parts but embedding, positions and head
  int expert = -1;  ///< for Part::experts
  Init init = Init::normal;
  double value = 0;              ///< of Init::constant
  double std = 0;                ///< of Init::normal, and of Init::uniform, which goes sqrt(3) of it to either side of 0
  bool decay = false;            ///< weight decay: matrices only
  bool joined = false;           ///< begins where the tensor before it ends, so that one GEMM takes both
  int tp_dim = -1;               ///< the dim that the tp axis cuts; -1: replicated
  bool trained = true;           ///< false: no gradient reaches it, and the loads of experts move it; fp32 whatever the compute type
  bool frozen = false;           ///< the deck freezes it: it has the compute type, and is read alone
  bool adapter = false;          ///< a matrix of an adapter (lora.hpp), which no model's class has
  std::string export_name = {};  ///< Hugging Face (families/names.hpp); of an adapter PEFT
  std::string tower = {};        ///< name of the tower that has it beside the model (model/towers); the tensor's name begins with it
  std::string optimizer = {};    ///< ChosenOptimizer::name of the one that updates it; "": the deck's optimizer.type
};

/// The same tensor of the model itself.
Parameter of_model(Parameter p);

/// Every tensor in table order: embedding, positions, layers, head. Throws Error(usage) for a pattern of model.freeze that cannot be
/// followed.
std::vector<Parameter> parameter_table(const ModelKeys& model);
/// Sum of elements.
std::int64_t parameter_count(const std::vector<Parameter>& table);

}  // namespace tessera
