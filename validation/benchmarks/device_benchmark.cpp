// Speed of the GPU's kernels, each beside a limit measured in the same run: memory-bound kernels beside a copy, products beside the best of
// cuBLASLt, attention beside a product. Contenders take turns, so that clocks and heat weigh on all alike; medians over turns, timed by
// events. With --json each number is one object on a line of its own, and so is the failure of a group, which costs the others nothing
// (but where CUDA itself stays broken: then start each group in a process of its own). On validation/emulator it runs too, where the
// numbers mean nothing.
//   device_benchmark [--mib N] [--tokens N] [--width N] [--context N] [--repeat N] [--search SECONDS] [--group NAME] [--only TEXT] [--json]
//   device_benchmark --list          names of the groups; each is measured and printed before the next one starts
//   device_benchmark --describe      one JSON object: the GPU and the versions of CUDA; fails where there is no GPU
#include "device_benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <set>
#include "base/json.hpp"

#include "base/check.hpp"
#include "kernels/cuda/devices.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace tessera::benchmarks {

DeviceMemory::DeviceMemory(std::size_t bytes) : size_(std::max<std::size_t>(bytes, 256)) {
  TESSERA_CUDA_CHECK(cudaMalloc(&data_, size_));
  TESSERA_CUDA_CHECK(cudaMemset(data_, 0, size_));
}
DeviceMemory::~DeviceMemory() { cudaFree(data_); }

double Contender::rate() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return amount / sorted[sorted.size() / 2];
}

void* Part::bytes(std::size_t bytes) {
  memory.push_back(std::make_shared<DeviceMemory>(bytes));
  return memory.back()->data();
}

void* Part::values(std::int64_t n, DType dtype) {
  const kernels::Context context{.workspace = {}, .backend = kernels::Backend::cuda};
  void* out = bytes(static_cast<std::size_t>(n) * size_of(dtype));
  if (dtype == DType::f32) {
    kernels::normal(context, static_cast<float*>(out), n, 1, memory.size(), 1, 0);
    return out;
  }
  // bf16 by pieces through one buffer of fp32.
  const std::int64_t piece = std::min<std::int64_t>(n, 1 << 24);
  DeviceMemory staging(static_cast<std::size_t>(piece) * 4);
  for (std::int64_t at = 0; at < n; at += piece) {
    const std::int64_t length = std::min(piece, n - at);
    kernels::normal(context, staging.as<float>(), length, 1, memory.size(), 1, static_cast<std::uint64_t>(at));
    kernels::cast(context, static_cast<bf16*>(out) + at, dtype, staging.data(), DType::f32, length);
  }
  TESSERA_CUDA_CHECK(cudaDeviceSynchronize());
  return out;
}

void* Part::copy_of(const void* host, std::size_t size) {
  void* out = bytes(size);
  TESSERA_CUDA_CHECK(cudaMemcpy(out, host, size, cudaMemcpyHostToDevice));
  return out;
}

double time_once(cudaStream_t stream, const std::function<void(cudaStream_t)>& run) {
  struct Events {
    cudaEvent_t begin = nullptr, end = nullptr;
    Events() {
      TESSERA_CUDA_CHECK(cudaEventCreate(&begin));
      TESSERA_CUDA_CHECK(cudaEventCreate(&end));
    }
  };
  static const Events events;  // for the life of the program
  TESSERA_CUDA_CHECK(cudaEventRecord(events.begin, stream));
  run(stream);
  TESSERA_CUDA_CHECK(cudaEventRecord(events.end, stream));
  TESSERA_CUDA_CHECK(cudaEventSynchronize(events.end));
  float milliseconds = 0;
  TESSERA_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, events.begin, events.end));
  return std::max(1e-9, static_cast<double>(milliseconds) * 1e-3);
}

