// What a process is doing, kept for the moment in which others ask why the run does not go on.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tessera {

/// A lane at a task.
struct TaskAt {
  std::string lane, task;
  double seconds = 0;  ///< so far
};

/// What a rank has computed since it began its steps: sums, so that whoever compares ranks needs no note of a certain step.
struct Spent {
  int role = 0;                           ///< ranks of the same role do the same work
  std::int64_t steps = 0;                 ///< the sums are of
  std::map<std::string, double> seconds;  ///< by kind of work: "forward"
};

/// What a process says of its own work.
struct RankWork {
  std::int64_t step = 0;  ///< that is under way, from 1 on; 0: none
  std::string program;    ///< of the schedule, that runs; empty outside
  std::vector<TaskAt> tasks;
  std::string beside;       ///< what it does where no task runs, or what tasks wait for that is no rank
  double longest_step = 0;  ///< seconds, of the latest; 0 while they are too few. Not told to others
  double still = -1;        ///< seconds since a task began or ended, or it turned to something else; below 0: not known
  Spent spent;
};

/// What another rank is told. Text between processes is print()'s.
struct Note {
  std::map<std::string, double> waits;  ///< collectives that this rank waits in, and for how many seconds
  RankWork work;
  std::string print() const;
  static Note parse(std::string_view text);
  std::string describe() const;
};

/// Of this process. Any thread.
class Whereabouts {
 public:
  /// Who waits says so once that lasts, with a name that is the same on all ranks of the collective.
  void begin_wait(const void* who, std::string what);
  void end_wait(const void* who);
  /// `describe` is asked until it is replaced; no call is under way when this returns.
  void set_work(std::function<RankWork()> describe);
  Note note() const;

 private:
  struct Wait {
    std::string what;
    double begin = 0;
  };
  mutable std::mutex mutex_;
  std::map<const void*, Wait> waits_;
  std::function<RankWork()> work_;
};

/// Notes a wait once it has lasted, and takes the note back when it ends. The note of a wait that failed stays: who asks while this rank is
/// on its way out learns where it was.
class LongWait {
 public:
  explicit LongWait(Whereabouts* where) : where_(where) {}
  ~LongWait() {
    if (std::uncaught_exceptions() == exceptions_) end();
  }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;
  /// After `waited` seconds, again and again.
  template <class What>
  void lasts(double waited, What what) {
    if (!where_ || noted_ || waited < 0.2) return;
    noted_ = true;
    where_->begin_wait(this, what());
  }
  void end() {
    if (noted_) where_->end_wait(this);
    noted_ = false;
  }

 private:
  Whereabouts* where_;
  int exceptions_ = std::uncaught_exceptions();
  bool noted_ = false;
};

}  // namespace tessera
