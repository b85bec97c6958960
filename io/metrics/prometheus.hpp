// Families where Prometheus finds them: served over HTTP, or in a file that a node exporter reads. What steps do for either is to hand a
// list over: they wait for no reader and no disk.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/listen_address.hpp"
#include "io/metrics/families.hpp"

namespace tessera::io {

/// Whether this build has prometheus-cpp.
bool has_prometheus();
/// Error(environment) where it has not: `key` asks for it.
void require_prometheus(const std::string& key);

/// Hands the latest of what one thread makes to another one. Neither waits: what is not taken before the next one comes is gone.
template <class T>
class Handover {
 public:
  Handover() = default;
  Handover(const Handover&) = delete;
  ~Handover() { put(nullptr); }
  void put(std::unique_ptr<T> latest) { delete latest_.exchange(latest.release()); }
  /// Null where there is nothing new.
  std::unique_ptr<T> take() { return std::unique_ptr<T>(latest_.exchange(nullptr)); }

 private:
  std::atomic<T*> latest_{nullptr};
};

/// Serves /metrics, and nothing else, on three threads of its own, which run when nothing else wants their core. It has two
/// conversations at a time; a few more wait, and whoever is silent for two seconds is left.
class MetricsEndpoint {
 public:
  /// Error(environment) with `key` where nothing can listen there.
  MetricsEndpoint(const ListenAddress& address, const std::string& key);
  ~MetricsEndpoint();
  /// With the port that was found.
  const ListenAddress& address() const;
  void publish(const Families& families);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// PATH, replaced as a whole, at most once a second, by a thread of its own.
class MetricsTextFile {
 public:
  explicit MetricsTextFile(std::string path);
  /// The file stays, with what was published last.
  ~MetricsTextFile();
  void publish(const Families& families) { latest_.put(std::make_unique<Families>(families)); }
  /// Nothing follows, and the file goes.
  void remove();

 private:
  void loop();
  void write();
  std::string path_;
  Handover<Families> latest_;
  bool failed_ = false;  ///< the last write; that is said once
  std::mutex mutex_;
  bool ends_ = false;  ///< guarded by mutex_
  std::condition_variable end_;
  std::thread thread_;  // last: it uses the others
};

/// As Prometheus reads it: text format 0.0.4.
std::string exposition_text(const Families& families);

}  // namespace tessera::io
