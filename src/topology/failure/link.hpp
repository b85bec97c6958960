// Connections between ranks beside MPI: MPI says nothing of a rank that ends or stops.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// `up`: to rank 0. `down`: to all ranks, or to the one that the text names.
enum class MessageKind : std::uint8_t {
  note,    ///< up: of a rank, each second and when it is told to
  tell,    ///< down: send your note now
  ask,     ///< up: a rank wants everybody's notes
  notes,   ///< down: rank 0's answer to one
  floor,   ///< up: a rank has something to say that ends the run
  ending,  ///< down: the run ends with this status, and this rank says why; connections may break. Rank -1: nobody does, after all
  said,    ///< up, then down: it has been said
  lost,    ///< to all: this rank has ended
  gone,    ///< up: this rank ends as it should
  bye,     ///< to neighbours: I end as I should
  pulse,   ///< to ranks below: I am alive
  look,    ///< down: to a rank that is to read another one's stacks
  stacks   ///< up: what it has read
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

/// A rank's side of the connections to those below it, while they are made. Who connects must know a secret that goes over MPI; nobody
/// else is heard, and nothing listens once all are there.
class LinkListener {
 public:
  /// `local`: all ranks that connect are on this host. Throws Error(environment).
  explicit LinkListener(bool local);
  ~LinkListener();
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;

  /// For connect_link on the other ranks: port, secret and addresses.
  const std::string& offer() const { return offer_; }
  /// Of these ranks, which rise; closed where one has not come within `seconds`.
  std::vector<Link> accept_all(std::span<const int> ranks, double seconds);

 private:
  int socket_ = -1;
  std::string secret_, offer_;
};

/// The link to the rank that made the offer. Closed where none of its addresses can be reached within `seconds`: `reason` says why.
Link connect_link(const std::string& offer, int rank, double seconds, std::string& reason);

}  // namespace tessera
