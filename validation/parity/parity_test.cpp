// The same numbers as PyTorch: logits, loss, every gradient and ten AdamW steps against the fixtures beside this file.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string_view>

#include "base/backend.hpp"
#include "deck/kinds_of_layers.hpp"
#include "kernels/cuda/devices.hpp"
#include "memory/runtime.hpp"
#include "train/engine/device.hpp"
#include "train/engine/engine.hpp"
#include "train/text/decoder.hpp"
#include "validation/parity/fixture.hpp"
#include "validation/test_run.hpp"
#include "validation/unit/sample.hpp"
#ifdef TESSERA_CUDA
#include "validation/watched_device.hpp"
#endif

namespace tessera {
namespace {

using namespace fixture;

/// 2-norm of the difference over the 2-norm of the reference; NaN anywhere is an infinite difference.
double relative_error(const std::vector<float>& ours, const std::vector<float>& theirs) {
  if (ours.size() != theirs.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    difference += std::pow(static_cast<double>(ours[i]) - theirs[i], 2);
    norm += std::pow(static_cast<double>(theirs[i]), 2);
  }
  if (difference == 0 && norm == 0) return 0;  // an expert that no token has chosen
  const double error = std::sqrt(difference / norm);
  return std::isfinite(error) ? error : INFINITY;
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += std::pow(static_cast<double>(value), 2);
  return std::sqrt(sum);
}

/// What is not rotated of a key's bias moves all scores of a query alike, and the softmax leaves that out: its gradient is zero but for
/// rounding, which AdamW makes as large as others. So is that of what makes the score of a token that sees itself alone.
bool moves_nothing(const ModelKeys& m, const Parameter& p) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::any_of(names, [&](std::string_view name) { return p.name.ends_with(name); });
  };
  if (p.layer >= 0 && keys_of_layers(m)[static_cast<std::size_t>(p.layer)].window == 1)
    return is_one_of({".attention.wq", ".attention.wk", ".attention.q_norm", ".attention.k_norm"});
  if (!p.name.ends_with(".attention.bk") || m.qk_norm || m.attention_sinks || m.attention_softcap > 0) return false;
  return keys_of_layers(m)[static_cast<std::size_t>(p.layer)].positions == PositionMode::none;
}

/// A figure of a card (make_cards.py), which takes the largest of its name.
void note(const std::string& name, double error) { testing::Test::RecordProperty(name, fmt::format("{:.3g}", error)); }

struct Case {
  std::string fixture;
  bool bf16 = false, reproducible = false;
  std::string device = "host";
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.fixture << " (" << test::Sample::describe() << ")"; }

/// Where the build found them, or where a bundle that was unpacked on another machine has them.
std::string fixtures() {
  const char* moved = std::getenv("TESSERA_FIXTURES");
  return moved ? moved : TESSERA_FIXTURES;
}
std::string path_of(const std::string& fixture) { return fixtures() + "/" + fixture + ".h5"; }

class Parity : public testing::TestWithParam<Case> {
 protected:
  Parity()
      : file_(hdf5::File::open(path_of(GetParam().fixture), ExitCode::data)),
        deck_(deck_of(file_, GetParam().bf16, GetParam().reproducible, GetParam().device)) {}

  void SetUp() override {
#ifdef TESSERA_CUDA
    if (GetParam().device == "cuda" && cuda::device_count() == 0) GTEST_SKIP() << "no GPU: not tested on one";
#endif
  }
  std::unique_ptr<Engine> make_engine(const TextSize& text = {}) const {
    BuildRequest request = request_for(deck_, Mesh{}, 0, Purpose::training);
    request.text = text;
    return std::make_unique<Engine>(plan_run(request));
  }
  void set_fixture_weights(Engine& engine) const {
    engine.set_weights([&](const Parameter& p, std::int64_t first, std::span<float> out) {
      const auto values = floats(file_, "weights/" + p.name);
      std::copy_n(values.begin() + first, out.size(), out.begin());
    });
  }
  /// Spreads (B,T) over the engine's micro-batches.
  void set_batch(Engine& engine, const std::vector<std::uint32_t>& tokens, const std::vector<std::uint32_t>& targets,
                 std::size_t first) const {
    for (std::int64_t m = 0; m < engine.accumulation(); ++m)
      for (std::size_t i = 0; i < engine.tokens(m).size(); ++i) {
        const std::size_t at = first + static_cast<std::size_t>(m) * engine.tokens(m).size() + i;
        engine.tokens(m)[i] = static_cast<std::int32_t>(tokens[at]);
        engine.targets(m)[i] = static_cast<std::int32_t>(targets[at]);
      }
  }

  hdf5::File file_;
  Deck deck_;
};

