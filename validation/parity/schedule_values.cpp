// What updates take of a deck's schedule: schedule_values DECK UPDATES prints a line an update, in hexadecimal, "rate beta1 beta2".
#include <cstdio>
#include <cstdlib>

#include "deck/deck.hpp"
#include "optimizer/learning_rate.hpp"

int main(int, char** arguments) {
  const tessera::Deck deck = tessera::require_deck(tessera::parse_deck(arguments[1], {}, 1));
  for (long update = 0; update < std::atol(arguments[2]); ++update) {
    const tessera::ScheduledUpdate at = tessera::scheduled_update(deck, update);
    std::printf("%a %a %a\n", at.learning_rate, at.beta1, at.beta2);
  }
}
