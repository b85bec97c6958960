#include "schedule/builder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/step/step.hpp"
#include "kernels/sums/sums.hpp"
#include "schedule/micro_batches.hpp"
#include "topology/communicator.hpp"
#include "zero/residency.hpp"

namespace tessera {
namespace {

std::size_t index(int i) { return static_cast<std::size_t>(i); }

/// Builds one schedule: declares buffers, binds operands to them, and emits tasks section by section.
class Builder {
 public:
  explicit Builder(const BuildRequest& request) : request_(request), deck_(request.deck), layout_(request.layout) {
    schedule_.shape = model_shape(deck_);
    schedule_.segments = model_segments(schedule_.shape);
    const bool device = deck_.run.device == "cuda";
    local_tier_ = device ? Tier::device : Tier::host;
    comm_tier_ = request.ranks > 1 && !device ? Tier::shared : local_tier_;
    fixed_ = deck_.run.reproducible;
  }

  Schedule build() {
    declare_persistent();
    if (request_.training) build_train();
    if (request_.evaluation_micro_batches > 0) build_evaluate();
    build_publish();
    build_snapshot();
    return std::move(schedule_);
  }

 private:
  // ---- Buffers ----

  int buffer(const std::string& name, Category category, Tier tier, std::int64_t bytes, bool persistent) {
    auto [it, fresh] = by_name_.try_emplace(name, static_cast<int>(schedule_.buffers.size()));
    if (fresh) {
      schedule_.buffers.push_back({name, category, tier, bytes, persistent});
    } else {
      Buffer& known = schedule_.buffers[index(it->second)];
      TESSERA_REQUIRE(known.persistent == persistent && known.tier == tier, "buffer {} is declared in two ways", name);
      known.bytes = std::max(known.bytes, bytes);
    }
    return it->second;
  }
  Use whole(int id, Access access) const { return {id, 0, schedule_.buffers[index(id)].bytes, access, 0}; }
  Use absent() const { return {named("scalars"), 0, 0, Access::read, 0}; }
  int named(const std::string& name) const { return by_name_.at(name); }

  UnitStorage storage(int unit) const {
    UnitStorage s = unit_storage(static_cast<int>(deck_.zero.stage), layout_.units[index(unit)], request_.ranks);
    if (!request_.training) s.parameters_whole = true;
    return s;
  }
  const Unit& unit_at(int unit) const { return layout_.units[index(unit)]; }
  std::int64_t shard(int unit) const { return layout_.shard_elements(unit); }
  DType compute() const { return deck_.precision.compute; }
  std::int64_t compute_bytes(std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(compute())); }
  DType gradient_type() const { return fixed_ ? DType::i64 : DType::f32; }
  std::int64_t gradient_bytes(std::int64_t n) const { return n * static_cast<std::int64_t>(size_of(gradient_type())); }
  int units() const { return static_cast<int>(layout_.units.size()); }

