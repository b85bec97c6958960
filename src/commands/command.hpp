// How commands say what they take. The library that reads command lines stands behind command_line.cpp, where alone it is compiled.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera {

/// What a command line asked for; returns the exit status. Commands start Kokkos and MPI themselves, so that those which need neither run
/// on a login node.
using Chosen = std::function<int()>;

/// An option or a place of a command, to say more of.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required() const;
  Option one_of(const std::vector<std::string>& names) const;
  Option between(int least, int most) const;
  Option between(double least, double most) const;  ///< and no NaN
  Option positive() const;
  Option not_negative() const;
  /// The help shows the value that stands in the variable now, or this text.
  Option shows_default() const;
  Option shows_default(const std::string& text) const;
  Option needs(Option other) const;
  Option excludes(Option other) const;
  Option excludes(const std::string& name) const;
  Option at_least(int values) const;
  /// Values of a list stand between these, in one word.
  Option parted_by(char separator) const;
  /// No further words belong to it.
  Option one_word() const;
  bool given() const;

 private:
  CLI::Option* option_;
};

/// A command, whose options are bound to variables that outlive the parsing.
class Command {
 public:
  Command(CLI::App* app, Chosen* chosen) : app_(app), chosen_(chosen) {}
  /// A command below it.
  Command command(const std::string& name, const std::string& help) const;
  /// `name` is "--NAME" for an option, and anything else for a place.
  Option option(const std::string& name, std::string& value, const std::string& help) const;
  Option option(const std::string& name, std::vector<std::string>& values, const std::string& help) const;
  Option option(const std::string& name, std::vector<int>& values, const std::string& help) const;
  Option option(const std::string& name, int& value, const std::string& help) const;
  Option option(const std::string& name, std::int64_t& value, const std::string& help) const;
  Option option(const std::string& name, double& value, const std::string& help) const;
  Option option(const std::string& name, const std::function<void(double)>& take, const std::string& help) const;
  Option flag(const std::string& name, bool& value, const std::string& help) const;
  /// What the help shows in the place of its places.
  void usage(const std::string& places) const;
  void footer(const std::string& text) const;
  void requires_command() const;
  /// `lacks`: what the command line should have had and has not, for "WHAT is required"; "" where it has all.
  void does(Chosen run, std::function<std::string()> lacks = {}) const;

 private:
  CLI::App* app_;
  Chosen* chosen_;
};

/// --worker-memory: into `bytes`, which outlives the parsing. `who`: what may take so much.
Option add_worker_memory(const Command& command, std::int64_t& bytes, const std::string& who);

}  // namespace tessera
