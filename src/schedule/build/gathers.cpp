#include "schedule/build/gathers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/fp8_history/fp8_history.hpp"
#include "schedule/build/fp8_scales.hpp"
#include "schedule/build/offloaded_state.hpp"

namespace tessera {

using kernels::Fp8Tensor;

std::vector<int> Gathers::gathered_units(const SegmentPass& p) const {
  std::vector<int> result;
  for (const Operand& o : p.operands) {
    if (passes_.value(p, o).kind != ValueKind::weight) continue;
    const int unit = passes_.tensor(p, o).unit;
    if (!out_.frame.plan(unit).storage.parameters_whole && std::find(result.begin(), result.end(), unit) == result.end())
      result.push_back(unit);
  }
  return result;
}

std::vector<Residency> Gathers::plan(const Events& events) {
  gathered_.assign(out_.frame.layout.units.size(), {});
  to_decode_.clear();
  std::vector<std::vector<int>> used;
  for (const int e : events) used.push_back(gathered_units(passes_.at(e)));
  std::vector<std::int64_t> elements;
  for (const Unit& unit : out_.frame.layout.units) elements.push_back(unit.elements);
  const ZeroKeys& z = out_.frame.deck.zero;
  return plan_residencies(used, elements, {z.prefetch_bucket_size, z.max_live_parameters, z.max_reuse_distance});
}

void Gathers::emit_gather(const Residency& r, int number, const Events& events) {
  const UnitPlan& p = out_.frame.plan(r.unit);
  const std::string& name = out_.frame.unit_at(r.unit).name;
  const std::int64_t P = out_.frame.unit_at(r.unit).elements, S = p.parameters.size();
  const int target = out_.buffers.declare(fmt::format("gathered.{}#{}", name, number), Category::gathered, out_.frame.comm_tier,
                                          out_.frame.compute_bytes(P));
  const bool decoded = p.wire != Wire::plain || p.is_coded();
  const std::int64_t part = p.is_coded() ? p.coded.block : decoded ? kernels::wire_bytes(p.wire, S) : out_.frame.compute_bytes(S);
  const std::int64_t all = part * (P / S);
  // A rank alone decodes its own blocks where they lie.
  const int whole = decoded && (p.copies.size > 1 || (p.encoded && p.parameters_offloaded))
                        ? out_.buffers.declare(fmt::format("blocks.{}#{}", name, number), Category::gathered, out_.frame.comm_tier, all)
                        : target;
  gathered_[index(r.unit)].push_back({r, target});
  Use shard = out_.buffers.whole("parameters." + name, Access::read);
  if (p.parameters_offloaded) shard = emit_upload_shard(out_, r.unit, number, whole);
  if (decoded && !p.encoded) {
    const Use values = shard;
    shard =
        out_.buffers.first_of(fmt::format("encoded.{}#{}", name, number), Category::gathered, out_.frame.comm_tier, part, Access::write);
    emit_encode(r.unit, number, shard, values);
    shard.access = Access::read;
  }
  if (p.copies.size > 1) {
    const SegmentPass& reader = passes_.at(events[index(r.first)]);
    const bool backward = reader.kind != PassKind::forward && !passes_.segment_of(reader).joint;
    const DType type = decoded ? DType::u32 : out_.frame.compute();
    const std::int64_t count = part / static_cast<std::int64_t>(size_of(type));
    out_.emit({.name = fmt::format("gather {} ({})", name, backward ? "backward" : "forward"),
               .op = Collective{CollectiveKind::all_gather, p.copies.axes, count, count, type},
               .lane = Lane::gather,
               .uses = {out_.buffers.whole(whole, Access::write), shard},
               .bytes_moved = static_cast<double>(all - part)});
    shard = out_.buffers.whole(whole, Access::read);
  }
  if (decoded) {
    gathered_[index(r.unit)].back().blocks = shard;
    to_decode_[r.first].insert({r.unit, static_cast<int>(gathered_[index(r.unit)].size()) - 1});
  }
}

void Gathers::emit_encode(int unit, int number, const Use& encoded, const Use& values) {
  const UnitPlan& p = out_.frame.plan(unit);
  const std::string task = "encode " + out_.frame.unit_at(unit).name;
  if (!p.is_coded()) {
    out_.emit({.name = task, .op = Encode{p.parameters.size(), out_.frame.compute(), p.wire}, .uses = {encoded, values}});
    return;
  }
  const bool delayed = out_.frame.shape.fp8.delayed();
  const auto of_weights = [&](const char* buffer, Access access) {
    return fp8_of(out_, buffer, Fp8Tensor::weight, Fp8Tensor::weight, access);
  };
  const Use multipliers = delayed ? of_weights("fp8_multipliers", Access::read) : emit_multipliers(unit, number, values);
  const Use largest = delayed && step_.keeps() ? of_weights("fp8_largest", Access::add) : out_.buffers.absent();
  out_.emit({.name = task, .op = EncodeRuns{runs_of_part(unit)}, .lane = Lane::gather, .uses = {encoded, values, multipliers, largest}});
}

Use Gathers::emit_multipliers(int unit, int number, const Use& values) {
  const UnitPlan& p = out_.frame.plan(unit);
  const std::string& name = out_.frame.unit_at(unit).name;
  const std::int64_t count = std::ssize(p.coded.matrices);
  const Use found = out_.buffers.first_of(fmt::format("multipliers.{}#{}", name, number), Category::gathered, out_.frame.comm_tier,
                                          4 * count, Access::write);
  const Use joined{found.buffer, found.offset, found.bytes, Access::add};
  out_.emit(
      {.name = "magnitudes of " + name, .op = FindMagnitudes{count, runs_of_part(unit)}, .lane = Lane::gather, .uses = {found, values}});
  out_.emit(
      {.name = "all-reduce magnitudes of " + name,
       .op =
           Collective{
               .kind = CollectiveKind::all_reduce, .axes = p.copies.axes, .count = count, .dtype = DType::f32, .reduction = Reduction::max},
       .lane = Lane::gather,
       .uses = {joined}});
  out_.emit({.name = "scales of " + name, .op = ScaleMatrices{count}, .lane = Lane::gather, .uses = {joined}});
  const Use multipliers{found.buffer, found.offset, found.bytes, Access::read};
  gathered_[index(unit)].back().multipliers = multipliers;
  return multipliers;
}

std::vector<EncodeRuns::Run> Gathers::runs_of_part(int unit) const {
  const UnitPlan& p = out_.frame.plan(unit);
  const Fp8Shape& fp8 = out_.frame.shape.fp8;
  std::vector<EncodeRuns::Run> runs;
  for (const CodedRun& coded : p.coded.parts[index(p.copies.rank)]) {
    EncodeRuns::Run& run = runs.emplace_back(coded.run);
    run.run.element -= p.parameters.begin;
    if (!coded.run.coded) continue;
    run.multiplier = fp8.delayed() ? fp8.number_of(p.coded.matrices[index(coded.matrix)]) : coded.matrix;
  }
  return runs;
}

void Gathers::emit_decodes(int event) {
  const auto first_used = to_decode_.find(event);
  if (first_used == to_decode_.end()) return;
  for (const auto& [u, i] : first_used->second) {
    const Gathered& copy = gathered_[index(u)][index(i)];
    const UnitPlan& p = out_.frame.plan(u);
    Op op = Decode{out_.frame.unit_at(u).elements, out_.frame.compute(), p.wire};
    if (p.is_coded()) op = DecodeRuns{all_runs(p.coded)};
    out_.emit({.name = "decode " + out_.frame.unit_at(u).name,
               .op = std::move(op),
               .uses = {out_.buffers.whole(copy.buffer, Access::write), *copy.blocks}});
  }
}

Use Gathers::multiplier_use(const ValueInfo& v, int unit, int event) const {
  if (out_.frame.shape.fp8.delayed()) return fp8_of_weight(out_, "fp8_multipliers", v.name, Access::read);
  const CodedParts& coded = out_.frame.plan(unit).coded;
  const auto found = std::ranges::find(coded.matrices, v.name);
  if (found == coded.matrices.end()) return out_.buffers.absent();
  for (const Gathered& copy : gathered_[index(unit)])
    if (copy.live.first <= event && event <= copy.live.last)
      return {copy.multipliers->buffer, copy.multipliers->offset + 4 * (found - coded.matrices.begin()), 4, Access::read};
  fail(ExitCode::internal, "{} is not gathered where it is read", v.name);
}

Use Gathers::weight_use(const TensorRef& tensor, int event) const {
  const auto size = static_cast<std::int64_t>(size_of(out_.frame.type_of(tensor.unit)));
  const std::int64_t offset = size * tensor.offset, bytes = size * tensor.elements;
  const std::string& unit = out_.frame.unit_at(tensor.unit).name;
  if (out_.frame.plan(tensor.unit).storage.parameters_whole) return {out_.buffers.named("parameters." + unit), offset, bytes, Access::read};
  for (const Gathered& copy : gathered_[index(tensor.unit)])
    if (copy.live.first <= event && event <= copy.live.last) return {copy.buffer, offset, bytes, Access::read};
  fail(ExitCode::internal, "{} is not gathered where it is read", unit);
}

}  // namespace tessera
