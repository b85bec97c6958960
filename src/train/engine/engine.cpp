#include "train/engine/engine.hpp"

#include <cmath>
#include <cstring>

#include "base/log.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/fixed/fixed.hpp"
#include "kernels/rope/rope.hpp"
#include "optimizer/learning_rate.hpp"
#include "topology/failure/signals.hpp"
#include "topology/node.hpp"
#include "train/device.hpp"

namespace tessera {
namespace {

constexpr const char* groups[] = {"master", "adam_m", "adam_v"};

std::uint64_t stream_of(const Parameter& p) { return hash_text(p.name).low; }

}  // namespace

namespace {

std::string what_to_do(const Deck& deck, const Beside& beside) {
  if (!beside.advice.empty()) return beside.advice;
  return fmt::format(
      "Set activation.recompute (now {}) to \"selective\" or \"full\", lower batch.micro or batch.sequence_length, raise zero.stage (now "
      "{}), lower "
      "zero.max_live_parameters, or use more ranks; `tessera plan` shows the table without allocating anything.",
      deck.activation.recompute, deck.zero.stage);
}

/// What comes after the plan's memory: kernels, modules of cuBLASLt and cuDNN, NCCL's buffers, graphs. Without room for it a run that fits
/// by its plan would end at its first step.
[[maybe_unused]] constexpr std::int64_t device_reserve = std::int64_t{1} << 30;

void require_fits_device([[maybe_unused]] std::int64_t needed, [[maybe_unused]] int ranks, [[maybe_unused]] const std::string& advice) {
#ifdef TESSERA_CUDA
  const auto free = static_cast<std::int64_t>(needed > 0 ? cuda::free_memory() : 0);
  if (needed > 0 && ranks * (needed + device_reserve) > free)
    fail(ExitCode::memory,
         "the plan needs {} of the GPU{}, with {} beside it for the libraries' code and buffers, and {} of it are free. {}",
         human_bytes(static_cast<double>(needed)), ranks > 1 ? fmt::format(" for each of the {} ranks that share it", ranks) : "",
         human_bytes(static_cast<double>(device_reserve)), human_bytes(static_cast<double>(free)), advice);
#endif
}

}  // namespace

void require_fits(const Deck& deck, const MemoryPlan& plan, int ranks_on_node, const Beside& beside) {
  auto bytes = [&](Tier tier) { return plan.bytes[static_cast<std::size_t>(tier)] + beside.bytes[static_cast<std::size_t>(tier)]; };
  const std::string advice = what_to_do(deck, beside);
  std::int64_t needed = 0;
  for (Tier tier : {Tier::host, Tier::shared, Tier::pinned}) needed += bytes(tier);
  const bool told = deck.memory.host_limit > 0;
  const std::int64_t limit = told ? deck.memory.host_limit : static_cast<std::int64_t>(node_memory().available) / ranks_on_node;
  if (needed > limit)
    fail(ExitCode::memory, "the plan needs {} on each rank and {} is {} ({}). {}{}", human_bytes(static_cast<double>(needed)),
         told ? "memory.host_limit" : "the share of this node's free memory", human_bytes(static_cast<double>(limit)),
         told ? "from the deck" : fmt::format("{} ranks on the node", ranks_on_node), advice,
         told ? "" : " Where the system gives a machine its memory as it is used, set memory.host_limit to what it can have.");
  require_fits_device(bytes(Tier::device), beside.ranks_on_gpu, advice);
}

Engine::Engine(const Deck& deck, DataParallelGroup group, const EngineOptions& options)
    : request_{.deck = deck,
               .layout = layout_for(deck, group.ranks),
               .rank = group.rank,
               .ranks = group.ranks,
               .training = options.training,
               .evaluation_micro_batches = options.evaluation_micro_batches},
      group_(std::move(group)),
      schedule_(build_schedule(request_)),
      plan_(place(schedule_)) {
  require_fits(deck, plan_, group_.node ? group_.node->world().place().local_ranks : 1, options.beside);
  std::array<std::byte*, tier_count> bases{};
  for (std::size_t t = 0; t < tier_count; ++t) {
    if (plan_.bytes[t] == 0) continue;
    arenas_[t] =
        Arena(static_cast<Tier>(t), static_cast<std::size_t>(plan_.bytes[t]), fmt::format("tessera.{}", name_of(static_cast<Tier>(t))),
              // Beside a GPU the host holds what is saved and loaded: a new run need not wait for its pages.
              schedule_.shape.backend == kernels::Backend::cuda ? FirstTouch::when_used : FirstTouch::now);
    bases[t] = arenas_[t].data();
  }
  if (options.training) TESSERA_REQUIRE(used_bytes() == plan_.bytes, "the bytes that tasks touch differ from the planned ones");
  if (group_.node && plan_.bytes[static_cast<std::size_t>(Tier::shared)] > 0)
    group_.node->register_arena(arenas_[static_cast<std::size_t>(Tier::shared)]);
  if (const Arena& device = arenas_[static_cast<std::size_t>(Tier::device)]; device.bytes() > 0 && group_.ranks > 1) {
    registered_[0].emplace(*group_.gather, std::span(device.data(), device.bytes()));
    registered_[1].emplace(*group_.reduce, std::span(device.data(), device.bytes()));
  }

  executor_ = make_executor(schedule_, plan_, bases, options.lanes, graph_mode(deck),
                            {.schedule = &schedule_,
                             .gather = group_.gather.get(),
                             .reduce = group_.reduce.get(),
                             .reproducible = deck.run.reproducible,
                             .backend = schedule_.shape.backend,
                             .grad_scale = static_cast<float>(1.0 / static_cast<double>(deck.batch.global * deck.batch.sequence_length))});

  if (schedule_.shape.backend == kernels::Backend::cuda) clear_device();
  if (schedule_.shape.backend == kernels::Backend::cuda && options.training && !options.kernel_choices.empty())
    warm_up(options.kernel_choices);

  tokens_ = host_side("tokens"), targets_ = host_side("targets"), weights_ = host_side("weights");
  const ModelKeys& m = deck.model;
  kernels::RopeScaling scaling{.factor = m.rope_scaling == "llama3" ? m.rope_factor : 0,
                               .low_freq_factor = m.rope_low_freq_factor,
                               .high_freq_factor = m.rope_high_freq_factor,
                               .original_context = m.rope_original_context};
  kernels::rope_table(reinterpret_cast<float*>(address(host_side("rope"))), 0, schedule_.shape.T, schedule_.shape.D, m.rope_theta, scaling);
}

Engine::~Engine() {
  executor_.reset();
  if (group_.node && plan_.bytes[static_cast<std::size_t>(Tier::shared)] > 0 && std::uncaught_exceptions() == 0)
    group_.node->unregister_arena(arenas_[static_cast<std::size_t>(Tier::shared)]);
}

std::array<std::int64_t, tier_count> Engine::used_bytes() const {
  std::array<std::int64_t, tier_count> used{};
  for (const Section& section : schedule_.sections)
    for (const Task& task : section.tasks)
      for (const Use& use : task.uses) {
        const auto b = static_cast<std::size_t>(use.buffer), tier = static_cast<std::size_t>(schedule_.buffers[b].tier);
        const std::int64_t end = use.micro_stride ? schedule_.buffers[b].bytes : use.offset + use.bytes;
        used[tier] = std::max(used[tier], round_up(plan_.offset[b] + end, plan_alignment));
      }
  return used;
}

std::byte* Engine::address(int buffer, std::int64_t offset) const {
  const auto b = static_cast<std::size_t>(buffer);
  return arenas_[static_cast<std::size_t>(schedule_.buffers[b].tier)].data() + plan_.offset[b] + offset;
}

int Engine::host_side(const std::string& buffer) const {
  const int twin = schedule_.find_buffer("host." + buffer);
  return twin >= 0 ? twin : schedule_.find_buffer(buffer);
}

std::vector<std::byte> Engine::bytes_at(const void* from, std::int64_t bytes) const {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes));
  kernels::Context context;
  context.backend = schedule_.shape.backend;
  kernels::copy(context, out.data(), from, out.size());
  wait_for_device(context.backend);
  return out;
}

