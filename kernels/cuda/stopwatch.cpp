#include "kernels/cuda/stopwatch.hpp"

namespace tessera::cuda {

Stopwatch::Stopwatch(const Streams& streams, std::span<const std::size_t> laps) : streams_(&streams), zero_(make_event()) {
  for (std::size_t count : laps) {
    Lane& lane = lanes_.emplace_back();
    for (std::size_t i = 0; i < count; ++i) lane.laps.emplace_back(make_event(), make_event());
  }
}

Stopwatch::Event Stopwatch::make_event() {
  cudaEvent_t event = nullptr;
  TESSERA_CUDA_CHECK(cudaEventCreate(&event));
  return Event(event);
}

void Stopwatch::zero() const { TESSERA_CUDA_CHECK(cudaEventRecord(zero_.get(), (*streams_)[0])); }

void Stopwatch::start(std::size_t lane) {
  Lane& mine = lanes_[lane];
  TESSERA_CUDA_REQUIRE(mine.started < mine.laps.size());
  TESSERA_CUDA_CHECK(cudaEventRecord(mine.laps[mine.started++].first.get(), (*streams_)[lane]));
}

void Stopwatch::stop(std::size_t lane) {
  Lane& mine = lanes_[lane];
  TESSERA_CUDA_REQUIRE(mine.stopped < mine.started);
  TESSERA_CUDA_CHECK(cudaEventRecord(mine.laps[mine.stopped++].second.get(), (*streams_)[lane]));
}

std::pair<double, double> Stopwatch::lap(std::size_t lane, std::size_t number) const {
  TESSERA_CUDA_REQUIRE(number < lanes_[lane].stopped);
  const auto& [begin, end] = lanes_[lane].laps[number];
  return {seconds(begin), seconds(end)};
}

double Stopwatch::seconds(const Event& event) const {
  float milliseconds = 0;
  TESSERA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, zero_.get(), event.get()));
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace tessera::cuda