  void declare_persistent() {
    const ModelShape& s = schedule_.shape;
    const std::int64_t micros =
        std::max(request_.training ? accumulation_steps(deck_, request_.ranks) : 0, request_.evaluation_micro_batches);
    for (int u = 0; u < units(); ++u) {
      const std::string& name = unit_at(u).name;
      const UnitStorage st = storage(u);
      const std::int64_t P = unit_at(u).elements, S = shard(u);
      buffer("parameters." + name, Category::parameters, comm_tier_, compute_bytes(st.parameters_whole ? P : S), true);
      if (!request_.training) continue;
      const std::int64_t state_bytes = 4 * (st.optimizer_whole ? P : S);
      if (compute() != DType::f32) buffer("master." + name, Category::master, local_tier_, state_bytes, true);
      buffer("adam_m." + name, Category::adam_m, local_tier_, state_bytes, true);
      buffer("adam_v." + name, Category::adam_v, local_tier_, state_bytes, true);
      buffer("gradients." + name, Category::gradients, st.gradients_whole ? comm_tier_ : local_tier_,
             gradient_bytes(st.gradients_whole ? P : S), true);
      if (local_tier_ == Tier::device)
        for (const std::string& held : state_names(u)) buffer(host_side(held), Category::snapshot, Tier::host, state_bytes, true);
    }
    for_each_packed([&](const Operand& o) { buffer(packed_name(o), Category::packed, local_tier_, o.bytes, true); });
    if (deck_.kernels.pack_weights && request_.training &&
        std::none_of(schedule_.buffers.begin(), schedule_.buffers.end(), [](const Buffer& b) { return b.category == Category::packed; }))
      fail(ExitCode::usage, "kernels.pack_weights = true, and this processor's {} product has no packed form: leave the key out",
           name_of(compute()));
    input("tokens", Category::inputs, 4 * s.tokens() * micros);
    input("targets", Category::inputs, 4 * s.tokens() * micros);
    input("weights", Category::inputs, 8 * std::max<std::int64_t>(micros, 1));
    input("rope", Category::inputs, 4 * s.T * s.D);
    buffer("scalars", Category::scalars, local_tier_, sizeof(kernels::StepScalars), true);
    input("inputs", Category::scalars, sizeof(kernels::StepInputs));
    buffer("adamw", Category::scalars, local_tier_, sizeof(kernels::AdamwScalars), true);
    input("report", Category::scalars, sizeof(kernels::StepReport));
  }

  // ---- What the host writes and reads where kernels work in a GPU's memory ----

  /// A buffer that the host fills before a program, with its twin in pinned memory where kernels cannot read what the host writes.
  void input(const std::string& name, Category category, std::int64_t bytes) {
    buffer(name, category, local_tier_, bytes, true);
    if (local_tier_ == Tier::device) buffer(host_side(name), category, Tier::pinned, bytes, true);
  }
  static std::string host_side(const std::string& name) { return "host." + name; }

  void emit_copy(const char* verb, const std::string& to, const std::string& from) {
    emit({.name = fmt::format("{} {}", verb, to),
          .op = Copy{},
          .uses = {whole(named(to), Access::write), whole(named(from), Access::read)}});
  }
  void emit_upload(const std::vector<std::string>& names) {
    if (local_tier_ != Tier::device) return;
    for (const std::string& name : names) emit_copy("upload", name, host_side(name));
  }
  void emit_download(const std::string& name) {
    if (local_tier_ == Tier::device) emit_copy("download", host_side(name), name);
  }

  /// Names of the buffers that hold a unit's fp32 state.
  std::vector<std::string> state_names(int unit) const {
    const std::string& name = unit_at(unit).name;
    return {(compute() == DType::f32 ? "parameters." : "master.") + name, "adam_m." + name, "adam_v." + name};
  }

  // ---- Packed copies of weights ----

  bool keeps_packed(const Operand& o) const {
    return request_.training && o.bytes > 0 && storage(layout_.find(o.name).unit).parameters_whole;
  }
  static std::string packed_name(const Operand& o) {
    return fmt::format("packed.{}.{}", o.name, o.product.b_transposed ? "forward" : "backward");
  }
  /// Each packed copy once: the head's passes share one.
  template <class F>
  void for_each_packed(F&& f) const {
    std::set<std::string> seen;
    for (const Segment& segment : schedule_.segments)
      for (const SegmentPass* p : {&segment.forward, &segment.backward})
        for (const Operand& o : p->operands)
          if (o.kind == OperandKind::packed_weight && keeps_packed(o) && seen.insert(packed_name(o)).second) f(o);
  }

  /// After a unit's compute copies have changed.
  void emit_pack(int unit) {
    for_each_packed([&](const Operand& o) {
      const TensorRef ref = layout_.find(o.name);
      if (ref.unit != unit) return;
      const Use weight{named("parameters." + unit_at(unit).name), compute_bytes(ref.offset), compute_bytes(ref.elements), Access::read, 0};
      emit({.name = fmt::format("pack {} ({})", o.name, o.product.b_transposed ? "forward" : "backward"),
            .op = PackWeight{o.product},
            .uses = {whole(named(packed_name(o)), Access::write), weight}});
    });
  }