void Engine::bytes_to(void* to, const void* from, std::int64_t bytes) const {
  kernels::Context context;
  context.backend = schedule_.shape.backend;
  kernels::copy(context, to, from, static_cast<std::size_t>(bytes));
  wait_for_device(context.backend);  // CUDA promises not even of pageable memory that it has been read
}

float* Engine::state_address(const std::string& group, int unit, StateSide side) const {
  const StateRange s = state_range(schedule_, request_, group, unit, side);
  return reinterpret_cast<float*>(address(s.buffer, s.offset_bytes));
}

void Engine::for_each_state(const std::function<void(int, const Range&)>& f) const {
  for (int u = 0; u < static_cast<int>(layout().units.size()); ++u) f(u, state_range(schedule_, request_, "master", u).range);
}

void Engine::publish() {
  executor_->run(ProgramKind::restore);
  executor_->run(ProgramKind::publish);
}

void Engine::set_weights(const std::function<void(const Parameter&, std::int64_t, std::span<float>)>& source) {
  for_each_state([&](int unit, const Range& range) {
    float* master = state_address("master", unit);
    std::memset(master, 0, static_cast<std::size_t>(range.size()) * sizeof(float));  // the gaps between tensors too
    for (const Piece& piece : pieces_in(layout().units[static_cast<std::size_t>(unit)], range.begin, range.end))
      source(layout().table[static_cast<std::size_t>(piece.parameter)], piece.tensor_offset,
             {master + (piece.unit_offset - range.begin), static_cast<std::size_t>(piece.elements)});
    for (const char* moment : {"adam_m", "adam_v"})
      std::memset(state_address(moment, unit), 0, static_cast<std::size_t>(range.size()) * sizeof(float));
  });
  publish();
}

