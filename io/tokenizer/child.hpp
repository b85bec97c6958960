// A child process that is asked and answers: one request at a time over a socket that is its standard input.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/posix_file.hpp"

namespace tessera::io {

/// It ends when the socket is closed, and so with this process, however that ends. What it writes to its output and errors is kept for
/// messages. Errors (ExitCode::environment): a program that cannot be started; a child that ends before it has answered, or takes longer
/// than it may and is ended, with its last words.
class Child {
 public:
  /// `command`: a program, sought on PATH where its name has no slash, and its arguments. `memory`: the bytes that these tell it to keep
  /// to, for messages; 0: none.
  explicit Child(std::vector<std::string> command, std::int64_t memory = 0);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// How long it may neither take nor give a byte from here on; 0: for ever.
  void set_patience(std::chrono::seconds patience);
  void send(const void* data, std::size_t bytes);
  void receive(void* data, std::size_t bytes);
  /// Ends the conversation at once, for another thread: whoever sends or receives fails as of a child that has ended.
  void cut();

 private:
  [[noreturn]] void fail_ended();
  [[noreturn]] void fail_silent();
  /// What it has written, after `before`, and not more than a page of it; "" where that is nothing.
  std::string last_words(const std::string& before) const;
  /// Ends it, once; its status.
  int end();
  std::string name_;
  PosixFile words_;  ///< output and errors
  int socket_ = -1;
  pid_t process_ = 0;  ///< 0: none
  std::chrono::seconds patience_{0};
  std::int64_t memory_;
};

}  // namespace tessera::io
