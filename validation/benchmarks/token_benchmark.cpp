// What checksums of token blocks cost: samples in random order from the page cache, with and without, interleaved; and the scan of a file
// that has none.   token_benchmark FOLDER [MiB]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "base/clock.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokens/tokens.hpp"

namespace {

using namespace tessera;
constexpr std::int64_t vocab = 50257;

std::vector<std::uint16_t> random_ids(std::int64_t count) {
  std::mt19937 engine(1);
  std::vector<std::uint16_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids) id = static_cast<std::uint16_t>(engine() % vocab);
  return ids;
}

std::string write_bin(const std::string& folder, const std::vector<std::uint16_t>& ids) {
  const std::string path = folder + "/token_benchmark.bin";
  io::PosixFile::create(path).write(0, ids.data(), ids.size() * 2);
  return path;
}

std::string write_hdf5(const std::string& folder, const std::vector<std::uint16_t>& ids) {
  const std::string path = folder + "/token_benchmark.h5";
  auto file = io::hdf5::File::create(path, {}, ExitCode::storage);
  file.create_extendible("tokens", io::hdf5::Element::u16, 1 << 18).append<std::uint16_t>(ids);
  file.close();
  return path;
}

/// Seconds a sample of T + 1 tokens, over `order`.
double seconds_a_sample(const io::TokenFile& file, std::int64_t T, const std::vector<std::int64_t>& order) {
  std::vector<std::int32_t> window(static_cast<std::size_t>(T + 1));
  const double begin = now_seconds();
  for (auto sample : order) file.read(sample * T, window, vocab);
  return (now_seconds() - begin) / static_cast<double>(order.size());
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(const std::string& path, std::int64_t T) {
  constexpr int rounds = 9;
  std::vector<double> without, first, later, scan;
  for (int round = 0; round < rounds; ++round) {
    const io::TokenFile plain(path);
    io::TokenFile checked(path);
    const double begin = now_seconds();
    auto sums = checked.scan(0, checked.blocks(), vocab);
    scan.push_back(now_seconds() - begin);
    checked.accept(std::move(sums));
    std::vector<std::int64_t> order(static_cast<std::size_t>((plain.tokens() - 1) / T));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, std::mt19937(static_cast<unsigned>(round)));
    without.push_back(seconds_a_sample(plain, T, order));
    first.push_back(seconds_a_sample(checked, T, order));  // each block is copied and compared for each sample
    later.push_back(seconds_a_sample(checked, T, order));
  }
  const auto bytes = static_cast<double>(io::TokenFile(path).bytes());
  std::printf("%-8s T=%-5lld without %7.2f us a sample   first epoch %7.2f us   later %7.2f us   scan %5.2f GB/s\n",
              path.substr(path.rfind('.')).c_str(), static_cast<long long>(T), 1e6 * median(without), 1e6 * median(first),
              1e6 * median(later), 1e-9 * bytes / median(scan));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const std::int64_t mib = argc > 2 ? std::atoll(argv[2]) : 16;
  const auto ids = random_ids(mib << 19);
  for (const std::string& path : {write_bin(folder, ids), write_hdf5(folder, ids)}) {
    for (std::int64_t T : {128, 1024, 4096}) measure(path, T);
    std::remove(path.c_str());
  }
  return 0;
}