  // ---- Tasks ----

  void begin_section(const std::string& name) {
    schedule_.sections.push_back({name, {}});
    touched_.clear();
  }
  Task& emit(Task task) {
    schedule_.sections.back().tasks.push_back(std::move(task));
    return schedule_.sections.back().tasks.back();
  }
  int last_section() const { return static_cast<int>(schedule_.sections.size()) - 1; }

  /// One pass of a segment in a section: the event that residencies are planned over.
  struct Event {
    int segment;
    bool backward;
  };
  const SegmentPass& pass(const Event& e) const {
    const Segment& s = schedule_.segments[index(e.segment)];
    return e.backward ? s.backward : s.forward;
  }

  /// Units that this event gathers, in order, each once.
  std::vector<int> gathered_units(const Event& e) const {
    std::vector<int> result;
    for (const Operand& o : pass(e).operands) {
      if (o.kind != OperandKind::weight) continue;
      const int unit = layout_.find(o.name).unit;
      if (!storage(unit).parameters_whole && std::find(result.begin(), result.end(), unit) == result.end()) result.push_back(unit);
    }
    return result;
  }

  std::vector<Residency> residencies(const std::vector<Event>& events) const {
    std::vector<std::vector<int>> used;
    for (const Event& e : events) used.push_back(gathered_units(e));
    std::vector<std::int64_t> elements;
    for (const Unit& unit : layout_.units) elements.push_back(unit.elements);
    const ZeroKeys& z = deck_.zero;
    return plan_residencies(used, elements, {z.prefetch_bucket_size, z.max_live_parameters, z.max_reuse_distance});
  }

  /// Emits the events of a section with the gathers they need. `first` and `last` say which micro-batch of the step this is.
  void emit_events(const std::vector<Event>& events, bool first, bool last) {
    const std::vector<Residency> live = residencies(events);
    const std::map<int, int> last_gradient = last_gradient_event(events);
    std::size_t next = 0;
    for (int e = 0; e < static_cast<int>(events.size()); ++e) {
      for (; next < live.size() && live[next].issue <= e; ++next) emit_gather(live[next], static_cast<int>(next), events);
      emit_segment(events[index(e)], live, e, first);
      if (schedule_.segments[index(events[index(e)].segment)].name == "head") emit_loss();
      for (auto [unit, event] : last_gradient)
        if (event == e) emit_gradient_done(unit, first, last);
    }
  }

  std::string gathered_name(const Residency& r, int number) const {
    return fmt::format("{}.{}#{}", "gathered", unit_at(r.unit).name, number);
  }

  void emit_gather(const Residency& r, int number, const std::vector<Event>& events) {
    const std::int64_t P = unit_at(r.unit).elements, S = shard(r.unit);
    const int target = buffer(gathered_name(r, number), Category::gathered, comm_tier_, compute_bytes(P), false);
    const char* phase = events[index(r.first)].backward && schedule_.segments[index(events[index(r.first)].segment)].name != "head"
                            ? "backward"
                            : "forward";
    emit({.name = fmt::format("gather {} ({})", unit_at(r.unit).name, phase),
          .op = Gather{S, S, compute()},
          .lane = Lane::gather,
          .uses = {whole(target, Access::write), whole(named("parameters." + unit_at(r.unit).name), Access::read)},
          .bytes_moved = static_cast<double>(compute_bytes(P - S))});
  }

  Use weight_use(const std::string& tensor, const std::vector<Residency>& live, int event) const {
    const TensorRef ref = layout_.find(tensor);
    const std::int64_t offset = compute_bytes(ref.offset), bytes = compute_bytes(ref.elements);
    if (storage(ref.unit).parameters_whole) return {named("parameters." + unit_at(ref.unit).name), offset, bytes, Access::read, 0};
    for (std::size_t i = 0; i < live.size(); ++i)
      if (live[i].unit == ref.unit && live[i].first <= event && event <= live[i].last)
        return {named(gathered_name(live[i], static_cast<int>(i))), offset, bytes, Access::read, 0};
    fail(ExitCode::internal, "{} is not gathered where it is read", tensor);
  }

