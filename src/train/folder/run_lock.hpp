// The hold of a start, and of the run that comes of it, on its folder: two that are started together are one after the other.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "topology/world.hpp"

namespace tessera {

/// FOLDER/run.lock, locked from a start's first look at the folder to the end of its run, so that what was found there stays true. Ends
/// with the process, however that ends.
class RunLock {
 public:
  RunLock() = default;
  /// Not held yet.
  explicit RunLock(std::string folder) : folder_(std::move(folder)) {}
  /// Lets go. What was made for the lock alone goes too, unless keep() was called.
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;

  /// Waits up to `seconds` for whoever holds it, of which it says who that is; returns whether it is held now. Makes the folder where there
  /// is none. Error(environment) where the calls together have waited for more than `patience` seconds; a run that saves and leaves is
  /// given an hour. A file system without locks is said and let pass.
  bool wait(double seconds, double patience = 10);
  bool held() const { return descriptor_ >= 0; }
  /// The folder belongs to a run from here on.
  void keep();
  /// Tells those who wait that this run saves and leaves.
  void say_leaving();
  /// Whether the folder still has the file that is locked. True also where the file system does not tell.
  bool stands() const;
  /// What stands in the file, and in no other one.
  const std::string& claim() const { return claim_; }

 private:
  std::string path() const { return folder_ + "/run.lock"; }
  bool try_to_hold();
  void make_folder();
  int open_file();
  void sign();
  void let_go() noexcept;

  std::string folder_, claim_;
  int descriptor_ = -1;
  std::vector<std::string> made_;  ///< folders, outermost first
  bool made_file_ = false;
  std::string before_;  ///< what stood in the file
  double waiting_since_ = -1;
  std::string said_of_;  ///< the holder
};

/// Who holds the lock of a run's folder now: "process 12 on node3"; empty where nobody does, nullopt where that cannot be told. Changes
/// nothing; a start that comes in this moment tries again.
std::optional<std::string> holder_of(const std::string& folder);

/// Refuses ranks that do not see the folder in which rank 0 holds a lock (`claim`; read on rank 0 alone), before they have worked for it:
/// throws AgreedError(environment) that names the rank, its host and the folder as it sees it. Changes nothing. Collective.
void require_seen_by_all(const World& world, const std::string& folder, const std::string& claim);

}  // namespace tessera
