#include "train/engine/state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "io/checkpoint/finite.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "optimizer/state.hpp"
#include "topology/failure/signals.hpp"
#include "train/engine/device.hpp"
#include "train/engine/same_state.hpp"

namespace tessera {

using kernels::StateType;

namespace {

/// Of state on its way between a GPU and the host at a time; whole blocks of a checkpoint's checksums.
constexpr std::int64_t staged_elements = 8 * io::hash_block;

std::uint64_t stream_of(const Parameter& p) { return hash_text(p.name).low; }

/// out[i] is uniform within sqrt(3) deviation of 0, so that `deviation` is its standard deviation; of (seed, stream, first + i) alone.
void draw_uniform(std::span<float> out, double deviation, std::uint64_t seed, std::uint64_t stream, std::uint64_t first) {
  const double bound = std::sqrt(3.0) * deviation;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t word = kernels::counter_random(seed, stream, first + i);
    out[i] = static_cast<float>(bound * (static_cast<double>(word >> 11) * 0x1p-52 - 1));
  }
}

[[noreturn]] void fail_of_value(const io::SavedState& from, const std::string& what) {
  fail(ExitCode::numerics,
       "{}: {}: the checkpoint was saved after a fault, or was altered. Start from an older one: run.resume=PATH. `tessera verify` of the "
       "run's folder shows which ones are whole.",
       from.name(), what);
}

/// The unit of the checkpoint with the same boxes at the same places and nothing else, or -1: then whole ranges can be read at once.
int same_unit(const Layout& layout, const Unit& mine, const std::string& group, const io::SavedState& from) {
  const io::CheckpointLayout& saved = from.layout();
  int unit = -1;
  for (const Slot& slot : mine.slots) {
    const io::CheckpointTensor* tensor = from.find(group, layout.table[static_cast<std::size_t>(slot.parameter)].name);
    if (!tensor) return -1;
    const std::vector<io::CheckpointPiece>& pieces = tensor->pieces;
    const auto found =
        std::ranges::find_if(pieces, [&](const auto& piece) { return piece.box == slot.box && piece.offset == slot.offset; });
    if (found == pieces.end() || (unit >= 0 && found->unit != unit)) return -1;
    unit = found->unit;
  }
  if (unit < 0 || saved.units[static_cast<std::size_t>(unit)].elements != mine.elements) return -1;
  std::size_t total = 0;
  for (const io::CheckpointTensor& tensor : saved.tensors)
    total += static_cast<std::size_t>(std::ranges::count(tensor.pieces, unit, &io::CheckpointPiece::unit));
  return total == mine.slots.size() ? unit : -1;
}

/// Elements [at, at + n) of the unit, which lie in the piece.
Piece part_of(const Piece& piece, std::int64_t at, std::int64_t n) {
  return {piece.parameter, piece.slot, at, piece.slot_offset + (at - piece.unit_offset), n};
}

}  // namespace

std::byte* ModelState::address(const Held& held, std::int64_t element) const {
  return memory_.address(held.use) + held.bytes(element - held.elements.begin);
}

kernels::Context ModelState::context(const Held& held) const {
  kernels::Context context;
  context.backend = memory_.on_host(held.use.buffer) ? kernels::Backend::host : plan_.schedule.shape.backend;
  return context;
}

void ModelState::clear(const Held& held) const {
  if (!memory_.on_disk(held.use.buffer))
    return kernels::fill_zero(context(held), address(held, held.elements.begin),
                              static_cast<std::size_t>(held.bytes(held.elements.size())));
  if (plan_.request.deck.zero.offload_optimizer.fast_init && !memory_.disk()->written()) return;
  write(held, held.elements.begin, held.elements.size(), [](std::int64_t, std::span<float> out) { std::ranges::fill(out, 0.0f); });
}

