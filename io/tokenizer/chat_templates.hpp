// Chat templates for models that have none.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tessera::io {

/// Names of the templates that come with the program (io/tokenizer/templates).
std::vector<std::string> chat_template_names();

/// The text of one of these by its name, or that of a file; none where there is neither. Error(data): the file cannot be read.
std::optional<std::string> find_chat_template(const std::string& named);

}  // namespace tessera::io
