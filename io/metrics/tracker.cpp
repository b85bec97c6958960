#include "io/metrics/tracker.hpp"

#include <sched.h>

#include <chrono>
#include <fstream>
#include <random>

#include "base/check.hpp"
#include "base/log.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "io/tokenizer/child.hpp"
#include "io/tokenizer/worker.hpp"

namespace tessera::io {
namespace {

constexpr std::chrono::seconds import_patience{120}, last_patience{60};
constexpr std::size_t rows_at_once = 64;

/// The name that an earlier start has left; "" where there is none.
std::string recorded_id(const std::string& path) {
  if (!look_at(path).exists()) return "";
  const std::optional<Json> record = Json::try_parse(read_small_file(path, ExitCode::storage));
  return record && record->is_object() ? record->value("id", "") : "";
}

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

}  // namespace

Tracker::Tracker(TrackerRun run) : run_(std::move(run)) {
  if (look_at(run_.history).exists()) history_bytes_ = PosixFile::update(run_.history).size();
  child_ = start_worker(run_.python, tracker_text, endless_memory);
  try {
    const std::string version = ask_worker(*child_, "open", run_.package, import_patience);
    info("{}: rows are sent to {} {} while steps continue; {} holds all of them", run_.key, run_.package, version, run_.history);
  } catch (const Error& error) {
    fail(ExitCode::environment, "{} = \"{}\": {} Or leave the key out: metrics.jsonl holds every row.", run_.key,
         run_.asked.value("project", ""), error.what());
  }
  thread_ = std::thread([this] { loop(); });
}

Tracker::~Tracker() { end(false); }

void Tracker::write(const MetricRow& row) {
  std::string line = line_of(row);
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (failed_ || queue_.size() >= most_rows)
      first = !failed_ && dropped_ == 0, ++dropped_;
    else
      queue_.push_back(std::move(line));
  }
  changed_.notify_all();
  if (first)
    warning("{}: {} takes rows more slowly than the run makes them. From now on rows are dropped while {} wait; {} holds all", run_.key,
            run_.package, most_rows, run_.history);
}

void Tracker::end(bool well) {
  if (!thread_.joinable()) return;
  bool done = false;
  {
    std::unique_lock lock(mutex_);
    ends_ = true, well_ = well;
    changed_.notify_all();
    done = changed_.wait_for(lock, last_patience, [&] { return done_; });
  }
  if (!done) {
    warning("{}: {} has not taken the last rows within {} s; it is ended. {} holds all of them", run_.key, run_.package,
            last_patience.count(), run_.history);
    child_->cut();
  }
  thread_.join();
  if (dropped_ > 0)
    warning("{}: {} rows were not sent to {} in this start; {} holds all of them", run_.key, dropped_, run_.package, run_.history);
}

void Tracker::loop() {
  const sched_param lowest{};
  ::sched_setscheduler(0, SCHED_IDLE, &lowest);  // as the threads that Prometheus asks; where that is forbidden, it runs as others do
  try {
    begin();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) break;
      std::string lines;
      for (std::size_t n = 0; n < rows_at_once && !queue_.empty(); ++n) lines += queue_.front(), queue_.pop_front();
      lock.unlock();
      send(lines);
      lock.lock();
    }
    const bool well = well_;
    lock.unlock();
    ask_worker(*child_, "ends", well ? "well" : "badly");
  } catch (const Error& error) {
    warning("{}: {}. The run continues, but no more rows are sent to {}; {} holds all of them", run_.key, error.what(), run_.package,
            run_.history);
    const std::lock_guard lock(mutex_);
    failed_ = true, dropped_ += std::ssize(queue_);
    queue_.clear();
  }
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void Tracker::begin() {
  const std::string id = recorded_id(run_.record);
  Json asked = run_.asked;
  asked["kind"] = run_.package, asked["id"] = id, asked["fresh_id"] = random_id();
  const Json named = Json::parse(ask_worker(*child_, "init", asked.dump()));
  if (const std::string address = named.value("address", ""); !address.empty())
    info("{}: this run is {} at {}", run_.key, named.value("id", ""), address);
  if (!id.empty()) return;
  const std::string text = named.dump() + "\n";
  AtomicFile record(run_.record);
  record.file().write(0, text.data(), text.size());
  record.commit();
  send_history();
}

void Tracker::send_history() {
  std::ifstream in(run_.history, std::ios::binary);
  std::string lines;
  std::int64_t at = 0;
  std::size_t rows = 0;
  for (std::string line; at < history_bytes_ && std::getline(in, line);) {
    at += std::ssize(line) + 1;
    lines += line + "\n";
    if (++rows % rows_at_once == 0) send(std::exchange(lines, ""));
  }
  if (!lines.empty()) send(lines);
}

void Tracker::send(const std::string& lines) { ask_worker(*child_, "rows", lines); }

}  // namespace tessera::io
