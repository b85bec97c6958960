// Where people have a model of Hugging Face: in a folder, or in the cache.
#pragma once
#include <string>

namespace tessera {

struct NamedModel {
  std::string folder;  ///< with config.json
  std::string note;    ///< which one was taken, where the name does not say so
  std::string fault;   ///< why none can be
};

/// `given`: a folder; Hugging Face's cache, a model in it (models--ORG--NAME), or a part of one; or the name ORG/NAME of a model in the
/// cache that HF_HUB_CACHE or HF_HOME name, or that of the home folder. What is none of these is given back.
NamedModel find_model(const std::string& given);

}  // namespace tessera
