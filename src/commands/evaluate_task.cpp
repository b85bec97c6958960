#include "commands/evaluate_task.hpp"
#include "base/log.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <optional>
#include <utility>
#include "base/json.hpp"

#include "base/clock.hpp"
#include "base/printable.hpp"
#include "base/progress.hpp"
#include "base/some_of.hpp"
#include "base/types.hpp"
#include "generate/task.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {
namespace {

/// What all items come to.
struct Totals {
  std::int64_t questions = 0, right = 0, right_by_byte = 0, documents = 0, tokens = 0, bytes = 0;
  double chance = 0;  ///< sum over questions
  double loss = 0;    ///< sum over tokens of documents

  double share(std::int64_t count) const { return static_cast<double>(count) / static_cast<double>(questions); }
  /// Of the share of right answers, as a sample of more such questions.
  double error(std::int64_t count) const {
    return questions > 1 ? std::sqrt(share(count) * (1 - share(count)) / static_cast<double>(questions - 1)) : 0;
  }
  double mean_loss() const { return loss / static_cast<double>(tokens); }
  double bits_per_byte() const { return loss / std::log(2.0) / static_cast<double>(bytes); }
};

Json add_question(Totals& totals, Examiner& model, std::size_t i) {
  const TaskItem& item = model.items()[i];
  const Answered answered = model.answer(i);
  ++totals.questions;
  totals.right += answered.chosen == item.answer, totals.right_by_byte += answered.chosen_by_byte == item.answer;
  totals.chance += 1 / static_cast<double>(item.choices.size());
  return {{"line", item.line},
          {"log_likelihoods", answered.log_likelihoods},
          {"answer", item.answer},
          {"chosen", answered.chosen},
          {"chosen_by_byte", answered.chosen_by_byte}};
}

Json add_document(Totals& totals, Examiner& model, std::size_t i) {
  const Read read = model.read(i);
  ++totals.documents;
  totals.tokens += read.tokens, totals.bytes += read.bytes, totals.loss += read.loss;
  const double mean = read.loss / static_cast<double>(read.tokens);
  return {{"line", model.items()[i].line}, {"tokens", read.tokens}, {"loss", mean}, {"perplexity", std::exp(mean)}};
}

Json json_of(const Totals& t, std::int64_t step) {
  Json all{{"step", step}};
  if (t.questions > 0)
    all.update({{"questions", t.questions},
                {"accuracy", t.share(t.right)},
                {"accuracy_error", t.error(t.right)},
                {"accuracy_by_byte", t.share(t.right_by_byte)},
                {"accuracy_by_byte_error", t.error(t.right_by_byte)},
                {"chance", t.chance / static_cast<double>(t.questions)}});
  if (t.documents > 0)
    all.update({{"documents", t.documents},
                {"tokens", t.tokens},
                {"loss", t.mean_loss()},
                {"perplexity", std::exp(t.mean_loss())},
                {"bits_per_byte", t.bits_per_byte()}});
  return all;
}

void print_totals(const Totals& t, std::int64_t step) {
  if (t.questions > 0)
    put("{} questions: {:.1f} % right (+- {:.1f}), {:.1f} % by likelihood a byte (+- {:.1f}), chance {:.1f} %; at step {}\n", t.questions,
        100 * t.share(t.right), 100 * t.error(t.right), 100 * t.share(t.right_by_byte), 100 * t.error(t.right_by_byte),
        100 * t.chance / static_cast<double>(t.questions), step);
  if (t.documents > 0)
    put("{} documents of {} tokens: loss {:.6f} a token, perplexity {:.3f}, {:.4f} bits a byte; at step {}\n", t.documents, t.tokens,
        t.mean_loss(), std::exp(t.mean_loss()), t.bits_per_byte(), step);
}

}  // namespace

int evaluate_task(const TaskOptions& o) {
  io::UnusedKeys unused;
  std::vector<TaskItem> items = read_task(o.task, unused);
  if (!unused.names().empty()) info("{}: not used: {}", o.task, printable_name(some_of(unused.names(), 20)));
  std::optional<io::PosixFile> details;
  if (!o.details.empty()) details = io::PosixFile::output(o.details);
  Examiner model(o.checkpoint, o.device, std::move(items), o.task, o.tokenizer);
  const bool terminal = isatty(STDERR_FILENO);
  const double begin = now_seconds();
  Totals totals;
  std::int64_t done = 0, written = 0;
  for (std::size_t i = 0; i < model.items().size(); ++i) {
    const std::string line = (model.items()[i].question() ? add_question(totals, model, i) : add_document(totals, model, i)).dump() + "\n";
    if (details) details->write(written, line.data(), line.size()), written += static_cast<std::int64_t>(line.size());
    const double share = static_cast<double>(++done) / static_cast<double>(model.items().size());
    if (terminal)
      std::fputs(
          fmt::format("\r\033[Kevaluate {:.0f} %, {} left", 100 * share, human_duration((now_seconds() - begin) * (1 - share) / share))
              .c_str(),
          stderr);
  }
  if (terminal) std::fputs("\r\033[K", stderr);
  if (o.json)
    put("{}\n", json_of(totals, model.step()).dump(-1, BadText::replace));
  else
    print_totals(totals, model.step());
  return 0;
}

}  // namespace tessera