  /// Where a unit's fp32 gradient of this micro-batch is written: straight into the step's sum where that is whole and fp32, else into a
  /// buffer of its own.
  bool gradient_direct(int unit) const { return storage(unit).gradients_whole && !fixed_; }
  int gradient_buffer(int unit) {
    const std::string& name = unit_at(unit).name;
    if (gradient_direct(unit)) return named("gradients." + name);
    const Tier tier = fixed_ ? local_tier_ : comm_tier_;
    return buffer("micro_gradients." + name, Category::gradients, tier, 4 * unit_at(unit).elements, false);
  }

  Use gradient_use(const std::string& tensor, bool first) {
    const TensorRef ref = layout_.find(tensor);
    const int target = gradient_buffer(ref.unit);
    // The first touch of a unit's own micro-batch buffer clears the gaps between its tensors, which would otherwise hold what lay there
    // before.
    if (!gradient_direct(ref.unit) && touched_units_.insert(ref.unit).second) emit_zero_padding(ref.unit, target);
    const bool starts = touched_.insert(tensor).second && (first || !gradient_direct(ref.unit));
    return {target, 4 * ref.offset, 4 * ref.elements, starts ? Access::write : Access::add, 0};
  }

  void emit_zero_padding(int unit, int target) {
    std::vector<Use> gaps;
    for (const Range& gap : padding_of(unit_at(unit))) gaps.push_back({target, 4 * gap.begin, 4 * gap.size(), Access::write, 0});
    if (!gaps.empty()) emit({.name = fmt::format("clear padding {}", unit_at(unit).name), .op = Zero{}, .uses = gaps});
  }

  int stream_number(const Event& e, bool out) const {  // stream.k leaves segment k
    return e.segment - (out ? 0 : 1);
  }

  Use bind(const Operand& o, const Event& e, const std::vector<Residency>& live, int event, bool first) {
    const Segment& segment = schedule_.segments[index(e.segment)];
    const std::int64_t micro_bytes = 4 * schedule_.shape.tokens();
    switch (o.kind) {
      case OperandKind::stream_in:
      case OperandKind::stream_out:
        return {buffer(fmt::format("stream.{}", stream_number(e, o.kind == OperandKind::stream_out)), Category::activations, local_tier_,
                       o.bytes, false),
                0, o.bytes, o.access, 0};
      case OperandKind::d_stream:
        return {buffer("d_stream", Category::activations, local_tier_, o.bytes, false), 0, o.bytes, o.access, 0};
      case OperandKind::saved:
        return {buffer(segment.name + "." + o.name, Category::activations, local_tier_, o.bytes, false), 0, o.bytes, o.access, 0};
      case OperandKind::scratch:
        return {buffer(fmt::format("scratch.{}.{}.{}", segment.name, e.backward ? "backward" : "forward", o.name), Category::activations,
                       local_tier_, o.bytes, false),
                0, o.bytes, o.access, 0};
      case OperandKind::workspace:
        if (o.bytes == 0) return absent();
        return {buffer(fmt::format("workspace.{}.{}", segment.name, e.backward ? "backward" : "forward"), Category::workspace, local_tier_,
                       o.bytes, false),
                0, o.bytes, o.access, 0};
      case OperandKind::weight:
        return weight_use(o.name, live, event);
      case OperandKind::packed_weight:
        return keeps_packed(o) ? whole(named(packed_name(o)), Access::read) : absent();
      case OperandKind::weight_gradient:
        return gradient_use(o.name, first);
      case OperandKind::rope_table:
        return whole(named("rope"), Access::read);
      case OperandKind::tokens:
        return {named("tokens"), 0, micro_bytes, Access::read, micro_bytes};
      case OperandKind::targets:
        return {named("targets"), 0, micro_bytes, Access::read, micro_bytes};
      case OperandKind::losses:
        return {buffer("losses", Category::activations, local_tier_, o.bytes, false), 0, o.bytes, o.access, 0};
    }
    return {};
  }

