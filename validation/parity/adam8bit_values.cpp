// AdamW in 8 bits for check_adam8bit.py. All numbers come and go as bytes.
//     adam8bit_values maps             the values of both codes in fp32: with signs, then without
//     adam8bit_values steps N STEPS    of N weights and then the gradients of each step in fp32: the weights after each step, then the
//     codes of both moments, without scales
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/adam8bit/adam8bit.hpp"
#include "kernels/update/eight_bits.hpp"

namespace {

using namespace tessera;
using namespace tessera::kernels;

std::vector<float> numbers(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  if (std::fread(x.data(), sizeof(float), x.size(), stdin) != x.size()) std::exit(1);
  return x;
}
template <class Numbers>
void put(const Numbers& x) {
  std::fwrite(x.data(), sizeof x[0], x.size(), stdout);
}

void put_codes(const std::vector<std::uint8_t>& blocks) {
  for (std::size_t at = 0; at < blocks.size(); at += state_block_bytes) std::fwrite(&blocks[at], 1, state_block, stdout);
}

}  // namespace

int main(int, char** arguments) {
  if (std::string(arguments[1]) == "maps") {
    put(signed_eight_bits.value), put(unsigned_eight_bits.value);
    return 0;
  }
  const std::int64_t n = std::atol(arguments[2]), steps = std::atol(arguments[3]);
  std::vector<float> weights = numbers(n);
  std::vector<std::uint8_t> m(static_cast<std::size_t>(state_bytes(StateType::signed_blocks, n))), v(m.size());
  for (std::int64_t step = 1; step <= steps; ++step) {
    const std::vector<float> gradients = numbers(n);
    UpdateScalars scalars{.learning_rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    scalars.bias_correction1 = static_cast<float>(1 - std::pow(static_cast<double>(scalars.beta1), static_cast<double>(step)));
    scalars.bias_correction2 = static_cast<float>(1 - std::pow(static_cast<double>(scalars.beta2), static_cast<double>(step)));
    host::adam8bit({}, {.master = weights.data(),
                        .state = {m.data(), v.data()},
                        .grad = gradients.data(),
                        .n = n,
                        .weight_decay = 0.1f,
                        .scalars = &scalars});
    put(weights);
  }
  put_codes(m), put_codes(v);
}
