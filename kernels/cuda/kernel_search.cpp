#include "kernels/cuda/kernel_search.hpp"

#include <cublasLt.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include "base/json.hpp"

#include "base/check.hpp"
#include "base/own_files.hpp"
#include "kernels/cuda/runtime.hpp"

namespace tessera::kernels::cuda {
namespace {

KernelSearch* g_active = nullptr;

std::string this_machine() {
  int device = 0;
  cudaDeviceProp properties{};
  TESSERA_CUDA_CHECK(cudaGetDevice(&device));
  TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return fmt::format("{}, cuBLASLt {}", properties.name, cublasLtGetVersion());
}

/// The file's object, empty where there is none that can be read.
Json object_in(const std::string& file) {
  std::ifstream in(file);
  const std::optional<Json> all = Json::try_parse(std::string(std::istreambuf_iterator<char>(in), {}));
  return all && all->is_object() ? *all : Json::object();
}

}  // namespace

KernelSearch::KernelSearch(std::string file, Wanted wanted) : file_(std::move(file)), machine_(this_machine()), wanted_(wanted) {
  TESSERA_REQUIRE(!g_active, "a search is running already");
  const Json all = object_in(file_);
  if (const Json* mine = all.find(machine_); mine && mine->is_object())
    for (const auto& [operation, choice] : mine->items())
      if (choice.is_string()) choices_[operation] = choice;
  g_active = this;
}

KernelSearch::~KernelSearch() { g_active = nullptr; }

KernelSearch* KernelSearch::active() { return g_active; }

bool KernelSearch::save() const {
  if (searched_ == 0) return true;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = file_;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  Json all = object_in(file_);
  for (const auto& [operation, choice] : choices_) all[machine_][operation] = choice;
  // Written aside and moved: runs that start together leave one of their files, whole.
  const std::string aside = fmt::format("{}.{}", file_, getpid());
  const std::string text = all.dump(1) + "\n";
  const int out = create_file(aside.c_str());
  if (out < 0) return false;
  const bool whole = write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (close(out) != 0 || !whole) return fs::remove(aside, error), false;
  fs::rename(aside, path, error);
  return !error;
}

const std::string* KernelSearch::find(const std::string& operation) const {
  const auto found = choices_.find(operation);
  return found == choices_.end() ? nullptr : &found->second;
}

void KernelSearch::keep(const std::string& operation, std::string choice) {
  choices_[operation] = std::move(choice);
  ++searched_;
}

float best_seconds(void* on, const std::function<void()>& run, float known) {
  constexpr int runs = 4;
  constexpr float hopeless = 1.3f, launch_seconds = 1e-5f;
  const auto stream = static_cast<cudaStream_t>(on);
  const auto mark = [&](cudaEvent_t event) { TESSERA_CUDA_CHECK(cudaEventRecord(event, stream)); };
  cudaEvent_t event[runs + 1];
  for (cudaEvent_t& e : event) TESSERA_CUDA_CHECK(cudaEventCreate(&e));
  float best = std::numeric_limits<float>::infinity();
  const auto time = [&](int first, int last) {
    TESSERA_CUDA_CHECK(cudaEventSynchronize(event[last]));
    for (int i = first; i < last; ++i) {
      float milliseconds = 0;
      TESSERA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event[i], event[i + 1]));
      best = std::min(best, milliseconds * 1e-3f);
    }
  };
  mark(event[0]);
  run(), mark(event[1]);
  time(0, 1);
  if (best < hopeless * known + launch_seconds) {
    mark(event[1]);
    for (int i = 2; i <= runs; ++i) run(), mark(event[i]);
    time(1, runs);
  }
  for (cudaEvent_t e : event) cudaEventDestroy(e);
  return best;
}

}  // namespace tessera::kernels::cuda