  void emit_segment(const Event& e, const std::vector<Residency>& live, int event, bool first) {
    const Segment& segment = schedule_.segments[index(e.segment)];
    const bool loss = segment.name == "head";
    Task task{.name = fmt::format("{} {}",
                                  loss         ? (e.backward ? "loss and gradient" : "loss")
                                  : e.backward ? "backward"
                                               : "forward",
                                  segment.name),
              .op = RunSegment{e.segment, e.backward},
              .lane = Lane::compute,
              .uses = {},
              .flops = pass(e).flops};
    for (const Operand& o : pass(e).operands) task.uses.push_back(bind(o, e, live, event, first));
    emit(std::move(task));
  }

  void emit_loss() {
    emit({.name = "add loss",
          .op = AddLoss{},
          .uses = {whole(named("losses"), Access::read), {named("weights"), 0, 8, Access::read, 8}, whole(named("scalars"), Access::add)}});
  }

  std::map<int, int> last_gradient_event(const std::vector<Event>& events) const {
    std::map<int, int> last;
    for (int e = 0; e < static_cast<int>(events.size()); ++e)
      for (const Operand& o : pass(events[index(e)]).operands)
        if (o.kind == OperandKind::weight_gradient) last[layout_.find(o.name).unit] = e;
    return last;
  }

  /// A unit's gradient of this micro-batch is complete: into the step's sum, and to its owner where the stage says so.
  void emit_gradient_done(int unit, bool first, bool last) {
    const std::string& name = unit_at(unit).name;
    const UnitStorage st = storage(unit);
    const std::int64_t P = unit_at(unit).elements, S = shard(unit);
    const int sum = named("gradients." + name);
    touched_units_.erase(unit);
    int source = gradient_buffer(unit);
    if (fixed_) {
      int target = sum;
      if (!st.gradients_whole) target = buffer("fixed_gradients." + name, Category::gradients, comm_tier_, 8 * P, false);
      if (!st.gradients_whole || first) emit({.name = "clear sums " + name, .op = Zero{}, .uses = {whole(target, Access::write)}});
      emit({.name = "accumulate " + name,
            .op = AccumulateFixed{P, fixed_limit_for(st)},
            .uses = {whole(target, Access::add), whole(source, Access::read), whole(named("scalars"), Access::add)}});
      source = target;
    }
    if (request_.ranks == 1) return;
    if (!st.gradients_whole) {
      emit_reduce(unit, "reduce", sum, 0, source, !first);
    } else if (last && st.optimizer_whole) {
      for (const Range& cut : cut_shard(P, 1, deck_.zero.reduce_bucket_size))
        emit({.name = "all-reduce " + name,
              .op = AllReduce{cut.size(), gradient_type()},
              .lane = Lane::reduce,
              .uses = {{sum, gradient_bytes(cut.begin), gradient_bytes(cut.size()), Access::add, 0}},
              .bytes_moved = 2.0 * static_cast<double>(gradient_bytes(cut.size())) * (request_.ranks - 1) / request_.ranks});
    } else if (last) {
      emit_reduce(unit, "reduce", sum, gradient_bytes(request_.rank * S), sum, false);
    }
  }

  /// A whole sum meets those of the other ranks; a micro-batch's meets those of all micro-batches of all ranks.
  std::int64_t fixed_limit_for(const UnitStorage& st) const {
    return kernels::fixed_limit / (st.gradients_whole ? request_.ranks : request_.ranks * accumulation_steps(deck_, request_.ranks));
  }