void ModelState::write(const Held& held, std::int64_t begin, std::int64_t n, const Fill& fill) const {
  if (memory_.on_host(held.use.buffer) && held.type == StateType::f32)
    return fill(begin, {reinterpret_cast<float*>(address(held, begin)), static_cast<std::size_t>(n)});
  std::vector<float> staging(static_cast<std::size_t>(std::min(n, staged_elements)));
  const bool as_filled = held.type == StateType::f32;
  std::vector<std::byte> encoded(as_filled ? 0 : static_cast<std::size_t>(held.bytes(std::ssize(staging))));
  for (std::int64_t at = begin; at < begin + n; at += staged_elements) {
    const std::span<float> piece(staging.data(), static_cast<std::size_t>(std::min(staged_elements, begin + n - at)));
    fill(at, piece);
    if (!as_filled) kernels::encode_state(held.type, encoded.data(), piece.data(), std::ssize(piece));
    memory_.copy(address(held, at), as_filled ? static_cast<const void*>(piece.data()) : encoded.data(), held.bytes(std::ssize(piece)));
  }
}

void ModelState::draw(const Held& held, const Piece& piece) const {
  const auto seed = static_cast<std::uint64_t>(plan_.request.deck.run.seed);
  const Parameter p = of_model(parameter_of(piece));
  const std::uint64_t stream = stream_of(p);
  const auto runs = [&](std::int64_t at, float* to, std::int64_t n, const auto& make) {
    for_each_run(plan_.layout(), unit_of(held), part_of(piece, at, n), [&](const NaturalRun& run) {
      make(to + (run.unit_offset - at), run.elements, static_cast<std::uint64_t>(run.tensor_offset));
    });
  };
  const auto normal = [&](const kernels::Context& where, std::int64_t at, float* to, std::int64_t n) {
    runs(at, to, n, [&](float* out, std::int64_t count, std::uint64_t first) {
      kernels::normal(where, out, count, static_cast<float>(p.std), seed, stream, first);
    });
  };
  const auto on_host = [&](const Fill& fill) { write(held, piece.unit_offset, piece.elements, fill); };
  switch (p.init) {
    case Init::zeros:
      return;
    case Init::ones:
    case Init::constant:
      return on_host([value = p.init == Init::ones ? 1.0f : static_cast<float>(p.value)](std::int64_t, std::span<float> out) {
        std::ranges::fill(out, value);
      });
    case Init::uniform:
      return on_host([&](std::int64_t at, std::span<float> out) {
        runs(at, out.data(), std::ssize(out), [&](float* to, std::int64_t count, std::uint64_t first) {
          draw_uniform({to, static_cast<std::size_t>(count)}, p.std, seed, stream, first);
        });
      });
    case Init::normal:
      if (memory_.on_disk(held.use.buffer) || held.type != StateType::f32)
        return on_host([&](std::int64_t at, std::span<float> out) { normal({}, at, out.data(), std::ssize(out)); });
      // Where tasks use the state: a GPU makes numbers, the host's bits, faster than they would travel.
      return normal(context(held), piece.unit_offset, reinterpret_cast<float*>(address(held, piece.unit_offset)), piece.elements);
  }
}

void ModelState::initialise() const {
  read({.has = [](const Parameter&) { return false; }, .read = {}});
}

void ModelState::set(const std::function<void(const Parameter&, std::int64_t, std::span<float>)>& value) const {
  values_.begin();
  for (const Held& held : plan_.schedule.state) clear(held);  // the gaps between tensors too
  wait_for_device(plan_.schedule.shape.backend);
  for (const Held& held : plan_.schedule.state) {
    if (!is_of_weights(held)) continue;
    for (const Piece& piece : pieces_in(unit_of(held), held.elements.begin, held.elements.end))
      write(held, piece.unit_offset, piece.elements, [&](std::int64_t at, std::span<float> out) {
        for_each_run(plan_.layout(), unit_of(held), part_of(piece, at, std::ssize(out)), [&](const NaturalRun& run) {
          value(of_model(parameter_of(piece)), run.tensor_offset,
                out.subspan(static_cast<std::size_t>(run.unit_offset - at), static_cast<std::size_t>(run.elements)));
        });
      });
  }
}

