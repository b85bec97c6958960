#include "schedule/plan/changes.hpp"

#include <fmt/format.h>

namespace tessera {

Change recompute_change(const ActivationKeys& now, Recompute mode, std::int64_t every) {
  return {fmt::format("activation.recompute={}{}", word_of(mode), every != now.every ? fmt::format(" activation.every={}", every) : ""),
          [=](Deck& d) { d.activation.recompute = mode, d.activation.every = every; }};
}
Change stage_change(std::int64_t stage) {
  return {fmt::format("zero.stage={}", stage), [=](Deck& d) { d.zero.stage = stage; }};
}
Change offload_optimizer_change(OffloadDevice device) {
  return {fmt::format("zero.offload_optimizer.device={}", word_of(device)), [=](Deck& d) { d.zero.offload_optimizer.device = device; }};
}
Change offload_param_change(OffloadDevice device) {
  return {fmt::format("zero.offload_param.device={}", word_of(device)), [=](Deck& d) { d.zero.offload_param.device = device; }};
}
Change offload_activation_change(OffloadDevice device) {
  return {fmt::format("activation.offload={}", word_of(device)), [=](Deck& d) { d.activation.offload = device; }};
}
Change pageable_optimizer_change() {
  return {"zero.offload_optimizer.pin_memory=false", [](Deck& d) { d.zero.offload_optimizer.pin_memory = false; }};
}
Change pageable_param_change() {
  return {"zero.offload_param.pin_memory=false", [](Deck& d) { d.zero.offload_param.pin_memory = false; }};
}
Change waiting_saves_change(const CheckpointKeys& now) {
  const std::string neighbours = now.neighbour_every > 0 ? "checkpoint.neighbour_every=0" : "",
                    saves = now.async ? "checkpoint.async=false" : "";
  return {saves + (saves.empty() || neighbours.empty() ? "" : " ") + neighbours,
          [](Deck& d) { d.checkpoint.async = false, d.checkpoint.neighbour_every = 0; }};
}
std::optional<Change> example_path_change(const Deck& deck) {
  if (!deck.zero.offload_optimizer.nvme_path.empty() || !deck.zero.offload_param.nvme_path.empty()) return std::nullopt;
  return Change{"zero.offload_optimizer.nvme_path=/local", [](Deck& d) { d.zero.offload_optimizer.nvme_path = "/local"; }};
}
Change micro_change(std::int64_t micro) {
  return {fmt::format("batch.micro={}", micro), [=](Deck& d) { d.batch.micro = micro; }};
}
Change prefetch_change(std::int64_t elements) {
  return {fmt::format("zero.prefetch_bucket_size={}", elements), [=](Deck& d) { d.zero.prefetch_bucket_size = elements; }};
}
Change reuse_change(std::int64_t elements) {
  return {fmt::format("zero.max_reuse_distance={}", elements), [=](Deck& d) { d.zero.max_reuse_distance = elements; }};
}
Change gradients_change(DType dtype) {
  return {fmt::format("precision.gradients={}", name_of(dtype)), [=](Deck& d) { d.precision.gradients = dtype; }};
}

Change both(const Change& first, const Change& second) {
  return {first.text + " " + second.text, [=](Deck& d) { first.apply(d), second.apply(d); }};
}

std::string overrides_of(const std::vector<Change>& changes) {
  std::string text;
  for (const Change& change : changes) text += (text.empty() ? "" : " ") + change.text;
  return text;
}

std::vector<std::int64_t> micro_sizes(const BatchKeys& batch, int ranks) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t micro = batch.global; micro > 0; --micro)
    if (micro == batch.micro || (batch.global % micro == 0 && (micro == 1 || batch.global / micro >= ranks))) sizes.push_back(micro);
  return sizes;
}

}  // namespace tessera
