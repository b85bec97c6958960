#include "train/save/resume_proof.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <utility>
#include "base/json.hpp"

#include "base/log.hpp"
#include "base/version.hpp"
#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "train/data/data_identity.hpp"
#include "train/engine/device.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {
namespace {

constexpr int proof_format = 1;
constexpr const char* way_on = "To continue without the proof set checkpoint.verify_resume=false for this start.";

/// Keys beside those of the trained function that bits of a reproducible run depend on.
constexpr std::array other_arithmetic = {
    "run.device",         "precision.gradients", "mesh.tp",           "mesh.cp",      "mesh.ep",          "context.method",
    "kernels.loss_chunk", "kernels.attention",   "guards.skip_limit", "guards.spike", "guards.threshold", "guards.window"};

/// What of the deck that saved a checkpoint gives other bits than the deck here.
std::vector<std::string> differing_arithmetic(Deck there, const Deck& here) {
  there.run.steps = here.run.steps;  // moves the learning rate alone, which is compared itself
  if (there.mesh.cp == 1 && here.mesh.cp == 1) there.context.method = here.context.method;
  if (here.run.device == RunDevice::host) there.kernels.attention = here.kernels.attention;  // of GPUs alone
  std::vector<std::string> out = identity_differences(there, here);
  for (const std::string& difference : deck_differences(there, here))
    if (std::ranges::any_of(other_arithmetic, [&](const std::string& key) { return difference.starts_with(key + " = "); }))
      out.push_back(difference);
  return out;
}

}  // namespace

std::string resume_proof_file(const std::string& step_folder) { return step_folder + "/resume_proof.json"; }

ResumeProof::ResumeProof(const World& world, const Deck& deck, std::string root, const std::string& checkpoint,
                         std::vector<io::CheckpointData> data)
    : world_(world),
      deck_(deck),
      data_(std::move(data)),
      on_(deck.checkpoint.verify_resume),
      root_(std::move(root)),
      checkpoint_(checkpoint) {
  if (!on_ || checkpoint.empty()) return;
  world.together([&] {
    if (world.rank() == 0) read(checkpoint);
  });
  to_compare_ = world.sum(std::ssize(expected_));
}

void ResumeProof::read(const std::string& checkpoint) {
  const io::CheckpointReader reader(checkpoint);
  const std::string path = resume_proof_file(reader.folder());
  if (io::look_at(path).nothing())
    return info(
        "checkpoint.verify_resume: nothing to compare this resume with: {} has no figures of the steps after it (its run ended before "
        "them, or had no checkpoint.verify_resume)",
        reader.folder());
  std::string device, hardware;
  try {
    const Json proof = Json::parse(io::read_small_file(path, ExitCode::checkpoint));
    if (proof.at("format").get<int>() != proof_format)
      fail(ExitCode::checkpoint, "{}: it has format {}, but this version reads {}. {}", path, proof.at("format").get<int>(), proof_format,
           way_on);
    if (proof.at("checkpoint").get<std::string>() != reader.digest())
      fail(ExitCode::checkpoint,
           "{}: it belongs to another save than the checkpoint in its folder. Remove it, or restore the folder from a copy. {}", path,
           way_on);
    device = proof.at("device").get<std::string>();
    if (const Json* found = proof.find("hardware")) hardware = found->get<std::string>();  // older proofs have none
    for (const Json& row : proof.at("steps"))
      expected_.push_back({.step = row.at("step").get<std::int64_t>(),
                           .loss = row.at("loss").get<double>(),
                           .grad_norm = row.at("grad_norm").get<double>(),
                           .learning_rate = row.at("learning_rate").get<double>(),
                           .state = row.contains("state") ? row.at("state").get<std::string>() : ""});
  } catch (const JsonError& error) {
    fail(ExitCode::checkpoint, "{}: it cannot be parsed ({}). Remove it, or restore the folder from a copy. {}", path, error.what(),
         way_on);
  }
  for (std::size_t k = 0; k < expected_.size(); ++k)
    if (expected_[k].step != reader.meta().step + static_cast<std::int64_t>(k) + 1)
      fail(ExitCode::checkpoint, "{}: step {} is not one of those after step {}, in their order. Remove it, or restore the folder. {}",
           path, expected_[k].step, reader.meta().step, way_on);
  const Deck there = require_deck(parse_stored_deck(reader.meta().deck, reader.folder() + "/checkpoint.h5:deck", device));
  std::vector<std::string> differing = differing_arithmetic(there, deck_);
  if (!reader.meta().data.empty() && !data_differences(reader.meta().data, data_).empty())
    differing.emplace_back("the contents of data.train");
  if (const std::string here = describe_hardware(deck_.run.device);
      device == word_of(deck_.run.device) && !hardware.empty() && hardware != here)
    differing.push_back(fmt::format("other hardware: {} there, {} here", hardware, here));
  if (!differing.empty()) {
    warning("checkpoint.verify_resume: this resume is not compared, because bits may differ from the run that saved {}: {}",
            reader.folder(), fmt::format("{}", fmt::join(differing, "; ")));
    expected_.clear();
  }
  saved_by_ = reader.meta().program;
}

