// The folder of a run: deck.toml, metrics.jsonl, checkpoints/, trace/. It belongs to one deck.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace tessera {

struct RunFolder {
  std::string path;
  std::string checkpoints() const { return path + "/checkpoints"; }
  std::string weights() const { return path + "/weights"; }
  std::string metrics() const { return path + "/metrics.jsonl"; }
  std::string deck() const { return path + "/deck.toml"; }
  std::string trace(std::int64_t step) const { return fmt::format("{}/trace/step-{:08}", path, step); }
  std::string lock() const { return path + "/run.lock"; }
  /// Of starts whose standard error has lost its reader.
  std::string log() const { return path + "/log.txt"; }
};

/// Held while a run writes in its folder, so that a second one cannot. Ends with the process, however that ends.
class RunLock {
 public:
  RunLock() = default;
  /// Waits up to `patience` seconds for an earlier process to go, then throws Error(environment) that names it. A file system without locks
  /// is said and let pass.
  RunLock(const RunFolder& folder, double patience);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  /// Whether the folder still has the file that is locked. True also where the file system does not tell.
  bool stands(const RunFolder& folder) const;

 private:
  int descriptor_ = -1;
};

/// What a run starts from.
struct StartPoint {
  RunFolder folder;
  std::string checkpoint;                    ///< step folder to load; "" starts from new weights
  bool move_aside = false;                   ///< an earlier run stands in the folder and run.overwrite says to move it
  std::vector<std::string> candidates = {};  ///< see Origin; then `checkpoint` is still to be chosen
  bool goes_back = false;
};

/// A run's hold on its folder, from the start to the end.
class RunClaim {
 public:
  RunClaim(const Deck& deck, RunFolder folder, io::Lineage lineage, double patience);
  const io::Lineage& lineage() const { return lineage_; }
  /// Whether the folder is still the one that was claimed.
  bool stands() const { return lock_.stands(folder_); }
  /// Where the folder was moved or removed while the run writes in it: makes it again, with deck and lock, and says so. To be called before
  /// anything is written.
  void renew();
  /// deck.toml and checkpoints/line.json.
  void write() const;

 private:
  RunFolder folder_;
  std::string deck_;  ///< the text of deck.toml
  io::Lineage lineage_;
  RunLock lock_;
};

/// Rank 0 only, before any work: checks that the folder may be written and that it belongs to this deck (else refuses, naming the keys
/// that differ), and finds the checkpoint that run.resume asks for. Changes nothing, so that a run that is refused leaves no trace.
/// A run that is at work in the folder is waited for, `patience` seconds: rank 0 of a killed run may take a moment to go.
StartPoint examine_run_folder(const Deck& deck, double patience = 10);

/// Where the run's last start staged its saves, as its deck.toml says; empty: nowhere.
std::string last_staging(const RunFolder& folder);

/// Rank 0 only, when everything else of the start has succeeded: moves an earlier run aside (never deletes one), makes the folder, locks
/// it, removes what killed saves left there, lets `latest` lead to the checkpoint that the run goes on from, and writes deck.toml.
[[nodiscard]] RunClaim claim_run_folder(const Deck& deck, const StartPoint& start, double patience = 10);

}  // namespace tessera