void Engine::initialise_weights() {
  // Where tasks use the state: a GPU makes numbers, the host's bits, faster than they would travel.
  kernels::Context context;
  context.backend = schedule_.shape.backend;
  const auto seed = static_cast<std::uint64_t>(request_.deck.run.seed);
  for_each_state([&](int unit, const Range& range) {
    for (const char* group : groups)
      kernels::fill_zero(context, state_address(group, unit, StateSide::tasks), static_cast<std::size_t>(range.size()) * sizeof(float));
    float* master = state_address("master", unit, StateSide::tasks);
    for (const Piece& piece : pieces_in(layout().units[static_cast<std::size_t>(unit)], range.begin, range.end)) {
      const Parameter& p = layout().table[static_cast<std::size_t>(piece.parameter)];
      float* out = master + (piece.unit_offset - range.begin);
      if (p.init == Init::normal)
        kernels::normal(context, out, piece.elements, static_cast<float>(p.std), seed, stream_of(p),
                        static_cast<std::uint64_t>(piece.tensor_offset));
      else if (p.init == Init::ones)
        bytes_to(out, std::vector<float>(static_cast<std::size_t>(piece.elements), 1.0f).data(),
                 piece.elements * static_cast<std::int64_t>(sizeof(float)));
    }
  });
  wait_for_device(context.backend);  // lanes do not wait for this stream
  executor_->run(ProgramKind::publish);
}

io::CheckpointLayout Engine::checkpoint_layout() const {
  io::CheckpointLayout result;
  for (const Unit& unit : layout().units) {
    for (const Slot& slot : unit.slots) {
      const Parameter& p = layout().table[static_cast<std::size_t>(slot.parameter)];
      result.tensors.push_back({.name = p.name, .shape = p.shape, .unit = static_cast<int>(result.units.size()), .offset = slot.offset});
    }
    result.units.push_back({unit.name, unit.elements});
  }
  for (const char* group : groups) result.groups.emplace_back(group);
  result.shards = ranks();
  return result;
}

std::vector<io::ShardSlice> Engine::checkpoint_slices() const {
  executor_->run(ProgramKind::snapshot);
  std::vector<io::ShardSlice> slices;
  for_each_state([&](int unit, const Range& range) {
    const Range mine = owned_range(layout(), unit, rank());
    for (int g = 0; g < 3; ++g)
      slices.push_back({.group = g,
                        .unit = unit,
                        .data = {state_address(groups[g], unit) + (mine.begin - range.begin), static_cast<std::size_t>(mine.size())}});
  });
  return slices;
}

