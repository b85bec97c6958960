// Which of cuBLASLt's algorithms runs a product: its first choice, or the fastest of a search. Only in a build with CUDA.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace tessera::kernels::cuda {

/// While one lives, gemm searches: of a product that the process meets for the first time it times cuBLASLt's candidates on the operands
/// that it is given, whose contents are lost, and keeps the fastest. Reproducible products are never searched. One at a time.
class GemmSearch {
 public:
  /// Takes earlier choices from `file`. They hold for one kind of GPU and one version of cuBLASLt: those of others are left alone, and a
  /// file that cannot be read is none.
  explicit GemmSearch(std::string file);
  /// Does not write.
  ~GemmSearch();
  GemmSearch(const GemmSearch&) = delete;
  GemmSearch& operator=(const GemmSearch&) = delete;

  /// Adds what was found to the file, for the next start. Choices of other GPUs stay in it. False where it cannot be written.
  bool save() const;

  /// The algorithm of a product, as words of cuBLASLt; null where none is known.
  const std::string* find(const std::string& product) const;
  void keep(const std::string& product, std::string algorithm);
  std::int64_t searched() const { return searched_; }
  static GemmSearch* active();

 private:
  std::string file_, machine_;
  std::map<std::string, std::string> choices_;
  std::int64_t searched_ = 0;
};

}  // namespace tessera::kernels::cuda
