// The small files of a model that go along with it: into RUN/tokenizer beside a run's checkpoints, so that who uses one needs no path, and
// from there into exports.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "families/write_config.hpp"
#include "train/data/run_tokenizer.hpp"

namespace tessera {

/// Copies the tokenizer's files into RUN/tokenizer, and what the model says of ids of tokens (all of its files where there is no
/// tokenizer), where they are not there yet. What stands beside them and stays behind is named in the log, once. Throws Error(data),
/// Error(storage).
void keep_files(const RunTokenizer& tokenizer, const std::string& run);

/// Names of the files in such a folder that go with an export; those of additional_chat_templates with their folder.
std::vector<std::string> carried_files(const std::string& folder);
void copy_files(const std::string& from, const std::string& to, const std::vector<std::string>& names);

/// What config.json in such a folder says of ids of tokens; nothing where there is none.
std::optional<TokenIds> carried_ids(const std::string& folder);

}  // namespace tessera
