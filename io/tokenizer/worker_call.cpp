#include <cstring>
#include "base/json.hpp"

#include "base/check.hpp"
#include "io/tokenizer/child.hpp"
#include "io/tokenizer/worker.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t slowest_bytes_per_second = 64 << 10;  // a tenth of what a slow core tokenizes

ExitCode code_of(const std::string& kind) {
  if (kind == "internal") return ExitCode::internal;
  return kind == "environment" ? ExitCode::environment : kind == "usage" ? ExitCode::usage : ExitCode::data;
}

}  // namespace

std::unique_ptr<Child> start_worker(const std::string& python, const char* program, std::int64_t memory) {
  return std::make_unique<Child>(std::vector<std::string>{python, "-c", program, std::to_string(memory)}, memory);
}

std::string ask_worker(Child& worker, std::string_view operation, std::string_view request, std::chrono::seconds patience) {
  const std::chrono::seconds for_bytes(request.size() / slowest_bytes_per_second);
  worker.set_patience(patience == endless_patience ? patience : patience + for_bytes);
  std::string head(operation);
  const std::uint64_t bytes = request.size();
  head.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  worker.send(head.data(), head.size());
  worker.send(request.data(), request.size());
  worker.receive(head.data(), head.size());
  std::uint64_t length = 0;
  std::memcpy(&length, head.data() + operation.size(), sizeof length);
  std::string answer(length, '\0');
  worker.receive(answer.data(), answer.size());
  if (head.starts_with("done")) return answer;
  const Json fault = Json::parse(answer);
  throw Error(code_of(fault.at("kind").get<std::string>()), fault.at("message").get<std::string>());
}

}  // namespace tessera::io
