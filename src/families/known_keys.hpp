// Tables of keys that a config.json of any family may hold: those that no number of the model depends on, that are refused, or that must
// have a value which asks for nothing.
#pragma once
#include <algorithm>
#include <array>
#include <string_view>

namespace tessera::huggingface {

/// Of tokens, of files and of programs: no number of the model depends on them, and nothing is lost without them.
constexpr std::array harmless = std::to_array<std::string_view>({
    "transformers_version",
    "torch_dtype",
    "dtype",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "use_cache",
    "transformers.js_config",
    "sep_token_id",
    "decoder_start_token_id",
    "tokenizer_class",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "attn_implementation",
    "cache_implementation",
    "_sliding_window_pattern",  // what transformers 5 notes beside layer_types
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "torchscript",
    "pretraining_tp",
    "id2label",
    "label2id",
    "num_labels",
    "chunk_size_feed_forward",
    "tie_encoder_decoder",
    "is_decoder",
    "gradient_checkpointing",
    "use_bfloat16",
    "tf_legacy_loss",
    "is_llama_config",
    "max_sequence_length",
    "initial_context_length",  // of GPT-OSS, which its rotation says too
    "unsloth_version",
    "unsloth_fixed",
});

/// Of generation, of tasks and of transformers' own training: nothing of them is here, nor in an export. A note names them.
constexpr std::array unused = std::to_array<std::string_view>({
    "prefix",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "cross_attention_hidden_size",
    "pruned_heads",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    "router_aux_loss_coef",
});

template <std::size_t n>
constexpr bool holds(const std::array<std::string_view, n>& keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

/// What is refused where it is there, and not null.
struct Refused {
  std::string_view key, why;
};
constexpr auto refused_keys =
    std::to_array<Refused>({{"quantization_config", "quantized weights are not in this version; get the model in BF16, F16 or F32"},
                            {"compression_config", "compressed weights are not in this version; get the model in BF16, F16 or F32"},
                            {"auto_map", "the model brings code of its own (trust_remote_code), and what that computes is not known here"},
                            {"q_lora_rank", "multi-head latent attention is not in this version"},
                            {"kv_lora_rank", "multi-head latent attention is not in this version"},
                            {"index_topk", "attention to chosen tokens is not in this version"},
                            {"linear_num_key_heads", "linear attention is not in this version"},
                            {"text_config", "models of more than text are not in this version"}});

/// What must have a value that asks for nothing.
struct Idle {
  std::string_view key;
  double value;  ///< of a boolean 0 or 1
  std::string_view why;
};
constexpr auto idle =
    std::to_array<Idle>({{"attention_dropout", 0, "dropout is not in this version; set it to 0.0"},
                         {"hidden_dropout", 0, "dropout is not in this version; set it to 0.0"},
                         {"resid_pdrop", 0, "dropout is not in this version; set it to 0.0"},
                         {"embd_pdrop", 0, "dropout is not in this version; set it to 0.0"},
                         {"router_jitter_noise", 0, "noise on routers is not in this version; set it to 0.0"},
                         {"partial_rotary_factor", 1, "the rotation of a part of a head's features is not in this version"},
                         {"rope_interleaved", 0, "rotations of neighbouring features are not in this version"},
                         {"use_mrope", 0, "rotations of several positions are not in this version"},
                         {"is_encoder_decoder", 0, "encoders are not in this version"},
                         {"add_cross_attention", 0, "attention to another text is not in this version"},
                         {"num_nextn_predict_layers", 0, "layers that predict further tokens are not in this version"},
                         {"num_mtp_layers", 0, "layers that predict further tokens are not in this version"}});

/// A key of a rotation, and the types of rotation that it means something to; "": all.
struct RotationKey {
  std::string_view key, types;
};
constexpr std::array<RotationKey, 15> rotation_keys = {{{"rope_type", ""},
                                                        {"type", ""},
                                                        {"rope_theta", ""},
                                                        {"factor", "llama3 linear dynamic yarn longrope"},
                                                        {"low_freq_factor", "llama3"},
                                                        {"high_freq_factor", "llama3"},
                                                        {"original_max_position_embeddings", "llama3 yarn longrope"},
                                                        {"beta_fast", "yarn"},
                                                        {"beta_slow", "yarn"},
                                                        {"attention_factor", "yarn longrope"},
                                                        {"short_factor", "longrope"},
                                                        {"long_factor", "longrope"},
                                                        {"mscale", "yarn"},
                                                        {"mscale_all_dim", "yarn"},
                                                        {"truncate", "yarn"}}};

}  // namespace tessera::huggingface
