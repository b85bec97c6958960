// The programs of a text: its prompt, and a token that follows. Each is a forward pass over the model's segments, recorded at its shape.
#include <fmt/format.h>

#include <limits>

#include "schedule/build/schedule_builder.hpp"
#include "schedule/build/step_ends.hpp"

namespace tessera {

void ScheduleBuilder::build_text() {
  const TextSize& text = frame_.request.text;
  TESSERA_REQUIRE(text.prompt > 0 && text.prompt <= text.capacity, "a prompt of {} in a text of {}", text.prompt, text.capacity);
  TESSERA_REQUIRE(text.capacity <= std::numeric_limits<std::int32_t>::max(), "positions of a text of {} are no int32", text.capacity);
  constexpr std::int64_t number = sizeof(std::int32_t);
  buffers_.input("token", Category::inputs, 2 * number);  // its id, then its position
  if (text.likeliest)
    buffers_.input("likeliest", Category::inputs, number);
  else
    buffers_.input("logits", Category::activations, 4 * frame_.shape.V);
  if (text.prompt > 1) {  // a prompt of one token is a token
    buffers_.input("prompt", Category::inputs, number * text.prompt);
    build_text_pass(ProgramKind::prompt, Feed::prompt);
  }
  build_text_pass(ProgramKind::token, Feed::token);
}

void ScheduleBuilder::build_text_pass(ProgramKind program, Feed feed) {
  const int tower = passes_.add(
      {.name = name_of(program), .prefix = {}, .segments = model_segments(text_shape(frame_.shape, frame_.request.text, feed))});
  StepPasses step(frame_, passes_.forward(tower));
  SectionBuilder text = section(step, name_of(program), {.name = {}, .forward = true, .first = true});
  emit_upload(text.out(), {name_of(program)});
  text.emit_events(step.all());
  emit_download(text.out(), frame_.request.text.likeliest ? "likeliest" : "logits");
  add_phase(program, text);
}

Use SectionBuilder::bind_of_text(const Operand& o, const std::string& segment, const ValueInfo& v) {
  switch (v.kind) {
    case ValueKind::text_tokens:
      return {buffers_.named(v.name), 0, v.bytes, Access::read};
    case ValueKind::position:
      return {buffers_.named("token"), v.bytes, v.bytes, Access::read};
    case ValueKind::rotations:
      return activation_use(v.name, v, o.access);
    case ValueKind::cache:
      return buffers_.whole(
          buffers_.declare(fmt::format("{}.{}", v.name, segment), Category::caches, frame_.local_tier, v.bytes, Life::run), o.access);
    case ValueKind::logits:
      if (frame_.request.text.likeliest) return activation_use(v.name, v, o.access);
      return buffers_.whole(v.name, o.access);
    case ValueKind::likeliest:
      return buffers_.whole(v.name, o.access);
    default:
      fail(ExitCode::internal, "{} of {} is not a value of a text", v.name, segment);
  }
}

}  // namespace tessera
