// Nothing allocates in the step loop after the first step, nor for a token of a decoder after the first: every allocation of the process is
// counted, whoever makes it (ours, oneDNN's, OpenMP's, MPICH's), but for the thread that talks to other ranks of their health once a
// second.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "memory/runtime.hpp"
#include "topology/communicators/make_communicator.hpp"
#include "train/engine/engine.hpp"
#include "train/text/decoder.hpp"

extern "C" {
void* __libc_malloc(std::size_t);                 // NOLINT
void* __libc_calloc(std::size_t, std::size_t);    // NOLINT
void* __libc_realloc(void*, std::size_t);         // NOLINT
void* __libc_memalign(std::size_t, std::size_t);  // NOLINT
}

namespace {
std::atomic<bool> counting{false};
std::atomic<long> allocations{0};
/// Where the first counted allocation came from, for the message.
void* first_trace[24];
std::atomic<int> first_depth{0};

bool from_onednn(void* const* trace, int depth) {
  for (int i = 0; i < depth; ++i) {
    Dl_info info;
    if (dladdr(trace[i], &info) && info.dli_fname && std::strstr(info.dli_fname, "libdnnl")) return true;
  }
  return false;
}

bool on_watch_thread() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::string_view(name) == "watch";
}

thread_local bool looking = false;  // backtrace itself may allocate

void note() {
  if (!counting.load(std::memory_order_relaxed) || looking || on_watch_thread()) return;
  looking = true;
  void* trace[24];
  const int depth = backtrace(trace, 24);
  if (!from_onednn(trace, depth) && allocations.fetch_add(1) == 0) {
    std::copy(trace, trace + depth, first_trace);
    first_depth = depth;
  }
  looking = false;
}
}  // namespace

extern "C" {
void* malloc(std::size_t n) { return note(), __libc_malloc(n); }
void* calloc(std::size_t n, std::size_t m) { return note(), __libc_calloc(n, m); }
void* realloc(void* p, std::size_t n) { return note(), __libc_realloc(p, n); }
void* memalign(std::size_t a, std::size_t n) { return note(), __libc_memalign(a, n); }
void* aligned_alloc(std::size_t a, std::size_t n) { return note(), __libc_memalign(a, n); }
int posix_memalign(void** out, std::size_t a, std::size_t n) {
  note();
  *out = __libc_memalign(a, n);
  return *out ? 0 : ENOMEM;
}
}

namespace tessera {
namespace {

World* world = nullptr;

struct Case {
  int stage;
  const char* dtype;
  bool reproducible;
  LaneMode lanes;
  const char* model = "";  ///< more keys of the model
};

class StepAllocations : public testing::TestWithParam<Case> {};

TEST_P(StepAllocations, NoneAfterTheFirstStep) {
  const Case& c = GetParam();
  const std::string text = fmt::format(
      "[run]\nsteps = 8\nreproducible = {}\n[model]\nlayers = 2\nwidth = 64\nheads = 4\nkv_heads = 2\nff_width = 96\nvocab = 301\n{}"
      "[batch]\nglobal = 12\nmicro = 2\nsequence_length = 40\n[data]\ntrain = \"none.bin\"\n[optimizer]\nlearning_rate = 1e-3\n"
      "[learning_rate]\nwarmup_steps = 1\n[precision]\ncompute = \"{}\"\n[zero]\nstage = {}\n",
      c.reproducible, c.model, c.dtype, c.stage);
  const Deck deck = require_deck(parse_deck_text(text, "test", {}, world->ranks()));
  const Mesh mesh = make_mesh(deck, world->ranks());
  RunPlan plan = plan_run(request_for(deck, mesh, world->rank(), Purpose::training));
  std::optional<Node> node;
  RankLinks links;
  if (world->ranks() > 1) {
    links.node = &node.emplace(*world);
    links.communicators = make_communicators(*world, mesh, wanted_communicators(plan.schedule), {.node = &*node});
  }
  Engine engine(std::move(plan), {.lanes = c.lanes}, std::move(links));
  engine.initialise_weights();
  for (std::int64_t m = 0; m < engine.accumulation(); ++m)
    for (std::size_t i = 0; i < engine.tokens(m).size(); ++i)
      engine.tokens(m)[i] = static_cast<std::int32_t>(i * 7 % 301), engine.targets(m)[i] = static_cast<std::int32_t>((i * 7 + 7) % 301);
  engine.step();
  allocations = 0;
  counting = true;
  for (int step = 1; step < 4; ++step) engine.step();
  counting = false;
  if (allocations > 0) backtrace_symbols_fd(first_trace, first_depth, 2);
  EXPECT_EQ(allocations.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Grid, StepAllocations,
                         testing::Values(Case{0, "fp32", false, LaneMode::inline_order}, Case{3, "bf16", false, LaneMode::inline_order},
                                         Case{2, "fp32", true, LaneMode::inline_order}, Case{3, "bf16", true, LaneMode::threads},
                                         Case{2, "fp32", false, LaneMode::inline_order, "experts = 4\nshared_ff_width = 24\n"},
                                         Case{3, "bf16", true, LaneMode::threads, "experts = 4\nrouter_aux_loss = 0.01\n"}));

TEST(DecoderAllocations, NoneAfterTheFirstTokens) {
  if (world->rank() != 0) return;  // one process generates
  const Deck deck = require_deck(parse_deck_text(
      "[run]\nsteps = 8\n[model]\nlayers = 2\nwidth = 64\nheads = 4\nkv_heads = 2\nff_width = 96\nvocab = 301\nqk_norm = true\n"
      "[batch]\nglobal = 2\nmicro = 2\nsequence_length = 40\n[data]\ntrain = \"none.bin\"\n[optimizer]\nlearning_rate = 1e-3\n"
      "[precision]\ncompute = \"bf16\"\n",
      "test", {}, 1));
  BuildRequest request = request_for(deck, Mesh{}, 0, Purpose::generation);
  request.text = {.prompt = 5, .capacity = 40};
  Engine engine(plan_run(request));
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5};
  Decoder decoder(engine);
  decoder.start(prompt);
  decoder.next(6);
  allocations = 0;
  counting = true;
  for (std::int32_t token = 7; token < 30; ++token) decoder.next(token);
  counting = false;
  if (allocations > 0) backtrace_symbols_fd(first_trace, first_depth, 2);
  EXPECT_EQ(allocations.load(), 0);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return tessera::run_in_world({}, [](tessera::World& w) {
    tessera::world = &w;
    // One thread: a thread of OpenMP makes its own plan of a product when it first meets the shape, which may be in any step.
    tessera::KernelRuntime runtime(1);
    return RUN_ALL_TESTS();
  });
}
