#include "kernels/adafactor/adafactor.hpp"

#include "optimizer/texts/update_text.hpp"

namespace tessera {
namespace {

void adafactor_text(UpdateText& t) {
  using kernels::Extent;
  const UpdateOperand rows = t.state("adafactor_row", Extent::row), columns = t.state("adafactor_column", Extent::column);
  const UpdateOperand lines = t.line_sums(), squares = t.sums(1);
  t.run("adafactor_squares", {read(t.gradient()), read(t.values()), add(lines)}, kernels::adafactor_squares);
  t.reduce(lines);
  t.run_once("adafactor_lines", {add(rows), add(columns), read(t.values()), add(lines)}, kernels::adafactor_lines);
  t.run("adafactor_direction", {read(rows), read(columns), read(t.gradient()), read(t.values()), read(lines), add(squares)},
        kernels::adafactor_direction);
  t.reduce(squares);
  t.run("adafactor",
        {add(t.master()), read(rows), read(columns), read(t.gradient()), read(t.values()), read(lines), read(squares), write(t.copy())},
        kernels::adafactor);
}

void vector_text(UpdateText& t) {
  const UpdateOperand v = t.state("adafactor_v", kernels::StateType::f32), squares = t.sums(1);
  t.run("adafactor_vector_direction", {read(t.master()), add(v), read(t.gradient()), read(t.values()), add(squares)},
        kernels::adafactor_vector_direction);
  t.reduce(squares);
  t.run("adafactor_vector", {add(t.master()), read(v), read(t.gradient()), read(t.values()), read(squares), write(t.copy())},
        kernels::adafactor_vector);
}

}  // namespace

Optimizer adafactor() {
  return {.name = "adafactor",
          .deepspeed = {},
          .trainer = {"adafactor"},
          .keys = {"decay_rate", "update_clipping"},
          .defaults = {},
          .text = adafactor_text,
          .takes = [](const UpdatedTensor& tensor) { return tensor.dims == 2; },
          .rest = "adafactor_vector"};
}

Optimizer adafactor_vector() {
  return {.name = "adafactor_vector",
          .deepspeed = {},
          .trainer = {},
          .keys = {"decay_rate", "update_clipping"},
          .defaults = {},
          .text = vector_text,
          .hidden = true};
}

}  // namespace tessera
