// Where a program of the run listens, as a user writes it.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// Of IPv4.
struct ListenAddress {
  std::string host;  ///< in numbers
  int port = 0;      ///< 0: any free one
  /// Every address of the node.
  bool is_any() const { return host == "0.0.0.0"; }
  /// "127.0.0.1:9400"
  std::string str() const { return host + ":" + std::to_string(port); }
};

/// "PORT" of the loopback, or "HOST:PORT" of an address in numbers, or localhost; none where it is something else.
std::optional<ListenAddress> parse_listen_address(std::string_view text);

}  // namespace tessera
