// Which addresses are taken at which moments: what first fit asks of the buffers that are placed already.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "zero/partition.hpp"

namespace tessera {

/// Disjoint ranges of addresses in rising order. Ranges that touch become one, so blocks that lie side by side cost one entry.
class AddressRanges {
 public:
  void add(Range addresses);
  /// `at` where [at, at + bytes) is free; else the end of the first range in its way.
  std::int64_t past_first_in_way(std::int64_t at, std::int64_t bytes) const;
  bool empty() const { return ranges_.empty(); }

 private:
  std::vector<Range> ranges_;
};

/// Moments [first, last] at which a block is held.
struct Moments {
  std::int64_t first = 0, last = 0;
};

/// A segment tree over moments: each node stands for a run of them, and its two children for the halves. Blocks that a life of n moments
/// meets are found in a few sets for each level of the tree, so a placement costs the logarithm of the schedule's length squared, however
/// many blocks are held at once.
class TakenAddresses {
 public:
  explicit TakenAddresses(std::int64_t moments);
  void take(std::span<const Moments> life, Range addresses);
  /// The lowest address from `from` on where `bytes` are free at all moments of the life.
  std::int64_t first_fit(std::span<const Moments> life, std::int64_t from, std::int64_t bytes) const;

 private:
  struct Node {
    AddressRanges whole;  ///< taken at all of the node's moments, by a life that the node is a piece of
    AddressRanges some;   ///< taken at some of them, or at all
  };
  /// The largest nodes that make up the moments.
  template <class F>
  void visit_pieces(Moments moments, F f) const;
  /// The nodes from a first and a last moment up to the root: each that holds moments both of the span and beyond it is among them.
  template <class F>
  void visit_ancestors(Moments moments, F f) const;

  std::size_t leaves_;       ///< a power of two
  std::vector<Node> nodes_;  ///< node n has the children 2n and 2n + 1; moment m is node leaves_ + m
};

}  // namespace tessera
