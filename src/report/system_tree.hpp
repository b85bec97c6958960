// Small files by which a system says what it has. What is not there, or may not be read, is empty.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Of a folder, sorted so that numbers stand in their order: cpu2 before cpu10.
std::vector<std::string> names_in(const std::string& folder);
bool is_there(const std::string& path);
/// The first line, without blanks around it.
std::string line_of_file(const std::string& path);
/// What stands behind "KEY :" in the first line that begins with the key.
std::string field_of_file(const std::string& path, std::string_view key);
/// The word behind `word` in the first line that has it.
std::string word_after(const std::string& path, std::string_view word);
/// The last name of where a link leads.
std::string name_behind(const std::string& link);
/// The number in a file; 0 where there is none.
double number_of_file(const std::string& path);

}  // namespace tessera