namespace {

/// Names the first tensor of the model that the checkpoint lacks or has in another shape.
void require_same_model(const std::vector<Parameter>& table, const io::CheckpointReader& reader) {
  for (const Parameter& p : table) {
    const io::CheckpointTensor* found = reader.find(p.name);
    if (!found)
      fail(ExitCode::checkpoint, "{} holds another model: it has no tensor {} ({}). Check the deck's [model].", reader.folder(), p.name,
           p.shape.str());
    if (!(found->shape == p.shape))
      fail(ExitCode::checkpoint, "{} holds another model: tensor {} is {} there and {} in this deck. Check the deck's [model].",
           reader.folder(), p.name, found->shape.str(), p.shape.str());
  }
  if (reader.layout().tensors.size() != table.size())
    for (const auto& t : reader.layout().tensors)
      if (std::none_of(table.begin(), table.end(), [&](const Parameter& p) { return p.name == t.name; }))
        fail(ExitCode::checkpoint, "{} holds another model: its tensor {} ({}) is not in this deck's model. Check the deck's [model].",
             reader.folder(), t.name, t.shape.str());
}

/// The unit of the checkpoint with the same tensors at the same places, or -1: then whole ranges can be read at once.
int same_unit(const Layout& layout, int unit, const io::CheckpointLayout& saved) {
  const Unit& mine = layout.units[static_cast<std::size_t>(unit)];
  for (int u = 0; u < static_cast<int>(saved.units.size()); ++u) {
    if (saved.units[static_cast<std::size_t>(u)].name != mine.name || saved.units[static_cast<std::size_t>(u)].elements != mine.elements)
      continue;
    std::size_t matching = 0, total = 0;
    for (const auto& t : saved.tensors) {
      if (t.unit != u) continue;
      ++total;
      for (const Slot& slot : mine.slots)
        matching += layout.table[static_cast<std::size_t>(slot.parameter)].name == t.name && slot.offset == t.offset;
    }
    return matching == total && total == mine.slots.size() ? u : -1;
  }
  return -1;
}

}  // namespace

void Engine::read_state(const io::CheckpointReader& reader) {
  require_same_model(layout().table, reader);
  if (request_.training)
    load_training_state(reader);
  else
    load_weights(reader);
}

void Engine::load_training_state(const io::CheckpointReader& reader) {
  for_each_state([&](int unit, const Range& range) {
    const int saved = same_unit(layout(), unit, reader.layout());
    for (const char* group : groups) {
      leave_if_stopped();
      float* target = state_address(group, unit);
      if (saved >= 0) {
        reader.read_unit(group, saved, range.begin, {target, static_cast<std::size_t>(range.size())});
        continue;
      }
      std::memset(target, 0, static_cast<std::size_t>(range.size()) * sizeof(float));
      for (const Piece& piece : pieces_in(layout().units[static_cast<std::size_t>(unit)], range.begin, range.end))
        reader.read(group, *reader.find(layout().table[static_cast<std::size_t>(piece.parameter)].name), piece.tensor_offset,
                    {target + (piece.unit_offset - range.begin), static_cast<std::size_t>(piece.elements)});
    }
  });
}

void Engine::load_weights(const io::CheckpointReader& reader) {
  // By blocks: read, rounded on the host, then copied to where the kernels are.
  const DType dtype = request_.deck.precision.compute;
  std::vector<float> staging(static_cast<std::size_t>(io::hash_block));
  std::vector<std::byte> rounded(staging.size() * size_of(dtype));
  for (const Unit& unit : layout().units) {
    const int buffer = schedule_.find_buffer("parameters." + unit.name);
    for (const Slot& slot : unit.slots) {
      const io::CheckpointTensor& tensor = *reader.find(layout().table[static_cast<std::size_t>(slot.parameter)].name);
      for (std::int64_t begin = 0; begin < slot.elements; begin += io::hash_block) {
        const std::int64_t n = std::min(io::hash_block, slot.elements - begin);
        reader.read("master", tensor, begin, {staging.data(), static_cast<std::size_t>(n)});
        kernels::cast({}, rounded.data(), dtype, staging.data(), DType::f32, n);
        bytes_to(address(buffer, schedule_.shape.bytes_of(slot.offset + begin)), rounded.data(), schedule_.shape.bytes_of(n));
      }
    }
  }
  publish();  // brings the table of rotations to the device too
}