TEST_P(Parity, LossAndEveryGradient) {
  auto engine = make_engine();
  set_fixture_weights(*engine);
  set_batch(*engine, integers(file_, "tokens"), integers(file_, "targets"), 0);
  const StepReport report = engine->step();
  const bool bf16 = GetParam().bf16;
  EXPECT_NEAR(report.loss / floats(file_, "loss")[0], 1, bf16 ? 2e-2 : 1e-5);
  note("loss", std::abs(report.loss / floats(file_, "loss")[0] - 1));
  double worst = 0;
  // In bf16 a tensor's own error says more of its size than of the code (a key's gradient nearly cancels in the softmax), so the promise is
  // kept by the gradient as a whole and each tensor has a looser bound. A parameter of one number (xIELU's) has a sum of both signs over
  // all tokens as its gradient, which may cancel by chance: in bf16 those of all layers are compared as one tensor.
  std::vector<float> ours, theirs, our_scalars, their_scalars;
  for (const Parameter& p : engine->layout().table) {
    if (!p.trained) continue;
    const auto mine = engine->gradient_of(p.name), reference = floats(file_, "gradients/" + p.name);
    if (moves_nothing(deck_.model, p)) {
      EXPECT_LT(norm_of(mine), (bf16 ? 2e-2 : 1e-5) * norm_of(engine->gradient_of("embedding.weight"))) << p.name;
      continue;
    }
    if (bf16 && mine.size() == 1) {
      our_scalars.push_back(mine[0]), their_scalars.push_back(reference[0]);
    } else {
      const double error = relative_error(mine, reference);
      EXPECT_LT(error, bf16 ? 8e-2 : 1e-4) << p.name;
      worst = std::max(worst, error);
    }
    ours.insert(ours.end(), mine.begin(), mine.end());
    theirs.insert(theirs.end(), reference.begin(), reference.end());
  }
  if (!our_scalars.empty()) {
    const double error = relative_error(our_scalars, their_scalars);
    EXPECT_LT(error, 8e-2) << "the parameters of one number";
    worst = std::max(worst, error);
  }
  EXPECT_LT(relative_error(ours, theirs), bf16 ? 2e-2 : 1e-5);
  note("gradients", relative_error(ours, theirs)), note("worst_gradient", worst);
}

TEST_P(Parity, TenSteps) {
  auto engine = make_engine();
  set_fixture_weights(*engine);
  const auto tokens = integers(file_, "steps/tokens"), targets = integers(file_, "steps/targets");
  const auto losses = floats(file_, "steps/losses"), norms = floats(file_, "steps/grad_norms");
  const bool bf16 = GetParam().bf16;
  // In bf16 the order of a product's sums, which is the processor's, decides a router's choice where two scores are nearer than a rounding.
  // One token of a step then has the gradient of another expert: the norm may differ by what one token weighs, besides the rounding.
  const auto tokens_of_step = static_cast<double>(tokens.size()) / static_cast<double>(losses.size());
  const double of_norm = !bf16 ? 1e-4 : deck_.model.experts > 0 ? 2e-2 + 1 / tokens_of_step : 2e-2;
  double worst = 0, of_weights = 0;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    set_batch(*engine, tokens, targets, step * tokens.size() / losses.size());
    const StepReport report = engine->step();
    EXPECT_NEAR(report.loss / losses[step], 1, bf16 ? 2e-2 : 1e-5) << "step " << step;
    EXPECT_NEAR(report.grad_norm / norms[step], 1, of_norm) << "step " << step;
    worst = std::max(worst, std::abs(report.loss / losses[step] - 1));
  }
  for (const Parameter& p : engine->layout().table) {
    if (moves_nothing(deck_.model, p)) continue;
    const double error = relative_error(engine->weight_of(p.name), floats(file_, "final_weights/" + p.name));
    EXPECT_LT(error, bf16 ? 2e-2 : 1e-4) << p.name;
    of_weights = std::max(of_weights, error);
  }
  note("ten_steps_loss", worst), note("ten_steps_weights", of_weights);
}

TEST_P(Parity, LogitsTokenByToken) {
  const auto stored = integers(file_, "tokens");
  const std::vector<std::int32_t> tokens(stored.begin(), stored.end());
  const auto dims = dims_of(file_, "logits");
  auto engine = make_engine({.prompt = dims[1], .capacity = dims[1]});
  set_fixture_weights(*engine);
  std::vector<float> ours;
  for (std::int64_t b = 0; b < dims[0]; ++b) {
    const auto sequence = std::span(tokens).subspan(static_cast<std::size_t>(b * dims[1]), static_cast<std::size_t>(dims[1]));
    Decoder decoder(*engine);
    for (std::int32_t token : sequence) {
      decoder.next(token);
      const auto logits = decoder.logits();
      ours.insert(ours.end(), logits.begin(), logits.end());
    }
    // The last ones from the whole sequence in one pass.
    Decoder whole(*engine);
    whole.start(sequence);
    const auto last = whole.logits();
    EXPECT_LT(relative_error({last.begin(), last.end()}, {ours.end() - dims[2], ours.end()}), GetParam().bf16 ? 2e-2 : 1e-5) << b;
  }
  EXPECT_LT(relative_error(ours, floats(file_, "logits")), GetParam().bf16 ? 2e-2 : 1e-5);
  note("logits", relative_error(ours, floats(file_, "logits")));
}

/// In the emulator each fixture in one of the three ways, which is drawn.
std::vector<Case> cases() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) names.push_back(entry.path().stem());
  std::sort(names.begin(), names.end());
  std::vector<Case> result;
  [[maybe_unused]] std::size_t fixture = 0;
  for (const std::string& name : names) {
    const Case ways[] = {{name, false, false}, {name, true, false}, {name, false, true}};
    result.insert(result.end(), std::begin(ways), std::end(ways));
#ifdef TESSERA_CUDA
    for (std::size_t way = 0; way < std::size(ways); ++way) {
#ifdef TESSERA_EMULATED_GPU
      if (!test::Sample::takes(fixture + way, std::size(ways))) continue;
#endif
      result.push_back(ways[way]);
      result.back().device = "cuda";
    }
    ++fixture;
#endif
  }
  return result;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Parity, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.fixture + (info.param.bf16 ? "_bf16" : "_fp32") + (info.param.reproducible ? "_reproducible" : "") +
         (info.param.device == "cuda" ? "_cuda" : "");
});

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::KernelRuntime runtime(2, tessera::spaces_of(tessera::choose_device(tessera::RunDevice::automatic)));
  return tessera::run_all_tests();
}
