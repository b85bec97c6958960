// The observers of a run's steps, made from the table in observers.cpp.
#pragma once
#include <functional>
#include <memory>
#include <typeinfo>
#include <vector>

#include "train/observe/observer.hpp"

namespace tessera {

class Observers {
 public:
  /// Makes the step after `done` and leaves its figures; false if they are not finite.
  using AnotherStep = std::function<bool(std::int64_t done, StepFigures& figures)>;

  /// Collective.
  Observers(const RunParts& run, AnotherStep another);
  /// An observer is destroyed before those that it was made with.
  ~Observers();
  Observers(const Observers&) = delete;
  Observers& operator=(const Observers&) = delete;

  /// In the order in which they see a step.
  const std::vector<Observer*>& in_order() const { return in_order_; }
  /// The observer of a type.
  template <class T>
  T& get() {
    return static_cast<T&>(of(typeid(T)));
  }

  const RunParts& run;
  const AnotherStep another;

 private:
  Observer& of(const std::type_info& type);

  std::vector<Observer*> in_order_;              // null until it is made
  std::vector<std::shared_ptr<Observer>> made_;  // in the order in which they were made
};

}  // namespace tessera
