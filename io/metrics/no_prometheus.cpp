// Of a build without prometheus-cpp: whoever asks for it is told what to install.
#include "base/check.hpp"
#include "io/metrics/prometheus.hpp"

namespace tessera::io {

struct MetricsEndpoint::Impl {
  ListenAddress address;
};

bool has_prometheus() { return false; }
void require_prometheus(const std::string& key) {
  fail(ExitCode::environment,
       "{}: this build has no prometheus-cpp. Install it (Debian: prometheus-cpp-dev; Spack and conda-forge: prometheus-cpp) and build "
       "again, or leave the key out; metrics.jsonl has the same figures",
       key);
}

MetricsEndpoint::MetricsEndpoint(const ListenAddress&, const std::string& key) { require_prometheus(key); }
MetricsEndpoint::~MetricsEndpoint() = default;
const ListenAddress& MetricsEndpoint::address() const { return impl_->address; }
void MetricsEndpoint::publish(const Families&) {}
std::string exposition_text(const Families&) { return ""; }

}  // namespace tessera::io
