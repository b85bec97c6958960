// Connections between rank 0 and every other rank, beside MPI: MPI says nothing of a rank that ends or stops.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class MessageKind : std::uint8_t {
  note,    ///< a rank's note, each second and when it is told to
  tell,    ///< rank 0: send your note now
  ask,     ///< a rank wants everybody's notes; the text is its own note
  notes,   ///< rank 0's answer
  floor,   ///< a rank has something to say that ends the run
  speak,   ///< rank 0: say it
  silent,  ///< rank 0: another one speaks
  ending,  ///< rank 0: the run ends with this status; connections may break
  lost,    ///< rank 0: this rank has ended
  bye      ///< this rank ends as it should
};
struct Message {
  MessageKind kind = MessageKind::note;
  std::string text;
};

/// A socket with its unsent and half-read bytes. Never blocks.
class Link {
 public:
  Link() = default;
  explicit Link(int socket) : socket_(socket) {}
  ~Link() { close(); }
  Link(Link&& other) noexcept;
  Link& operator=(Link&& other) noexcept;

  int socket() const { return socket_; }  ///< -1: closed
  void close();
  /// Sends what can be sent now, and the rest in later calls of flush(). Where the other side has not read for long, drops it.
  void send(MessageKind kind, std::string_view text = {});
  void flush();
  bool unsent() const { return !out_.empty(); }
  /// Adds what has arrived. False: the connection has ended.
  bool receive(std::vector<Message>& messages);

 private:
  int socket_ = -1;
  std::string in_, out_;
};

/// Rank 0's side of the connections, while they are made. Who connects must know a secret that goes over MPI; nobody else is heard, and
/// nothing listens once all are there.
class LinkListener {
 public:
  /// `local`: all ranks are on this host. Throws Error(environment).
  explicit LinkListener(bool local);
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;

  /// For connect_link on the other ranks: port, secret and addresses.
  const std::string& offer() const { return offer_; }
  /// By rank; closed where a rank has not come within `seconds`.
  std::vector<Link> accept_all(int ranks, double seconds);

 private:
  int socket_ = -1;
  std::string secret_, offer_;
};

/// The link to rank 0. Closed where none of its addresses can be reached within `seconds`: `reason` says why.
Link connect_link(const std::string& offer, int rank, double seconds, std::string& reason);

}  // namespace tessera
