#include "kernels/gemm/gemm_search.hpp"

#include <cublasLt.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "kernels/cuda/runtime.hpp"

namespace tessera::kernels::cuda {
namespace {

using Json = nlohmann::json;

GemmSearch* g_active = nullptr;

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
  Json all = Json::parse(in, nullptr, false);
  return all.is_object() ? all : Json::object();
}

}  // namespace

GemmSearch::GemmSearch(std::string file) : file_(std::move(file)), machine_(this_machine()) {
  TESSERA_REQUIRE(!g_active, "a search for products is under way already");
  const Json all = object_in(file_);
  if (auto mine = all.find(machine_); mine != all.end() && mine->is_object())
    for (const auto& [product, algorithm] : mine->items())
      if (algorithm.is_string()) choices_[product] = algorithm;
  g_active = this;
}

GemmSearch::~GemmSearch() { g_active = nullptr; }

GemmSearch* GemmSearch::active() { return g_active; }

bool GemmSearch::save() const {
  if (searched_ == 0) return true;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path path = file_;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  Json all = object_in(file_);
  for (const auto& [product, algorithm] : choices_) all[machine_][product] = algorithm;
  // Written aside and moved: runs that start together leave one of their files, whole.
  const std::string aside = fmt::format("{}.{}", file_, getpid());
  {
    std::ofstream out(aside);
    out << all.dump(1) << "\n";
    if (!out.good()) return fs::remove(aside, error), false;
  }
  fs::rename(aside, path, error);
  return !error;
}

const std::string* GemmSearch::find(const std::string& product) const {
  const auto found = choices_.find(product);
  return found == choices_.end() ? nullptr : &found->second;
}

void GemmSearch::keep(const std::string& product, std::string algorithm) {
  choices_[product] = std::move(algorithm);
  ++searched_;
}

}  // namespace tessera::kernels::cuda
