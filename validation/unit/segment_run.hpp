// Runs the passes of one segment on plain memory, with no schedule: what tests and benchmarks of a text need.
#pragma once
#include <cstring>
#include <map>
#include <memory>

#include "kernels/elementwise/elementwise.hpp"
#include "kernels/step/step.hpp"
#include "model/record/passes.hpp"
#include "validation/kernels/workspace.hpp"

namespace tessera::test {

/// Values of a segment by their kind and name, aligned as in an arena, all NaN at first. Those whose bytes a record does not say (weights,
/// gradients, targets, ...) are made by the test, before a pass.
class SegmentRun {
 public:
  explicit SegmentRun(const Segment& segment) : segment_(segment) {
    for (const ValueInfo& v : segment.values)
      if (v.bytes > 0) make(v.kind, v.name, v.bytes);
  }
  std::span<std::byte> make(ValueKind kind, const std::string& name, std::int64_t bytes) {
    values_[{kind, name}] = std::make_unique<kernels::testing::Workspace>(static_cast<std::size_t>(bytes));
    return this->bytes(kind, name);
  }
  void make(ValueKind kind, const std::string& name, std::span<const std::byte> from) {
    std::memcpy(make(kind, name, static_cast<std::int64_t>(from.size())).data(), from.data(), from.size());
  }
  std::span<std::byte> bytes(ValueKind kind, const std::string& name) { return values_.at({kind, name})->context().workspace; }
  template <class T>
  T* at(ValueKind kind, const std::string& name) {
    return reinterpret_cast<T*>(bytes(kind, name).data());
  }
  std::vector<double> doubles(ValueKind kind, const std::string& name, DType type) {
    const std::span<const std::byte> memory = bytes(kind, name);
    std::vector<float> wide(memory.size() / size_of(type));
    kernels::cast({}, wide.data(), DType::f32, memory.data(), type, std::ssize(wide));
    return {wide.begin(), wide.end()};
  }

  /// False where a call wrote beside a value or its workspace.
  bool run(const SegmentPass& pass, float grad_scale, bool reproducible = false) {
    kernels::GradientScale scale{.of_targets = grad_scale, .of_tokens = grad_scale};
    std::vector<void*> addresses;
    std::vector<Access> access;
    for (const Operand& o : pass.operands) {
      const ValueInfo& v = segment_.at(o.value);
      addresses.push_back(v.kind == ValueKind::gradient_scale ? &scale : at<void>(v.kind, v.name));
      access.push_back(o.access);
    }
    kernels::testing::Workspace workspace(pass.workspace);
    pass.run(segment_, addresses, access, workspace.context(reproducible));
    bool intact = workspace.intact();
    for (const auto& [value, memory] : values_) intact = intact && memory->intact();
    return intact;
  }

 private:
  const Segment& segment_;
  std::map<std::pair<ValueKind, std::string>, std::unique_ptr<kernels::testing::Workspace>> values_;
};

}  // namespace tessera::test