std::span<std::int32_t> Engine::tokens(std::int64_t micro) {
  const auto n = static_cast<std::size_t>(schedule_.shape.tokens());
  return {reinterpret_cast<std::int32_t*>(address(tokens_)) + static_cast<std::size_t>(micro) * n, n};
}

std::span<std::int32_t> Engine::targets(std::int64_t micro) {
  const auto n = static_cast<std::size_t>(schedule_.shape.tokens());
  return {reinterpret_cast<std::int32_t*>(address(targets_)) + static_cast<std::size_t>(micro) * n, n};
}

double& Engine::weight(std::int64_t micro) { return reinterpret_cast<double*>(address(weights_))[micro]; }

StepReport Engine::step(std::int64_t step, bool stop, Timeline* timeline) {
  const OptimizerKeys& o = request_.deck.optimizer;
  value<kernels::StepInputs>("inputs") = {
      .tokens = static_cast<double>(request_.deck.batch.global * request_.deck.batch.sequence_length),
      .learning_rate = static_cast<float>(learning_rate_at(request_.deck.learning_rate, o.learning_rate, request_.deck.run.steps, step)),
      .bias_correction1 = static_cast<float>(1 - std::pow(o.beta1, static_cast<double>(step + 1))),
      .bias_correction2 = static_cast<float>(1 - std::pow(o.beta2, static_cast<double>(step + 1))),
      .beta1 = static_cast<float>(o.beta1),
      .beta2 = static_cast<float>(o.beta2),
      .eps = static_cast<float>(o.eps),
      .clipping = o.gradient_clipping,
      .stop = stop};
  for (std::int64_t m = 0; m < accumulation(); ++m) weight(m) = 1;  // empty ones have no loss to weigh
  if (timeline)
    *timeline = executor_->run_traced(ProgramKind::train);
  else
    executor_->run(ProgramKind::train);
  return value<StepReport>("report");
}

StepReport Engine::evaluate(double tokens) {
  value<kernels::StepInputs>("inputs") = {.tokens = tokens};
  executor_->run(ProgramKind::evaluate);
  return value<StepReport>("report");
}

namespace {

/// A single tensor, without those joined to it.
TensorRef find_alone(const Layout& layout, const std::string& tensor) {
  TensorRef ref = layout.find(tensor);
  for (const Parameter& p : layout.table)
    if (p.name == tensor) ref.elements = p.shape.elements();
  return ref;
}

}  // namespace

std::vector<float> Engine::gradient_of(const std::string& tensor) const {
  const TensorRef ref = find_alone(layout(), tensor);
  const int buffer = schedule_.find_buffer("gradients." + layout().units[static_cast<std::size_t>(ref.unit)].name);
  const bool fixed = request_.deck.run.reproducible;
  const std::int64_t size = fixed ? 8 : 4;
  const std::vector<std::byte> sums = bytes_at(address(buffer, size * ref.offset), size * ref.elements);
  std::vector<float> out(static_cast<std::size_t>(ref.elements));
  if (fixed)
    kernels::fixed_to_float({}, out.data(), reinterpret_cast<const std::int64_t*>(sums.data()), ref.elements);
  else
    std::memcpy(out.data(), sums.data(), sums.size());
  return out;
}

const void* Engine::weight_address(const std::string& tensor) const {
  const TensorRef ref = layout().find(tensor);
  return address(schedule_.find_buffer("parameters." + layout().units[static_cast<std::size_t>(ref.unit)].name),
                 schedule_.shape.bytes_of(ref.offset));
}

std::vector<float> Engine::weight_of(const std::string& tensor) const {
  std::vector<float> out(static_cast<std::size_t>(find_alone(layout(), tensor).elements));
  const DType dtype = request_.deck.precision.compute;
  const std::vector<std::byte> copy = bytes_at(weight_address(tensor), schedule_.shape.bytes_of(static_cast<std::int64_t>(out.size())));
  kernels::cast({}, out.data(), DType::f32, copy.data(), dtype, static_cast<std::int64_t>(out.size()));
  return out;
}

}  // namespace tessera
