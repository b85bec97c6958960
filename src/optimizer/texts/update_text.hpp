// An optimizer is a text: what it keeps of a parameter, and which kernel it runs on which operands. Whoever plans memory, binds operands,
// predicts time or saves reads the record of it; src/optimizer/texts has one a file, table.cpp a row each.
#pragma once
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/access.hpp"
#include "kernels/newton_schulz/newton_schulz.hpp"
#include "kernels/update/update.hpp"

namespace tessera {

struct UpdateUse;

/// What an update touches of the elements that it is given, and the step's values.
struct UpdateOperand {
  enum class Kind : std::uint8_t {
    master,      ///< fp32 weights
    state,       ///< what the optimizer keeps, a row
    gradient,    ///< the step's sum
    copy,        ///< the compute copy; where master weights are that, no operand
    values,      ///< kernels::UpdateScalars
    sums,        ///< kernels::FixedSum of each tensor
    lines,       ///< sums of each row and each column, kernels::Lines::sums
    signs,       ///< of momenta: no operand: reduced between two phases
    mean_signs,  ///< of the mean of all ranks' signs: the same
    matrices     ///< bf16, what passes through OrthogonalMatrices: written before it as the copy is, read after it as the gradient
  };
  Kind kind = Kind::master;
  int row = 0;  ///< of state
  kernels::StateType type = kernels::StateType::f32;
  kernels::Extent of = kernels::Extent::element;

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

/// What an optimizer keeps of every parameter between steps: a number, as fp32 or in fewer bits; or one of each row or column of a matrix,
/// of which every owner has all.
struct StateRow {
  std::string_view group;  ///< as buffers and checkpoints call it
  kernels::StateType type = kernels::StateType::f32;
  kernels::Extent of = kernels::Extent::element;

  /// Of whole blocks, where they lie in such.
  std::int64_t bytes(std::int64_t elements) const { return kernels::state_bytes(type, elements); }
};

struct UpdateCall {
  std::string_view kernel;
  std::vector<UpdateUse> uses;
  void (*code)(const kernels::Context&, const kernels::Update&) = nullptr;
  kernels::StateType state_type = kernels::StateType::f32;  ///< of what is kept, where it is a number an element
  bool stochastic = false;                                  ///< how that is rounded
  bool once = false;                                        ///< for each tensor, whatever of it lies here

  bool changes(UpdateOperand::Kind kind) const {
    return std::ranges::any_of(uses, [&](const UpdateUse& use) { return use.operand.kind == kind && use.access != Access::read; });
  }
};

/// What becomes of whole matrices between two phases: the orthogonal factor of each, scaled.
struct OrthogonalMatrices {
  OrthogonalSteps steps = OrthogonalSteps::quintic;
  bool matches_adamw = true;  ///< else Jordan's scale
  float scale(std::int64_t rows, std::int64_t columns) const;
};

/// Calls that follow each other, piece by piece; then the sums that they have added to become those of all a tensor's elements on all
/// ranks.
struct UpdatePhase {
  std::vector<UpdateCall> calls;
  UpdateOperand::Kind reduces = UpdateOperand::Kind::sums;  ///< or lines, signs, or matrices; of the last phase none
};
/// A text as it was read.
struct UpdateRecord {
  std::vector<StateRow> state;
  std::vector<UpdatePhase> phases = {{}};
  std::int64_t sums = 0;  ///< of a tensor
  bool lines = false;     ///< rows and columns are summed
  int momentum = 0;       ///< the row of state that is reduced as signs
  /// Where there are some the first phase writes matrices of which the second reads the orthogonal factors.
  std::optional<OrthogonalMatrices> orthogonal = {};
};

/// What of a deck a text depends on.
struct UpdateShape {
  bool momentum = false, nesterov = false;
  bool warms_up = false;                                 ///< of 1-bit Adam
  kernels::StateType moments = kernels::StateType::f32;  ///< f32 or bf16
  bool stochastic = false;                               ///< how moments in bf16 are rounded
  OrthogonalMatrices orthogonal = {};
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
  static UpdateOperand matrices() { return {UpdateOperand::Kind::matrices}; }
  /// A number that is kept of each parameter; a kernel finds them in Update::state in the order in which the text names them.
  UpdateOperand state(std::string_view group);
  /// The same in 8 bits, in blocks.
  UpdateOperand state(std::string_view group, kernels::StateType blocks);
  /// A number of each row or column; a kernel finds them in Update::lines.
  UpdateOperand state(std::string_view group, kernels::Extent of);
  /// Sums of each tensor, 0 as the update begins; a kernel finds them in Update::sums.
  UpdateOperand sums(std::int64_t count);
  /// Sums of each row and column, 0 as the update begins.
  UpdateOperand line_sums();
  /// Calls of a phase go over one piece of memory after the other.
  void run(std::string_view kernel, std::vector<UpdateUse> uses, decltype(UpdateCall::code) code);
  /// Once for each tensor that this rank has a part of.
  void run_once(std::string_view kernel, std::vector<UpdateUse> uses, decltype(UpdateCall::code) code);
  /// The phase ends.
  void reduce(const UpdateOperand& sums);
  /// It ends, and what it wrote to `matrices` becomes orthogonal. Such an update is of matrices alone (Optimizer::takes).
  void orthogonalize();
  /// It ends, and of each rank's own numbers in that row the mean over ranks is taken, by signs (kernels/signs). One rank's stay as they
  /// are. Such an update is not of parts (Optimizer::sends_signs).
  void take_mean_by_signs(const UpdateOperand& momentum);

  const UpdateRecord& record() const { return record_; }

 private:
  UpdateRecord record_;
};

/// What a row knows of a tensor that it may update.
struct UpdatedTensor {
  std::int64_t elements = 0;
  std::size_t dims = 1;
  bool begins_block = true;    ///< of shard_block elements, on every rank
  bool hidden_matrix = false;  ///< neither embedding nor head
};

/// A row of the table.
struct Optimizer {
  std::string_view name;                                      ///< optimizer.type
  std::vector<std::string_view> deepspeed;                    ///< DeepSpeed's names of the same update, in lower case
  std::vector<std::string_view> trainer;                      ///< of transformers' --optim, that compute the same in fp32
  std::vector<std::string_view> keys;                         ///< of the deck's [optimizer] those that it reads and not all do
  std::vector<std::pair<std::string_view, double>> defaults;  ///< of its keys, where the schema has another
  void (*text)(UpdateText&) = nullptr;
  bool (*takes)(const UpdatedTensor&) = nullptr;  ///< null: all tensors
  std::string_view rest = {};                     ///< the row that updates those that it does not take
  bool hidden = false;                            ///< only as such
  bool sends_signs = false;                       ///< of momenta, but in its warmup
};

}  // namespace tessera