void ModelState::read(const WeightSource& source) const {
  values_.begin();
  for (const Held& held : plan_.schedule.state) clear(held);  // the gaps between tensors too
  wait_for_device(plan_.schedule.shape.backend);
  for (const Held& held : plan_.schedule.state) {
    if (!is_of_weights(held)) continue;
    for (const Piece& piece : pieces_in(unit_of(held), held.elements.begin, held.elements.end)) {
      const Parameter p = of_model(parameter_of(piece));
      if (!source.has(p)) {
        draw(held, piece);
        continue;
      }
      leave_if_stopped();
      write(held, piece.unit_offset, piece.elements, [&](std::int64_t at, std::span<float> out) {
        source.read(p, slot_of(held, piece).box, piece.slot_offset + (at - piece.unit_offset), out);
      });
    }
  }
  wait_for_device(plan_.schedule.shape.backend);  // lanes do not wait for the stream that drew
}

void ModelState::load(const io::SavedState& from) const {
  require_same_model(plan_.layout().table, from);
  if (!plan_.request.training()) return load_weights(from);
  require_same_state(plan_.request.deck, plan_.layout().table, from);
  values_.load(from);
  for (const Held& held : plan_.schedule.state) {
    leave_if_stopped();
    if (has_weights_alone(from) && !is_of_weights(held))
      clear(held);
    else
      load_held(held, from);
  }
}

void ModelState::load_lines(const Held& held, const io::SavedState& from) const {
  clear(held);
  wait_for_device(plan_.schedule.shape.backend);
  const Unit& unit = unit_of(held);
  const bool rows = held.of == kernels::Extent::row;
  const std::vector<LinesBefore> before = lines_before(plan_.layout(), unit);
  for (std::size_t s = 0; s < unit.slots.size(); ++s) {
    const std::int64_t first = rows ? before[s].rows : before[s].columns;
    const std::string& name = plan_.layout().table[static_cast<std::size_t>(unit.slots[s].parameter)].name;
    const io::CheckpointTensor* tensor = from.find(held.group, name);
    if (!tensor) continue;  // what it did not train begins with nothing
    write(held, first, (rows ? before[s + 1].rows : before[s + 1].columns) - first, [&](std::int64_t at, std::span<float> out) {
      from.read(held.group, *tensor, at - first, out);
      if (const std::int64_t bad = io::first_not_finite(out); bad >= 0)
        fail_of_value(from, fmt::format("{} of {}, element {}, is {}", held.group, name, at - first + bad,
                                        io::text_not_finite(out[static_cast<std::size_t>(bad)])));
    });
  }
}

void ModelState::load_own(const Held& held, const io::SavedState& from) const {
  const std::optional<int> unit = find_own(held, from.layout());
  if (!unit) return clear(held);
  const std::int64_t first = plan_.request.group(unit_of(held).owners).rank * held.elements.size();
  write(held, 0, held.elements.size(), [&](std::int64_t at, std::span<float> out) {
    from.read_unit(held.group, *unit, first + at, out);
    if (const std::int64_t bad = io::first_not_finite(out); bad >= 0)
      fail_of_value(from, io::describe_not_finite(from.layout(), held.group, *unit, first + at + bad, out[static_cast<std::size_t>(bad)]));
  });
}

