#include "train/save/save.hpp"

namespace tessera {

Save::State Save::next_state() const {
  switch (state) {
    case State::none:
    case State::copying:
      return staged ? State::staging : State::shards;
    case State::staging:
      return State::shards;
    case State::shards:
      return layout.files.empty() ? State::index : State::seals;
    case State::seals:
      return State::index;
    case State::index:
      return State::none;
  }
  return State::none;
}

}  // namespace tessera