namespace {

Json describe() {
  cudaDeviceProp properties{};
  int device = 0, driver = 0, runtime = 0;
  TESSERA_CUDA_CHECK(cudaGetDevice(&device));
  TESSERA_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  TESSERA_CUDA_CHECK(cudaDriverGetVersion(&driver));
  TESSERA_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  const auto version = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  return {{"gpu", properties.name},
          {"compute_capability", fmt::format("{}.{}", properties.major, properties.minor)},
          {"multiprocessors", properties.multiProcessorCount},
          {"memory_bytes", properties.totalGlobalMem},
          {"driver_cuda", version(driver)},
          {"runtime_cuda", version(runtime)}};
}

/// One warm call of each, then turns.
void measure(Part& part, const Settings& settings) {
  std::set<std::string> limits;  // of those that are wanted; each may have one of its own
  const auto wanted = [&](const Contender& c) {
    return c.limit.empty() || c.name.find(settings.only) != std::string::npos || limits.contains(c.name) || limits.contains(c.stands_for);
  };
  for (int depth = 0; depth < 2; ++depth)
    for (const Contender& c : part.contenders)
      if (wanted(c)) limits.insert(c.limit);
  std::erase_if(part.contenders, [&](const Contender& c) { return !wanted(c); });
  for (Contender& c : part.contenders) time_once(nullptr, c.run);
  for (std::int64_t turn = 0; turn < settings.repeat; ++turn)
    for (Contender& c : part.contenders) c.seconds.push_back(time_once(nullptr, c.run));
}

Json rows_of(const Part& part) {
  struct Limit {
    double rate = 0;
    std::string name;
  };
  std::map<std::string, Limit> limits;
  for (const Contender& c : part.contenders)
    for (const std::string& name : {c.name, c.stands_for})
      if (!name.empty() && c.rate() > limits[name].rate) limits[name] = {c.rate(), c.name};
  auto rows = Json::array();
  for (const Contender& c : part.contenders) {
    const double unit = c.flops ? 1e12 : 1e9;
    Json row{{"name", c.name}, {"unit", c.flops ? "TFLOP/s" : "GB/s"}, {"value", c.rate() / unit}, {"amount", c.amount}};
    if (!c.limit.empty()) {
      const Limit& limit = limits.at(c.limit);
      row["limit"] = limit.name == c.limit ? c.limit : fmt::format("{} ({})", c.limit, limit.name);
      row["limit_value"] = limit.rate / unit;
      row["share"] = c.rate() / limit.rate;
      if (c.target > 0) row["target"] = c.target;
    }
    rows.push_back(row);
  }
  return rows;
}

void print(const Json& rows, bool json) {
  for (const auto& row : rows) {
    if (json) {
      fmt::print("{}\n", row.dump());
      continue;
    }
    fmt::print("{:44} {:9.2f} {}", row["name"].get<std::string>(), row["value"].get<double>(), row["unit"].get<std::string>());
    if (row.contains("share")) fmt::print("  {:6.1f} % of {}", 100 * row["share"].get<double>(), row["limit"].get<std::string>());
    fmt::print("\n");
  }
  std::fflush(stdout);
}

std::vector<Group> groups_of(const Settings& settings) {
  std::vector<Group> groups;
  for (auto* some : {memory_bound_groups, product_groups, room_groups, decode_groups, attention_groups})
    for (Group& group : some())
      if (settings.group.empty() || group.name == settings.group) groups.push_back(std::move(group));
  if (groups.empty()) fail(ExitCode::usage, "there is no group {}: device_benchmark --list names them", settings.group);
  return groups;
}

/// What the group failed of; empty where it was measured.
std::string measure_group(const Group& group, const Settings& settings) {
  try {
    Part part;
    group.add(part, settings);
    measure(part, settings);
    print(rows_of(part), settings.json);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

int run(const Settings& settings) {
  const std::vector<Group> groups = groups_of(settings);
  if (settings.list) {
    for (const Group& group : groups) fmt::print("{}\n", group.name);
    return 0;
  }
  if (const std::string why = cuda::why_no_device(); !why.empty())
    fail(ExitCode::environment, "there is no GPU to measure on this machine ({})", why);
  if (settings.describe) {
    fmt::print("{}\n", describe().dump());
    return 0;
  }
  bool good = true;
  for (const Group& group : groups) {
    const std::string error = measure_group(group, settings);
    if (error.empty()) continue;
    good = false;
    if (settings.json) fmt::print("{}\n", Json{{"name", group.name}, {"error", error}}.dump());
    std::fflush(stdout);
    fmt::print(stderr, "device_benchmark: {}: {}\n", group.name, error);
  }
  return good ? 0 : static_cast<int>(ExitCode::environment);
}

std::int64_t number(const std::string& option, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1)
    fail(ExitCode::usage, "{} takes a number of at least 1, and {} is none", option, text);
  return value;
}

Settings parse(int argc, char** argv) {
  Settings s;
  const std::map<std::string, std::int64_t*> numbers{{"--mib", &s.mib},         {"--tokens", &s.tokens}, {"--width", &s.width},
                                                     {"--context", &s.context}, {"--repeat", &s.repeat}, {"--search", &s.search}};
  const std::map<std::string, std::string*> texts{{"--only", &s.only}, {"--group", &s.group}};
  const std::map<std::string, bool*> flags{{"--json", &s.json}, {"--describe", &s.describe}, {"--list", &s.list}};
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (auto flag = flags.find(option); flag != flags.end()) {
      *flag->second = true;
      continue;
    }
    auto found = numbers.find(option);
    auto text = texts.find(option);
    if ((found == numbers.end() && text == texts.end()) || i + 1 == argc)
      fail(ExitCode::usage, "{} is unknown or lacks its value: the head of device_benchmark.cpp lists the options", option);
    if (text != texts.end())
      *text->second = argv[++i];
    else
      *found->second = number(option, argv[++i]);
  }
  return s;
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  try {
    return tessera::benchmarks::run(tessera::benchmarks::parse(argc, argv));
  } catch (const tessera::Error& error) {
    fmt::print(stderr, "device_benchmark: {}\n", error.what());
    return static_cast<int>(error.code);
  }
}
