// The buffers of a schedule while it is built: declared by name, and given to tasks as uses.
#pragma once
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "schedule/build/frame.hpp"

namespace tessera {

class Buffers {
 public:
  /// Declares into `list`.
  Buffers(const Frame& frame, std::vector<Buffer>& list);

  /// Declares a buffer, or widens the one of this name. Returns its number.
  int declare(const std::string& name, Category category, Tier tier, std::int64_t bytes, Life life = Life::section);
  /// A buffer that the host fills before a program, with its twin in pinned memory where kernels cannot read what the host writes.
  void input(const std::string& name, Category category, std::int64_t bytes, std::int64_t slots = 1);
  static std::string host_side(const std::string& name) { return "host." + name; }
  /// The buffer that host code uses: the twin, where there is one.
  std::string on_host(const std::string& name) const { return frame_.on_gpu() ? host_side(name) : name; }

  bool has(const std::string& name) const { return by_name_.contains(name); }
  int named(const std::string& name) const { return by_name_.at(name); }
  Buffer& operator[](int id) { return list_[index(id)]; }
  const Buffer& operator[](int id) const { return list_[index(id)]; }
  Tier tier_of(const Use& use) const { return (*this)[use.buffer].tier; }

  Use whole(int id, Access access) const { return {id, 0, (*this)[id].bytes, access}; }
  Use whole(const std::string& name, Access access) const { return whole(named(name), access); }
  /// The first bytes of a buffer, which is declared.
  Use first_of(const std::string& name, Category category, Tier tier, std::int64_t bytes, Access access) {
    return {declare(name, category, tier, bytes), 0, bytes, access};
  }
  /// Of no bytes where there are none.
  Use workspace(const std::string& name, Tier tier, std::int64_t bytes) {
    return bytes == 0 ? absent() : first_of(name, Category::workspace, tier, bytes, Access::write);
  }
  Use absent() const { return {named("scalars"), 0, 0, Access::read}; }
  /// A slot of an input: that of the section's micro-batch and `shift`.
  Use slot(const std::string& name, std::int64_t shift, Access access = Access::read) const;
  /// A buffer that several micro-batches have a slot of.
  Use in_slots(const std::string& name, Tier tier, std::int64_t bytes, std::int64_t slots, Access access, std::int64_t shift,
               Category category = Category::activations, Life life = Life::program);
  /// What host code reads or writes beside a piece that is under way: buffers in turn.
  Use staging(const std::string& name, std::int64_t bytes, Access access);

  /// Elements of a unit in its compute copy on this rank, in its gradients' sum as norm and optimizer read it, in its master weights, and
  /// in what the optimizer keeps beside them, of rows and columns all.
  Use parameters(int unit, const Range& elements, Access access) const;
  Use gradients(int unit, const Range& elements, Access access) const;
  Use master(int unit, const Range& elements, Access access) const;
  Use state(const StateRow& row, int unit, const Range& elements, Access access) const;

 private:
  const Frame& frame_;
  std::vector<Buffer>& list_;
  std::unordered_map<std::string, int> by_name_;
  std::map<std::string, std::int64_t> staged_;  // pieces that have been staged, by what they are
};

}  // namespace tessera