  /// Reduce-scatter of a whole buffer into this rank's shard at `target` + `target_offset`.
  void emit_reduce(int unit, const char* verb, int target, std::int64_t target_offset, int source, bool accumulate) {
    const std::int64_t S = shard(unit);
    for (const Range& cut : cut_shard(S, request_.ranks, deck_.zero.reduce_bucket_size)) {
      // Reads a piece of every rank's block: the whole buffer from the first piece to the last one.
      const Use read{source, gradient_bytes(cut.begin), gradient_bytes((request_.ranks - 1) * S + cut.size()), Access::read, 0};
      emit({.name = fmt::format("{} {}", verb, unit_at(unit).name),
            .op = Reduce{cut.size(), S, gradient_type(), accumulate},
            .lane = Lane::reduce,
            .uses = {{target, target_offset + gradient_bytes(cut.begin), gradient_bytes(cut.size()),
                      accumulate ? Access::add : Access::write, 0},
                     read,
                     reduce_workspace(cut.size(), accumulate)},
            .bytes_moved = static_cast<double>(gradient_bytes(cut.size())) * (request_.ranks - 1)});
    }
  }

  Use reduce_workspace(std::int64_t count, bool accumulate) {
    const std::int64_t bytes = reduce_scatter_workspace_bytes(schedule_.shape.backend, count, gradient_type(), accumulate);
    if (bytes == 0) return absent();
    return {buffer("workspace.reduce", Category::workspace, local_tier_, bytes, false), 0, bytes, Access::write, 0};
  }

  // ---- Programs ----

  std::vector<Event> micro_batch_events() const {
    std::vector<Event> events;
    const int n = static_cast<int>(schedule_.segments.size());
    for (int s = 0; s + 1 < n; ++s) events.push_back({s, false});
    for (int s = n - 1; s >= 0; --s) events.push_back({s, true});
    return events;
  }

  void build_train() {
    const std::int64_t A = accumulation_steps(deck_, request_.ranks);
    schedule_.train.name = "train";
    auto add = [&](std::int64_t repeat) { schedule_.train.phases.push_back({last_section(), repeat}); };
    begin_section("begin");
    emit_begin();
    add(1);
    auto micro = [&](const char* name, bool first, bool last, std::int64_t repeat) {
      begin_section(name);
      emit_events(micro_batch_events(), first, last);
      add(repeat);
    };
    if (A == 1) {
      micro("micro-batch", true, true, 1);
    } else {
      micro("first micro-batch", true, false, 1);
      if (A > 2) micro("micro-batch", false, false, A - 2);
      micro("last micro-batch", false, true, 1);
    }
    begin_section("end");
    emit_epilogue();
    add(1);
  }

  void emit_begin() {
    emit_upload({"tokens", "targets", "weights", "inputs"});
    emit({.name = "clear scalars", .op = Zero{}, .uses = {whole(named("scalars"), Access::write)}});
  }

