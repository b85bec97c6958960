#include "schedule/task.hpp"

#include <fmt/format.h>

namespace tessera {

const char* name_of(Category category) {
  static constexpr const char* names[category_count] = {"parameters",  "master",    "state",  "gradients", "gathered", "packed",
                                                        "activations", "workspace", "inputs", "scalars",   "caches",   "snapshot"};
  return names[static_cast<int>(category)];
}

int Schedule::find_buffer(const std::string& name) const {
  for (std::size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].name == name) return static_cast<int>(i);
  return -1;
}

namespace {

/// What ranks must agree on of an op besides its kind: collectives must match to the element.
std::string agreed_text(const Op& op) {
  if (const auto* c = std::get_if<Collective>(&op))
    return fmt::format("{},{},{},{},{},{}{}", static_cast<int>(c->kind), describe(c->axes), c->count, c->stride, name_of(c->dtype),
                       c->accumulate, c->times == 1 ? "" : fmt::format(",{}", c->times)) +
           (c->reduction == Reduction::sum ? "" : ",max") + (c->by == 1 ? "" : fmt::format(",by {}", c->by));
  if (const auto* t = std::get_if<Transfer>(&op))
    return fmt::format("{},{},{},{}{}", t->sends, t->count, name_of(t->dtype), t->ahead,
                       t->border == 0 ? "" : fmt::format(",{}", t->border));
  if (const auto* run = std::get_if<RunPass>(&op); run && run->beside > 0) return fmt::format("{} beside", run->beside);
  return "";
}

}  // namespace

std::vector<std::string> Schedule::lines() const {
  std::vector<std::string> lines;
  if (collective_blocks > 0) lines.push_back(fmt::format("{} blocks;", collective_blocks));
  // Workspace depends on a rank's threads, which may differ where cores do not divide by ranks.
  auto agreed_bytes = [&](const Buffer& b, std::int64_t bytes) { return b.category == Category::workspace ? 0 : bytes; };
  for (const Buffer& b : buffers)
    lines.push_back(fmt::format("{},{},{},{},{};", b.name, name_of(b.tier), agreed_bytes(b, b.bytes), static_cast<int>(b.life), b.slots));
  for (const ProgramRow& row : program_rows)
    for (const Program::Phase& phase : program(row.kind).phases)
      lines.push_back(fmt::format("{}:{}x{}@{};", row.name, phase.section, phase.repeat, phase.micro.value_or(-1)));
  for (const Section& section : sections) {
    lines.push_back(section.name);
    for (const Task& task : section.tasks) {
      std::string line = fmt::format("{}|{}|{}|{}|", task.name, name_of(task.lane), task.op.index(), agreed_text(task.op));
      // Offsets say which shard is this rank's: they differ.
      for (const Use& use : task.uses)
        line += fmt::format("{},{},{},{};", use.buffer, agreed_bytes(buffers[static_cast<std::size_t>(use.buffer)], use.bytes),
                            use.in_slot ? use.shift + (use.shift < 0 ? 0 : 1) : 0, static_cast<int>(use.access));
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

Hash128 Schedule::hash() const {
  Hasher hasher;
  for (const std::string& line : lines()) hasher.update(line);
  return hasher.digest();
}

std::vector<std::string> Schedule::collectives_along(Axis axis) const {
  std::vector<std::string> lines;
  for (const Section& section : sections)
    for (const Task& task : section.tasks)
      if (const auto* c = std::get_if<Collective>(&task.op); c && contains(c->axes, axis))
        lines.push_back(fmt::format("{}|{}|{}", task.name, name_of(task.lane), agreed_text(task.op)));
  return lines;
}

namespace {
std::string print_uses(const Schedule& schedule, const Task& task, bool writes) {
  std::vector<std::string> names;
  for (const Use& use : task.uses) {
    if ((use.access != Access::read) != writes || use.bytes == 0) continue;
    const Buffer& buffer = schedule.buffers[static_cast<std::size_t>(use.buffer)];
    std::string text = buffer.name;
    if (use.offset != 0 || use.bytes != buffer.bytes) text += fmt::format("[{}+{}]", use.offset, use.bytes);
    if (names.empty() || names.back() != text) names.push_back(text);
  }
  return names.empty() ? "-" : fmt::format("{}", fmt::join(names, ", "));
}
}  // namespace

std::string print_schedule(const Schedule& schedule) {
  std::string out;
  for (const ProgramRow& row : program_rows) {
    if (!schedule.has(row.kind)) continue;
    out += fmt::format("program {}\n", row.name);
    for (const Program::Phase& phase : schedule.program(row.kind).phases) {
      const Section& section = schedule.sections[static_cast<std::size_t>(phase.section)];
      out += fmt::format("  section {} x {}\n", section.name, phase.repeat);
      for (std::size_t i = 0; i < section.tasks.size(); ++i) {
        const Task& task = section.tasks[i];
        const auto* run = std::get_if<RunPass>(&task.op);
        const std::string room = run && run->beside > 0 ? fmt::format("  products of the first {} calls leave {} multiprocessors",
                                                                      run->beside, schedule.collective_blocks)
                                                        : "";
        out += fmt::format("    {:4} {:8} {:44} reads {}  writes {}{}\n", i, name_of(task.lane), task.name,
                           print_uses(schedule, task, false), print_uses(schedule, task, true), room);
      }
    }
  }
  return out;
}

Range saved_part(const Layout& layout, const Held& held, const Group& owners) {
  if (held.own) return held.elements;
  if (held.of == kernels::Extent::element) return owned_range(layout, held.unit, owners.rank);
  const std::int64_t all = lines_of(layout, layout.units[static_cast<std::size_t>(held.unit)], held.of);
  return {all * owners.rank / owners.size, all * (owners.rank + 1) / owners.size};
}

}  // namespace tessera
