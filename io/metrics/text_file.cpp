#include <sched.h>
#include <unistd.h>

#include <chrono>

#include "base/log.hpp"
#include "io/files/posix_file.hpp"
#include "io/metrics/prometheus.hpp"

namespace tessera::io {

MetricsTextFile::MetricsTextFile(std::string path) : path_(std::move(path)) {
  thread_ = std::thread([this] { loop(); });
}

MetricsTextFile::~MetricsTextFile() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  end_.notify_one();
  thread_.join();
  write();
}

void MetricsTextFile::remove() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  end_.notify_one();
  thread_.join();
  ::unlink(path_.c_str());
}

void MetricsTextFile::loop() {
  const sched_param lowest{};
  ::sched_setscheduler(0, SCHED_IDLE, &lowest);  // as the endpoint's threads
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    write();
    lock.lock();
    end_.wait_for(lock, std::chrono::seconds(1), [&] { return ends_; });
  }
}

void MetricsTextFile::write() {
  const std::unique_ptr<Families> families = latest_.take();
  if (!families) return;
  try {
    const std::string text = exposition_text(*families);
    AtomicFile fresh(path_);
    fresh.file().write(0, text.data(), text.size());
    fresh.commit();
    failed_ = false;
  } catch (const Error& error) {
    if (!failed_) warning("metrics.prometheus_folder: {} The run continues, and the file is tried again.", error.what());
    failed_ = true;
  }
}

}  // namespace tessera::io