  void emit_epilogue() {
    for (int u = 0; u < units(); ++u) {
      const UnitStorage st = storage(u);
      const std::int64_t S = shard(u), begin = st.gradients_whole ? request_.rank * S : 0;
      const std::size_t bytes = kernels::sum_of_squares_workspace_bytes({.n = S, .dtype = gradient_type()});
      const int workspace =
          buffer("workspace.norm", Category::workspace, local_tier_, static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64)), false);
      emit({.name = "norm " + unit_at(u).name,
            .op = SumSquares{S, gradient_type()},
            .uses = {{named("gradients." + unit_at(u).name), gradient_bytes(begin), gradient_bytes(S), Access::read, 0},
                     whole(named("scalars"), Access::add),
                     {workspace, 0, static_cast<std::int64_t>(bytes), Access::write, 0}}});
    }
    emit_finish(false);
    for (int u = 0; u < units(); ++u) {
      emit_optimizer(u);
      emit_publish_gather(u);
    }
    for (int u = 0; u < units(); ++u) emit_pack(u);
  }

  void emit_finish(bool evaluation) {
    const Use scalars = whole(named("scalars"), Access::add), inputs = whole(named("inputs"), Access::read);
    emit({.name = "count flags", .op = CountFlags{}, .uses = {scalars, inputs}});
    if (request_.ranks > 1)
      emit({.name = "all-reduce loss, norm and flags",
            .op = AllReduce{kernels::step_sums, DType::i64},
            .lane = Lane::reduce,
            .uses = {{named("scalars"), 0, 8 * kernels::step_sums, Access::add, 0}}});
    emit({.name = evaluation ? "finish evaluation" : "norm, clip factor and learning rate",
          .op = FinishStep{},
          .uses = {whole(named("scalars"), Access::read), inputs, evaluation ? absent() : whole(named("adamw"), Access::write),
                   whole(named("report"), Access::write)}});
    emit_download("report");
  }

  Range state(int unit) const {
    return storage(unit).optimizer_whole ? Range{0, unit_at(unit).elements} : owned_range(layout_, unit, request_.rank);
  }

  /// Byte offset in "parameters.UNIT" of the first element of `state(unit)`.
  std::int64_t parameter_offset(int unit) const { return storage(unit).parameters_whole ? compute_bytes(state(unit).begin) : 0; }

  void emit_optimizer(int unit) {
    const std::string& name = unit_at(unit).name;
    const Range owned = state(unit);
    const std::int64_t gradient_origin = storage(unit).gradients_whole ? 0 : owned_range(layout_, unit, request_.rank).begin;
    const bool copy = compute() != DType::f32;
    const std::int64_t group = std::max<std::int64_t>(shard_block, deck_.zero.sub_group_size / shard_block * shard_block);
    for (std::int64_t begin = owned.begin; begin < owned.end; begin += group) {
      const std::int64_t end = std::min(owned.end, begin + group), n = end - begin, at = begin - owned.begin;
      OptimizerStep op{
          .gradient = gradient_type(), .copy = copy, .begin = begin, .pieces = pieces_in(unit_at(unit), begin, end), .decay = {}};
      for (const Piece& piece : op.pieces)
        op.decay.push_back(layout_.table[index(piece.parameter)].decay ? static_cast<float>(deck_.optimizer.weight_decay) : 0.0f);
      const int parameters = named("parameters." + name);
      const Use master = copy ? Use{named("master." + name), 4 * at, 4 * n, Access::add, 0}
                              : Use{parameters, parameter_offset(unit) + 4 * at, 4 * n, Access::add, 0};
      std::vector<Use> uses{master,
                            {named("adam_m." + name), 4 * at, 4 * n, Access::add, 0},
                            {named("adam_v." + name), 4 * at, 4 * n, Access::add, 0},
                            {named("gradients." + name), gradient_bytes(begin - gradient_origin), gradient_bytes(n), Access::read, 0},
                            whole(named("adamw"), Access::read)};
      if (copy) uses.push_back({parameters, parameter_offset(unit) + compute_bytes(at), compute_bytes(n), Access::write, 0});
      emit({.name = "optimizer " + name, .op = std::move(op), .uses = std::move(uses)});
    }
  }

  /// Where compute copies are whole but each rank updates its own shard, the shards are gathered in place.
  void emit_publish_gather(int unit) {
    const UnitStorage st = storage(unit);
    if (!request_.training || request_.ranks == 1 || st.optimizer_whole || !st.parameters_whole) return;
    const std::int64_t S = shard(unit);
    const int parameters = named("parameters." + unit_at(unit).name);
    for (const Range& cut : cut_shard(S, request_.ranks, deck_.zero.allgather_bucket_size))
      emit({.name = "gather " + unit_at(unit).name + " (updated)",
            .op = Gather{cut.size(), S, compute()},
            .lane = Lane::gather,
            .uses = {{parameters, compute_bytes(cut.begin), compute_bytes((request_.ranks - 1) * S + cut.size()), Access::write, 0},
                     {parameters, compute_bytes(request_.rank * S + cut.begin), compute_bytes(cut.size()), Access::read, 0}},
            .bytes_moved = static_cast<double>(compute_bytes(cut.size())) * (request_.ranks - 1)});
  }

  void build_evaluate() {
    schedule_.evaluate.name = "evaluate";
    begin_section("begin evaluation");
    emit_begin();
    schedule_.evaluate.phases.push_back({last_section(), 1});
    begin_section("evaluation micro-batch");
    std::vector<Event> events;
    for (int s = 0; s < static_cast<int>(schedule_.segments.size()); ++s) events.push_back({s, false});
    emit_events(events, true, false);
    schedule_.evaluate.phases.push_back({last_section(), request_.evaluation_micro_batches});
    begin_section("end evaluation");
    emit_finish(true);
    schedule_.evaluate.phases.push_back({last_section(), 1});
  }

  void build_publish() {
    schedule_.publish.name = "publish";
    begin_section("publish");
    emit_upload({"rope"});
    for (int u = 0; u < units(); ++u) emit_state_upload(u);
    for (int u = 0; u < units(); ++u) {
      if (request_.training && compute() != DType::f32) {
        const std::int64_t n = state(u).size();
        emit({.name = "cast " + unit_at(u).name,
              .op = CastShard{n},
              .uses = {{named("parameters." + unit_at(u).name), parameter_offset(u), compute_bytes(n), Access::write, 0},
                       whole(named("master." + unit_at(u).name), Access::read)}});
      }
      emit_publish_gather(u);
      emit_pack(u);
    }
    schedule_.publish.phases.push_back({last_section(), 1});
  }

  /// The bytes of this rank's state in each of state_names.
  Use state_use(const std::string& name, int unit, Access access) const {
    const bool in_parameters = name.starts_with("parameters.");
    return {named(name), in_parameters ? parameter_offset(unit) : 0, 4 * state(unit).size(), access, 0};
  }
  void emit_state_upload(int unit) {
    if (local_tier_ != Tier::device || !request_.training) return;
    for (const std::string& name : state_names(unit))
      emit({.name = "upload " + name,
            .op = Copy{},
            .uses = {state_use(name, unit, Access::write), whole(named(host_side(name)), Access::read)}});
  }

  void build_snapshot() {
    schedule_.snapshot.name = "snapshot";
    if (local_tier_ != Tier::device || !request_.training) return;
    begin_section("snapshot");
    for (int u = 0; u < units(); ++u)
      for (const std::string& name : state_names(u))
        emit({.name = "download " + name,
              .op = Copy{},
              .uses = {whole(named(host_side(name)), Access::write), state_use(name, u, Access::read)}});
    schedule_.snapshot.phases.push_back({last_section(), 1});
  }

  const BuildRequest& request_;
  const Deck& deck_;
  const Layout& layout_;
  Schedule schedule_;
  std::map<std::string, int> by_name_;
  std::set<std::string> touched_;  ///< tensors whose gradient this section has begun
  std::set<int> touched_units_;    ///< units whose micro-batch buffer is live
  Tier local_tier_ = Tier::host;   ///< where kernels work
  Tier comm_tier_ = Tier::host;    ///< what collectives touch
  bool fixed_ = false;
};

}  // namespace

Schedule build_schedule(const BuildRequest& request) { return Builder(request).build(); }

StateRange state_range(const Schedule& schedule, const BuildRequest& request, const std::string& group, int unit) {
  const Unit& u = request.layout.units[index(unit)];
  const UnitStorage st = unit_storage(static_cast<int>(request.deck.zero.stage), u, request.ranks);
  const Range range = st.optimizer_whole ? Range{0, u.elements} : owned_range(request.layout, unit, request.rank);
  const bool in_parameters = group == "master" && request.deck.precision.compute == DType::f32;
  const std::string name = (in_parameters ? "parameters" : group) + "." + u.name;
  if (const int twin = schedule.find_buffer("host." + name); twin >= 0) return {twin, 0, range};
  return {schedule.find_buffer(name), in_parameters && st.parameters_whole ? 4 * range.begin : 0, range};
}

Layout layout_for(const Deck& deck, int ranks) {
  const bool persistent = deck.zero.stage == 3 && ranks > 1;
  return make_layout(parameter_table(deck.model), ranks, persistent ? deck.zero.param_persistence_threshold : 0);
}

}  // namespace tessera
