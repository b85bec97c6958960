// Momenta that meet as signs (1-bit Adam). Each rank packs its own, with what signs have taken from those before, and sends each rank a
// part of every tensor; that one takes the mean of a part, packs it likewise, and all gather what came of it.
#include <fmt/format.h>

#include "kernels/signs/signs.hpp"
#include "schedule/build/section_builder.hpp"

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

SignBlocks SectionBuilder::sign_blocks(int unit) const { return sign_blocks_of(frame_.unit_at(unit), frame_.plan(unit).owners); }

Use SectionBuilder::signs_of(const char* which, int unit, std::int64_t first, std::int64_t ranks, Access access) {
  const SignBlocks blocks = sign_blocks(unit);
  const std::int64_t block = 4 * blocks.words;
  const int buffer = buffers_.declare(fmt::format("{}_signs.{}", which, frame_.unit_at(unit).name), Category::gradients, frame_.comm_tier,
                                      block * blocks.ranks);
  return {buffer, block * first, block * ranks, access};
}

Task SectionBuilder::packing_of_signs(int unit, const Use& blocks, const Use& error, const Use& momenta, bool of_mean) {
  const Unit& u = frame_.unit_at(unit);
  const std::int64_t bytes = std::ssize(u.slots) * static_cast<std::int64_t>(sizeof(kernels::FixedSum));
  const std::string name = fmt::format("{}sums_of_signs.{}", of_mean ? "mean_" : "", u.name);
  return {.name = fmt::format("pack signs of {}{}", of_mean ? "the mean of " : "", u.name),
          .op = PackSigns{sign_blocks(unit), of_mean},
          .uses = {blocks, error, buffers_.first_of(name, Category::workspace, frame_.local_tier, bytes, Access::write), momenta}};
}

void SectionBuilder::emit_exchange_of_signs(int unit) {
  const Group& ranks = frame_.plan(unit).owners;
  if (ranks.size == 1) return;
  const std::string& name = frame_.unit_at(unit).name;
  const UpdateRecord& update = frame_.optimizer_of(unit).update;
  const Use sent = signs_of("sent", unit, 0, ranks.size, Access::write);
  emit(packing_of_signs(unit, sent, buffers_.whole(fmt::format("{}.{}", sign_error_group, name), Access::add),
                        buffers_.state(update.state[index(update.momentum)], unit, frame_.plan(unit).state, Access::read), false));
  const std::int64_t words = sign_blocks(unit).words;
  emit({.name = "exchange signs of " + name,
        .op = Collective{CollectiveKind::all_to_all, ranks.axes, words, 0, DType::u32},
        .lane = Lane::reduce,
        .uses = {signs_of("received", unit, 0, ranks.size, Access::write), {sent.buffer, sent.offset, sent.bytes, Access::read}},
        .bytes_moved = 4.0 * static_cast<double>(words) * (ranks.size - 1)});
}

void SectionBuilder::emit_gather_of_signs(int unit) {
  const Group& ranks = frame_.plan(unit).owners;
  if (ranks.size == 1) return;
  const std::string& name = frame_.unit_at(unit).name;
  const Use error = buffers_.whole(fmt::format("{}.{}", mean_sign_error_group, name), Access::add);
  emit({.name = "mean of signs of " + name,
        .op = SumSigns{sign_blocks(unit)},
        .uses = {error, signs_of("received", unit, 0, ranks.size, Access::read)}});
  emit(packing_of_signs(unit, signs_of("mean", unit, ranks.rank, 1, Access::write), error, buffers_.absent(), true));
  const std::int64_t words = sign_blocks(unit).words;
  emit({.name = "gather signs of the mean of " + name,
        .op = Collective{CollectiveKind::all_gather, ranks.axes, words, words, DType::u32},
        .lane = Lane::gather,
        .uses = {signs_of("mean", unit, 0, ranks.size, Access::write), signs_of("mean", unit, ranks.rank, 1, Access::read)},
        .bytes_moved = 4.0 * static_cast<double>(words) * (ranks.size - 1)});
}

void SectionBuilder::emit_momenta_of_signs(int unit) {
  const Group& ranks = frame_.plan(unit).owners;
  if (ranks.size == 1) return;
  const UpdateRecord& update = frame_.optimizer_of(unit).update;
  emit({.name = "momenta of signs of " + frame_.unit_at(unit).name,
        .op = UnpackSigns{sign_blocks(unit)},
        .uses = {buffers_.state(update.state[index(update.momentum)], unit, frame_.plan(unit).state, Access::write),
                 signs_of("mean", unit, 0, ranks.size, Access::read)}});
}

}  // namespace tessera