void ModelState::load_held(const Held& held, const io::SavedState& from) const {
  if (held.own) return load_own(held, from);
  if (held.of != kernels::Extent::element) return load_lines(held, from);
  // A tower that the checkpoint does not have begins with its weights.
  const std::string& tower = unit_of(held).tower;
  const bool begins = !tower.empty() && std::ranges::find(from.layout().groups, held.group) == from.layout().groups.end();
  const std::string group = begins ? std::string(master_group) : held.group;
  const int saved = begins ? -1 : same_unit(plan_.layout(), unit_of(held), group, from);
  if (saved >= 0)
    return write(held, held.elements.begin, held.elements.size(), [&](std::int64_t at, std::span<float> out) {
      from.read_unit(held.group, saved, at, out);
      if (const std::int64_t bad = io::first_not_finite(out); bad >= 0)
        fail_of_value(from, io::describe_not_finite(from.layout(), held.group, saved, at + bad, out[static_cast<std::size_t>(bad)]));
    });
  clear(held);
  wait_for_device(plan_.schedule.shape.backend);
  for (const Piece& piece : pieces_in(unit_of(held), held.elements.begin, held.elements.end)) {
    const io::CheckpointTensor* tensor = from.find(group, begins ? of_model(parameter_of(piece)).name : parameter_of(piece).name);
    if (!tensor) {
      if (is_of_weights(held)) draw(held, piece);
      continue;  // what it did not train begins with no moments
    }
    write(held, piece.unit_offset, piece.elements, [&](std::int64_t at, std::span<float> out) {
      const Box& box = slot_of(held, piece).box;
      const std::int64_t first = piece.slot_offset + (at - piece.unit_offset);
      from.read_box(group, *tensor, box, out, first);
      if (const std::int64_t bad = io::first_not_finite(out); bad >= 0)
        fail_of_value(
            from, fmt::format("{} of {}, element {} of the tensor, is {}", group, tensor->name,
                              element_around(box, first + bad, tensor->shape), io::text_not_finite(out[static_cast<std::size_t>(bad)])));
    });
  }
}

void ModelState::load_weights(const io::SavedState& from) const {
  // By blocks: read, rounded on the host, then copied to where the kernels are.
  const ModelShape& shape = plan_.schedule.shape;
  std::vector<float> staging(static_cast<std::size_t>(io::hash_block));
  std::vector<std::byte> rounded(staging.size() * sizeof(float));
  for (const Unit& unit : plan_.layout().units) {
    const int buffer = plan_.schedule.find_buffer("parameters." + unit.name);
    const DType type = unit.type(shape.dtype);
    const auto bytes_of = [&](std::int64_t n) { return n * static_cast<std::int64_t>(size_of(type)); };
    for (const Slot& slot : unit.slots) {
      const io::CheckpointTensor& tensor = *from.find(plan_.layout().table[static_cast<std::size_t>(slot.parameter)].name);
      for (std::int64_t begin = 0; begin < slot.elements; begin += io::hash_block) {
        const std::int64_t n = std::min(io::hash_block, slot.elements - begin);
        from.read_box(std::string(master_group), tensor, slot.box, {staging.data(), static_cast<std::size_t>(n)}, begin);
        kernels::cast({}, rounded.data(), type, staging.data(), DType::f32, n);
        memory_.copy(memory_.address(buffer, bytes_of(slot.offset + begin)), rounded.data(), bytes_of(n));
      }
    }
  }
}

