#include "schedule/build/sign_reduction.hpp"

#include <fmt/format.h>

#include "kernels/signs/signs.hpp"

namespace tessera {

SignBlocks sign_blocks_of(const Unit& unit, const Group& ranks) {
  SignBlocks blocks{.ranks = ranks.size, .tensors = {}};
  std::int64_t mean = 0;
  for (const Slot& slot : unit.slots) {
    const std::int64_t part = kernels::sign_part(slot.elements, ranks.size);
    blocks.tensors.push_back({.offset = slot.offset,
                              .elements = slot.elements,
                              .part = part,
                              .mine = std::clamp<std::int64_t>(slot.elements - ranks.rank * part, 0, part),
                              .mean = mean,
                              .word = blocks.words});
    mean += part, blocks.words += part / kernels::sign_word;
  }
  for (SignBlocks::Tensor& tensor : blocks.tensors) tensor.scale = blocks.words++;
  return blocks;
}

std::int64_t mean_elements(const SignBlocks& blocks) {
  return blocks.tensors.empty() ? 0 : blocks.tensors.back().mean + blocks.tensors.back().part;
}

namespace {

SignBlocks sign_blocks(const Emitter& out, int unit) { return sign_blocks_of(out.frame.unit_at(unit), out.frame.plan(unit).owners); }

Use signs_of(Emitter& out, const char* which, int unit, std::int64_t first, std::int64_t ranks, Access access) {
  const SignBlocks blocks = sign_blocks(out, unit);
  const std::int64_t block = 4 * blocks.words;
  const int buffer = out.buffers.declare(fmt::format("{}_signs.{}", which, out.frame.unit_at(unit).name), Category::gradients,
                                         out.frame.comm_tier, block * blocks.ranks);
  return {buffer, block * first, block * ranks, access};
}

Task packing_of_signs(Emitter& out, int unit, const Use& blocks, const Use& error, const Use& momenta, bool of_mean) {
  const Unit& u = out.frame.unit_at(unit);
  const std::int64_t bytes = std::ssize(u.slots) * static_cast<std::int64_t>(sizeof(kernels::FixedSum));
  const std::string name = fmt::format("{}sums_of_signs.{}", of_mean ? "mean_" : "", u.name);
  return {.name = fmt::format("pack signs of {}{}", of_mean ? "the mean of " : "", u.name),
          .op = PackSigns{sign_blocks(out, unit), of_mean},
          .uses = {blocks, error, out.buffers.first_of(name, Category::workspace, out.frame.local_tier, bytes, Access::write), momenta}};
}

}  // namespace

void emit_exchange_of_signs(Emitter& out, int unit) {
  const Group& ranks = out.frame.plan(unit).owners;
  if (ranks.size == 1) return;
  const std::string& name = out.frame.unit_at(unit).name;
  const UpdateRecord& update = out.frame.optimizer_of(unit).update;
  const Use sent = signs_of(out, "sent", unit, 0, ranks.size, Access::write);
  out.emit(packing_of_signs(out, unit, sent, out.buffers.whole(fmt::format("{}.{}", sign_error_group, name), Access::add),
                            out.buffers.state(update.state[index(update.momentum)], unit, out.frame.plan(unit).state, Access::read),
                            false));
  const std::int64_t words = sign_blocks(out, unit).words;
  out.emit({.name = "exchange signs of " + name,
            .op = Collective{CollectiveKind::all_to_all, ranks.axes, words, 0, DType::u32},
            .lane = Lane::reduce,
            .uses = {signs_of(out, "received", unit, 0, ranks.size, Access::write), {sent.buffer, sent.offset, sent.bytes, Access::read}},
            .bytes_moved = 4.0 * static_cast<double>(words) * (ranks.size - 1)});
}

void emit_gather_of_signs(Emitter& out, int unit) {
  const Group& ranks = out.frame.plan(unit).owners;
  if (ranks.size == 1) return;
  const std::string& name = out.frame.unit_at(unit).name;
  const Use error = out.buffers.whole(fmt::format("{}.{}", mean_sign_error_group, name), Access::add);
  out.emit({.name = "mean of signs of " + name,
            .op = SumSigns{sign_blocks(out, unit)},
            .uses = {error, signs_of(out, "received", unit, 0, ranks.size, Access::read)}});
  out.emit(packing_of_signs(out, unit, signs_of(out, "mean", unit, ranks.rank, 1, Access::write), error, out.buffers.absent(), true));
  const std::int64_t words = sign_blocks(out, unit).words;
  out.emit({.name = "gather signs of the mean of " + name,
            .op = Collective{CollectiveKind::all_gather, ranks.axes, words, words, DType::u32},
            .lane = Lane::gather,
            .uses = {signs_of(out, "mean", unit, 0, ranks.size, Access::write), signs_of(out, "mean", unit, ranks.rank, 1, Access::read)},
            .bytes_moved = 4.0 * static_cast<double>(words) * (ranks.size - 1)});
}

void emit_momenta_of_signs(Emitter& out, int unit) {
  const Group& ranks = out.frame.plan(unit).owners;
  if (ranks.size == 1) return;
  const UpdateRecord& update = out.frame.optimizer_of(unit).update;
  out.emit({.name = "momenta of signs of " + out.frame.unit_at(unit).name,
            .op = UnpackSigns{sign_blocks(out, unit)},
            .uses = {out.buffers.state(update.state[index(update.momentum)], unit, out.frame.plan(unit).state, Access::write),
                     signs_of(out, "mean", unit, 0, ranks.size, Access::read)}});
}

}  // namespace tessera