void ResumeProof::compare(const Figures& found) {
  const Figures expected = expected_.front();
  expected_.erase(expected_.begin());
  const std::string here = describe(program_identity());
  if (expected.step == found.step && expected.loss == found.loss && expected.grad_norm == found.grad_norm && !expected.state.empty() &&
      expected.learning_rate == found.learning_rate && expected.state != found.state)
    fail(ExitCode::checkpoint,
         "checkpoint.verify_resume: step {} after the resume from {} has the loss and the gradient norm of the run that saved it, but "
         "another state after it (digest {}, there {}). Moments or weights that this step's batch does not read have changed{}. Compare "
         "the machine with that of the run. {}",
         found.step, checkpoint_, found.state, expected.state,
         saved_by_ == here ? "" : fmt::format(" (saved by: {}; this program: {})", saved_by_, here), way_on);
  if (expected.step != found.step || expected.loss != found.loss || expected.grad_norm != found.grad_norm) {
    fail(ExitCode::checkpoint,
         "checkpoint.verify_resume: step {} after the resume from {} has loss {} and gradient norm {}, but in the run that saved it they "
         "were {} and {}. Weights, moments, data or arithmetic have changed{}. Compare the token files and the machine with those of that "
         "run. {}",
         found.step, checkpoint_, found.loss, found.grad_norm, expected.loss, expected.grad_norm,
         saved_by_ == here ? "" : fmt::format(" (saved by: {}; this program: {})", saved_by_, here), way_on);
  }
  // With another learning rate the steps after this one are others, and rightly so.
  if (expected.learning_rate != found.learning_rate) expected_.clear();
}

std::string ResumeProof::after(const StepFigures& step, const std::function<std::string()>& state) {
  if (!on_) return "";
  const bool wanted = to_compare_ > 0 || (begun_ < step.step && step.step <= begun_ + steps);
  const Figures figures{.step = step.step,
                        .loss = step.loss,
                        .grad_norm = step.grad_norm,
                        .learning_rate = step.learning_rate,
                        .state = wanted ? state() : ""};
  std::string line;
  if (to_compare_ > 0) {
    world_.together([&] {
      if (world_.rank() == 0) compare(figures);
    });
    to_compare_ = world_.sum(std::ssize(expected_));
    if (to_compare_ == 0)
      line = fmt::format("the resume is proven: up to step {} loss, gradient norm and state equal those of the run that saved {}",
                         figures.step, checkpoint_);
  }
  if (world_.rank() != 0) return line;
  for (Pending& save : pending_) {
    if (std::ssize(save.figures) == steps || figures.step != save.step + std::ssize(save.figures) + 1) continue;
    save.figures.push_back(figures);
    if (save.stands) write(save);
  }
  std::erase_if(pending_, [](const Pending& save) { return save.stands && std::ssize(save.figures) == steps; });
  return line;
}

void ResumeProof::save_begins(std::int64_t step) {
  begun_ = step;
  if (on_ && world_.rank() == 0) pending_.push_back({.step = step});
}

void ResumeProof::save_stands(std::int64_t step) {
  std::erase_if(pending_, [&](const Pending& save) { return save.step < step && !save.stands; });  // they have failed
  for (Pending& save : pending_) {
    if (save.step != step) continue;
    save.stands = true;
    if (!save.figures.empty()) write(save);
  }
  std::erase_if(pending_, [](const Pending& save) { return save.stands && std::ssize(save.figures) == steps; });
}

void ResumeProof::write(const Pending& save) const {
  const std::string folder = fmt::format("{}/{}", root_, io::checkpoint_name(save.step));
  try {
    Json proof = {{"format", proof_format},
                  {"checkpoint", io::CheckpointReader(folder).digest()},
                  {"device", word_of(deck_.run.device)},
                  {"hardware", describe_hardware(deck_.run.device)},
                  {"steps", Json::array()}};
    for (const Figures& f : save.figures)
      proof["steps"].push_back(
          {{"step", f.step}, {"loss", f.loss}, {"grad_norm", f.grad_norm}, {"learning_rate", f.learning_rate}, {"state", f.state}});
    const std::string text = proof.dump(2) + "\n";
    io::AtomicFile out(resume_proof_file(folder));
    out.file().write(0, text.data(), text.size());
    out.commit();
  } catch (const Error& error) {
    // The checkpoint stands without it: only a resume from it will not be compared.
    warning("checkpoint.verify_resume: a resume from {} will not be proven: {}", folder, error.what());
  }
}

}  // namespace tessera
