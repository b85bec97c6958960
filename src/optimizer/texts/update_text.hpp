// An optimizer is a text: what it keeps of a parameter, and which kernel it runs on which operands. Whoever plans memory, binds operands,
// predicts time or saves reads the record of it; src/optimizer/texts has one a file, table.cpp a row each.
#pragma once
#include <string_view>
#include <utility>
#include <vector>

#include "base/access.hpp"
#include "kernels/update/update.hpp"

namespace tessera {

struct UpdateUse;

/// What an update touches of the elements that it is given, and the step's values.
struct UpdateOperand {
  enum class Kind : std::uint8_t {
    master,    ///< fp32 weights
    state,     ///< what the optimizer keeps, a row
    gradient,  ///< the step's sum
    copy,      ///< the compute copy; where master weights are that, no operand
    values     ///< kernels::UpdateScalars
  };
  Kind kind = Kind::master;
  int row = 0;  ///< of state

  friend UpdateUse read(UpdateOperand operand);
  friend UpdateUse add(UpdateOperand operand);
  friend UpdateUse write(UpdateOperand operand);
};
struct UpdateUse {
  UpdateOperand operand;
  Access access = Access::read;
};
inline UpdateUse read(UpdateOperand operand) { return {operand, Access::read}; }
inline UpdateUse add(UpdateOperand operand) { return {operand, Access::add}; }
inline UpdateUse write(UpdateOperand operand) { return {operand, Access::write}; }

/// What an optimizer keeps of every parameter between steps: one fp32 number.
struct StateRow {
  std::string_view group;  ///< as buffers and checkpoints call it

  std::int64_t bytes(std::int64_t elements) const { return 4 * elements; }
};

struct UpdateCall {
  std::string_view kernel;
  std::vector<UpdateUse> uses;
  void (*code)(const kernels::Context&, const kernels::Update&) = nullptr;
};

/// A text as it was read.
struct UpdateRecord {
  std::vector<StateRow> state;
  UpdateCall call;
};

/// What of a deck a text depends on.
struct UpdateShape {
  bool momentum = false, nesterov = false;
};

/// What a text is written in.
class UpdateText {
 public:
  explicit UpdateText(const UpdateShape& of) : shape(of) {}
  const UpdateShape shape;

  static UpdateOperand master() { return {UpdateOperand::Kind::master}; }
  static UpdateOperand gradient() { return {UpdateOperand::Kind::gradient}; }
  static UpdateOperand copy() { return {UpdateOperand::Kind::copy}; }
  static UpdateOperand values() { return {UpdateOperand::Kind::values}; }
  /// A number that is kept of each parameter; a kernel finds them in Update::state in the order in which the text names them.
  UpdateOperand state(std::string_view group);
  void run(std::string_view kernel, std::vector<UpdateUse> uses, decltype(UpdateCall::code) code);

  const UpdateRecord& record() const { return record_; }

 private:
  UpdateRecord record_;
};

/// A row of the table.
struct Optimizer {
  std::string_view name;                                      ///< optimizer.type
  std::vector<std::string_view> deepspeed;                    ///< DeepSpeed's names of the same update, in lower case
  std::vector<std::string_view> trainer;                      ///< of transformers' --optim, that compute the same in fp32
  std::vector<std::string_view> keys;                         ///< of the deck's [optimizer] those that it reads and not all do
  std::vector<std::pair<std::string_view, double>> defaults;  ///< of its keys, where the schema has another
  void (*text)(UpdateText&) = nullptr;
};

}  // namespace tessera
