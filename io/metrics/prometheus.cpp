#include "io/metrics/prometheus.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/text_serializer.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/check.hpp"

namespace tessera::io {
namespace {

prometheus::ClientMetric convert(const FamilySample& sample, FamilyType type) {
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  if (type == FamilyType::gauge) metric.gauge.value = sample.value;
  if (type == FamilyType::counter) metric.counter.value = sample.value;
  if (type != FamilyType::histogram) return metric;
  const Histogram& from = sample.histogram;
  metric.histogram.sample_count = from.count(), metric.histogram.sample_sum = from.sum();
  for (std::size_t i = 0; i < from.bounds().size(); ++i) metric.histogram.bucket.push_back({from.counts()[i], from.bounds()[i]});
  return metric;
}

std::vector<prometheus::MetricFamily> convert(const Families& families) {
  std::vector<prometheus::MetricFamily> converted;
  for (const Family& family : families) {
    const prometheus::MetricType type = family.type == FamilyType::gauge     ? prometheus::MetricType::Gauge
                                        : family.type == FamilyType::counter ? prometheus::MetricType::Counter
                                                                             : prometheus::MetricType::Histogram;
    converted.push_back({.name = family.name, .help = family.help, .type = type, .metric = {}});
    for (const FamilySample& sample : family.samples) converted.back().metric.push_back(convert(sample, family.type));
  }
  return converted;
}

/// What the server's threads ask: they alone wait for each other.
class Latest : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    const std::lock_guard lock(readers_);
    if (const std::unique_ptr<Families> fresh = handed.take()) shown_ = convert(*fresh);
    return shown_;
  }
  mutable Handover<Families> handed;

 private:
  mutable std::mutex readers_;
  mutable std::vector<prometheus::MetricFamily> shown_;  ///< guarded by readers_
};

int new_socket(int kind) { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | kind, 0); }
sockaddr_in place_of(const ListenAddress& address) {
  sockaddr_in place{};
  place.sin_family = AF_INET, place.sin_port = htons(static_cast<std::uint16_t>(address.port));
  inet_pton(AF_INET, address.host.c_str(), &place.sin_addr);
  return place;
}

/// The library does not say why nothing can listen at an address: asked of the system first.
std::string why_not(const ListenAddress& address) {
  const int descriptor = new_socket(0), on = 1;
  const sockaddr_in place = place_of(address);
  const bool good = descriptor >= 0 && ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                    ::bind(descriptor, reinterpret_cast<const sockaddr*>(&place), sizeof place) == 0 && ::listen(descriptor, 1) == 0;
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  return good ? "" : std::strerror(error);
}

/// In a thread of its own, whose class of scheduling the server's threads take over: they run when nothing else wants their core.
std::unique_ptr<prometheus::Exposer> serve(const ListenAddress& address) {
  std::unique_ptr<prometheus::Exposer> server;
  std::thread([&] {
    const sched_param lowest{};
    ::sched_setscheduler(0, SCHED_IDLE, &lowest);  // where that is forbidden, they run as others do
    try {
      server = std::make_unique<prometheus::Exposer>(std::vector<std::string>{"listening_ports", address.str(), "num_threads", "4",
                                                                              "request_timeout_ms", "500", "connection_queue", "8",
                                                                              "listen_backlog", "8", "enable_keep_alive", "no"});
    } catch (const std::exception&) {
      server = nullptr;  // somebody was faster than we at the port; the caller says so
    }
  }).join();
  return server;
}

/// The server's listener looks up every two seconds, or when somebody calls: so it is called until it has heard that it is to end.
void end(std::unique_ptr<prometheus::Exposer> server, const ListenAddress& address) {
  std::atomic<bool> ended{false};
  std::thread caller([&] {
    const sockaddr_in place = place_of(address);
    while (!ended) {
      const int call = new_socket(SOCK_NONBLOCK);
      if (call >= 0) static_cast<void>(::connect(call, reinterpret_cast<const sockaddr*>(&place), sizeof place)), ::close(call);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  server.reset();
  ended = true;
  caller.join();
}

}  // namespace

struct MetricsEndpoint::Impl {
  ListenAddress address;
  std::shared_ptr<Latest> latest = std::make_shared<Latest>();
  std::unique_ptr<prometheus::Exposer> server;  // last: its threads use the others
};

bool has_prometheus() { return true; }
void require_prometheus(const std::string&) {}

MetricsEndpoint::MetricsEndpoint(const ListenAddress& address, const std::string& key) : impl_(std::make_unique<Impl>()) {
  std::string fault = why_not(address);
  if (fault.empty()) impl_->server = serve(address);
  if (fault.empty() && !impl_->server) fault = "it was taken at this moment";
  if (!fault.empty())
    fail(ExitCode::environment,
         "{} = \"{}\": this address cannot be used: {}. Choose another port (0: any free one, which the log names), or an address of this "
         "node",
         key, address.str(), fault);
  impl_->address = address;
  impl_->address.port = impl_->server->GetListeningPorts().front();
  impl_->server->RegisterCollectable(impl_->latest);
}

MetricsEndpoint::~MetricsEndpoint() { end(std::move(impl_->server), impl_->address); }

const ListenAddress& MetricsEndpoint::address() const { return impl_->address; }
void MetricsEndpoint::publish(const Families& families) { impl_->latest->handed.put(std::make_unique<Families>(families)); }

std::string exposition_text(const Families& families) { return prometheus::TextSerializer().Serialize(convert(families)); }

}  // namespace tessera::io
