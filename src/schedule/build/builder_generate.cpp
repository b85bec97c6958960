// The programs of a text: its prompt, and a token that follows. Each is a forward pass over the model's segments, recorded at its shape.
#include <fmt/format.h>

#include <limits>

#include "schedule/build/schedule_builder.hpp"

namespace tessera {

void ScheduleBuilder::build_text() {
  const TextSize& text = request_.text;
  TESSERA_REQUIRE(text.prompt > 0 && text.prompt <= text.capacity, "a prompt of {} in a text of {}", text.prompt, text.capacity);
  TESSERA_REQUIRE(text.capacity <= std::numeric_limits<std::int32_t>::max(), "positions of a text of {} are no int32", text.capacity);
  constexpr std::int64_t number = sizeof(std::int32_t);
  input("token", Category::inputs, 2 * number);  // its id, then its position
  if (text.likeliest)
    input("likeliest", Category::inputs, number);
  else
    input("logits", Category::activations, 4 * schedule_.shape.V);
  if (text.prompt > 1) {  // a prompt of one token is a token
    input("prompt", Category::inputs, number * text.prompt);
    build_text_pass(schedule_.prompt, "prompt", Feed::prompt);
  }
  build_text_pass(schedule_.token, "token", Feed::token);
}

void ScheduleBuilder::build_text_pass(Program& program, const char* name, Feed feed) {
  program.name = name;
  begin_section(name);
  emit_upload({name});
  const std::size_t first = schedule_.segments.size();
  for (Segment& segment : model_segments(text_shape(schedule_.shape, request_.text, feed)))
    schedule_.segments.push_back(std::move(segment));
  emit_events(forward_passes(first), {.name = {}, .forward = true, .first = true});
  emit_download(request_.text.likeliest ? "likeliest" : "logits");
  program.phases.push_back({last_section(), 1});
}

Use ScheduleBuilder::bind_of_text(const Operand& o, const std::string& segment, const ValueInfo& v) {
  switch (v.kind) {
    case ValueKind::text_tokens:
      return {named(v.name), 0, v.bytes, Access::read};
    case ValueKind::position:
      return {named("token"), v.bytes, v.bytes, Access::read};
    case ValueKind::rotations:
      return activation_use(v.name, v, o.access);
    case ValueKind::cached_keys:
    case ValueKind::cached_values:
      return whole(buffer(fmt::format("{}.{}", v.name, segment), Category::caches, local_tier_, v.bytes, Life::run), o.access);
    case ValueKind::logits:
      if (request_.text.likeliest) return activation_use(v.name, v, o.access);
      return whole(named(v.name), o.access);
    case ValueKind::likeliest:
      return whole(named(v.name), o.access);
    default:
      fail(ExitCode::internal, "{} of {} is no value of a text", v.name, segment);
  }
}

}  // namespace tessera
