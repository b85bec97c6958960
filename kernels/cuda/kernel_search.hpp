// Which of several codes runs an operation on this GPU: what a library or a rule proposes, or the fastest of a search. Only in a build with
// CUDA.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>

namespace tessera::kernels::cuda {

/// While one lives, operations search: of one that the process meets for the first time they time the candidates on the operands that they
/// are given, whose contents are lost, and keep the fastest: gemm cuBLASLt's algorithms, attention our kernels and cuDNN's. One at a time.
class KernelSearch {
 public:
  struct Wanted {
    bool products = true;   ///< search gemm, but for reproducible products
    bool attention = true;  ///< search attention whose path is `fastest`
  };
  /// Takes earlier choices from `file`. They hold for one kind of GPU and one version of cuBLASLt: those of others are left alone, and a
  /// file that cannot be read is none.
  explicit KernelSearch(std::string file) : KernelSearch(std::move(file), Wanted{}) {}
  KernelSearch(std::string file, Wanted wanted);
  /// Does not write.
  ~KernelSearch();
  KernelSearch(const KernelSearch&) = delete;
  KernelSearch& operator=(const KernelSearch&) = delete;

  /// Adds what was found to the file, for the next start. Choices of other GPUs stay in it. False where it cannot be written.
  bool save() const;

  /// The choice for an operation of this name; null where none is known.
  const std::string* find(const std::string& operation) const;
  void keep(const std::string& operation, std::string choice);
  std::int64_t searched() const { return searched_; }
  const Wanted& wanted() const { return wanted_; }
  static KernelSearch* active();

 private:
  std::string file_, machine_;
  Wanted wanted_;
  std::map<std::string, std::string> choices_;
  std::int64_t searched_ = 0;
};

/// The best of a few runs in seconds, or the first one's where that already is hopeless beside `known`. `run` gives its work to `stream`
/// (cudaStream_t) and has run before, so that its code is loaded.
float best_seconds(void* stream, const std::function<void()>& run, float known = std::numeric_limits<float>::infinity());

}  // namespace tessera::kernels::cuda
