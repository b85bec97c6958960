// How long what streams are given takes, by timing events before and after it.
#pragma once
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/streams.hpp"

namespace tessera::cuda {

/// All events are made before, so that taking a time only records one.
class Stopwatch {
 public:
  /// Has laps[lane] laps for each lane of `streams`, which must live as long.
  Stopwatch(const Streams& streams, std::span<const std::size_t> laps);

  /// Times count from the end of what lane 0 has been given so far.
  void zero() const;
  /// What `lane` is given from start to stop is its next lap.
  void start(std::size_t lane);
  void stop(std::size_t lane);
  /// Begin and end of a lane's lap, which the device must have done, in seconds. Both are single precision milliseconds from one zero:
  /// rounded, but never out of order.
  std::pair<double, double> lap(std::size_t lane, std::size_t number) const;

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;
  struct Lane {
    std::vector<std::pair<Event, Event>> laps;
    std::size_t started = 0, stopped = 0;
  };
  static Event make_event();
  double seconds(const Event& event) const;

  const Streams* streams_;
  Event zero_;
  std::vector<Lane> lanes_;
};

}  // namespace tessera::cuda