SavedLayout ModelState::saved() const {
  const BuildRequest& request = plan_.request;
  const Group holders = request.others();
  std::vector<Layout> layouts;
  std::vector<Holding> holdings;
  bool constants = false;
  for (const int rank : holders.world) layouts.push_back(layout_for(request.deck, request.mesh, rank));
  for (int h = 0; h < holders.size; ++h) {
    const Layout& layout = layouts[static_cast<std::size_t>(h)];
    Holding holding{&layout, {}};
    for (const Unit& unit : layout.units) {
      holding.shards.push_back(group_of(request.mesh, unit.owners, holders.world[static_cast<std::size_t>(h)]).world);
      if (!unit.frozen) continue;
      for (int& shard : holding.shards.back()) shard = constant_shard(shard, request.mesh.ranks());
      constants = true;
    }
    holdings.push_back(std::move(holding));
  }
  std::vector<std::string_view> groups = state_groups(request.deck.optimizer);
  for (const Held& held : plan_.schedule.state)
    if ((held.own || !unit_of(held).tower.empty()) && std::ranges::find(groups, held.group) == groups.end()) groups.push_back(held.group);
  const std::vector<ChosenOptimizer> optimizers = chosen_optimizers(request.deck.optimizer);
  const auto groups_of = [&](const Unit& unit) {
    if (!unit.tower.empty()) return GroupsOfUnit{.elements = {static_cast<int>(std::ranges::find(groups, unit.tower) - groups.begin())}};
    GroupsOfUnit numbers{.elements = {0}};
    const ChosenOptimizer& optimizer = *std::ranges::find(optimizers, unit.optimizer, &ChosenOptimizer::name);
    for (int g = 1; unit.learns() && g < static_cast<int>(groups.size()); ++g) {
      const auto row = std::ranges::find(optimizer.update.state, groups[static_cast<std::size_t>(g)], &StateRow::group);
      if (row == optimizer.update.state.end()) continue;
      if (row->of == kernels::Extent::element)
        numbers.elements.push_back(g);
      else
        numbers.lines.emplace_back(g, row->of);
    }
    return numbers;
  };
  SavedLayout saved = saved_layout(holdings, groups, (constants ? 2 : 1) * request.mesh.ranks(), groups_of);
  for (const Held& held : plan_.schedule.state) {
    if (!held.own) continue;
    saved.checkpoint.units.push_back(own_unit(held, saved.checkpoint));
    const int number = static_cast<int>(saved.checkpoint.units.size()) - 1;
    saved.lines[static_cast<std::size_t>(holders.rank)][{held.unit, saved.checkpoint.units.back().groups.front()}] = number;
  }
  return saved;
}

bool ModelState::constants_on_host() const {
  return std::ranges::all_of(plan_.schedule.state,
                             [&](const Held& held) { return !unit_of(held).frozen || memory_.on_host(held.use.buffer); });
}

io::ShardSource ModelState::source_of(const Held& held, const Range& mine) const {
  const std::byte* from = address(held, mine.begin);
  const StateType type = held.type;
  const bool here = memory_.on_host(held.use.buffer);
  if (here && type == StateType::f32) return std::span(reinterpret_cast<const float*>(from), static_cast<std::size_t>(mine.size()));
  return {mine.size(), [this, from, type, here](std::int64_t at, std::span<float> out) {
            const std::byte* values = from + kernels::state_bytes(type, at);
            if (type == StateType::f32) return memory_.copy(out.data(), values, std::ssize(out) * 4);
            std::vector<std::byte> copied(here ? 0 : static_cast<std::size_t>(kernels::state_bytes(type, std::ssize(out))));
            if (!here) memory_.copy(copied.data(), values, std::ssize(copied)), values = copied.data();
            kernels::decode_state(type, out.data(), values, std::ssize(out));
          }};
}

std::vector<io::ShardSlice> ModelState::slices_of(const std::vector<Held>& all) const {
  const SavedLayout saved = this->saved();
  const std::vector<std::string>& groups = saved.checkpoint.groups;
  const int mine_of_all = plan_.request.others().rank;
  std::vector<io::ShardSlice> slices;
  for (const Held& held : all) {
    const auto group = static_cast<int>(std::ranges::find(groups, held.group) - groups.begin());
    int unit = saved.units[static_cast<std::size_t>(mine_of_all)][static_cast<std::size_t>(held.unit)];
    if (held.own || held.of != kernels::Extent::element) {
      const std::map<SavedLines, int>& lines = saved.lines[static_cast<std::size_t>(mine_of_all)];
      const auto found = lines.find({held.unit, group});
      unit = found == lines.end() ? -1 : found->second;
    }
    if (unit < 0) continue;  // other ranks keep the same and save it
    const Range mine = saved_part(plan_.layout(), held, plan_.request.group(unit_of(held).owners));
    slices.push_back({.group = group, .unit = unit, .data = source_of(held, mine)});
  }
  return slices;
}

}  // namespace tessera
