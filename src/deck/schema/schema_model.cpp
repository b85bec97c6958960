// Keys of the deck: model, adapters, experts.
#include "deck/schema/schema_rows.hpp"

namespace tessera::schema {

std::vector<Key> model_keys() {
  return {
      // [model]
      {KEY(model.layers), .read_by = ReadBy::size, .theirs = "num_hidden_layers", .type = integer, .unit = "layers",
       .limits = {.least = 1, .most = 10000}, .identity = true, .help = "Number of transformer layers."},
      {KEY(model.width), .read_by = ReadBy::size, .theirs = "hidden_size", .type = integer, .unit = "features",
       .limits = {.least = 1, .most = max_dim}, .identity = true, .help = "Width of the residual stream."},
      {KEY(model.heads), .read_by = ReadBy::size, .theirs = "num_attention_heads", .type = integer, .unit = "heads",
       .limits = {.least = 1, .most = max_dim}, .identity = true, .help = "Query heads of attention."},
      {KEY(model.kv_heads), .read_by = ReadBy::size, .theirs = "num_key_value_heads", .type = integer, .unit = "heads",
       .limits = {.least = 1, .most = max_dim}, .fallback = "\"auto\"", .automatic = Auto::resolved, .identity = true,
       .help = "Key and value heads, a divisor of model.heads; auto is model.heads."},
      {KEY(model.head_dim), .read_by = ReadBy::size, .theirs = "head_dim", .type = integer, .unit = "features",
       .limits = {.least = 0, .most = largest_head_dim}, .fallback = "\"auto\"", .automatic = Auto::resolved, .identity = true,
       .help = "Features of one head, an even number; auto is model.width / model.heads."},
      {KEY(model.ff_width), .read_by = ReadBy::size, .theirs = "intermediate_size", .type = integer, .unit = "features",
       .limits = {.least = 1, .most = max_dim}, .identity = true, .help = "Inner width of the feed-forward block."},
      {KEY(model.activation), .read_by = ReadBy::block, .theirs = "hidden_act", .type = text, .fallback = "\"silu\"", .identity = true,
       .silent = true,
       .help =
           "Activation of the feed-forward block's gate, which its other half is multiplied with: \"silu\" (SwiGLU), \"gelu\" or its "
           "approximation \"gelu_tanh\" (GeGLU); \"clamped_silu\" is g sigmoid(1.702 g), times the other half + 1, of gates g up to "
           "model.gate_limit and halves within it (GPT-OSS). Without a gate (model.gated): of all its features, \"gelu\", \"gelu_tanh\", "
           "\"relu_squared\" or \"xielu\", whose two shapes are learned (Apertus)."},
      {KEY(model.gated), .read_by = ReadBy::block, .theirs = "the gate that the feed-forward blocks of its model_type have",
       .type = boolean, .fallback = "true", .identity = true, .silent = true,
       .help = "Whether the feed-forward block multiplies its features with an activated gate of as many; false: they are activated "
               "themselves."},
      {KEY(model.mlp_bias), .read_by = ReadBy::block, .theirs = "the biases of their products", .type = boolean, .fallback = "false",
       .identity = true, .silent = true, .help = "Adds biases to the products of the feed-forward block."},
      {KEY(model.gate_limit), .read_by = ReadBy::block, .theirs = "swiglu_limit", .type = real, .limits = {.above = 0, .most = 1e6},
       .fallback = "7.0", .identity = true, .silent = true,
       .help = "With model.activation = \"clamped_silu\": the limit of gates, and of what they multiply on both sides."},
      {KEY(model.vocab), .read_by = ReadBy::size, .theirs = "vocab_size", .type = integer, .unit = "tokens",
       .limits = {.least = 1, .most = 2147483647}, .identity = true,
       .help = "Size of the vocabulary; every token id of the data is below it."},
      {KEY(model.tied), .read_by = ReadBy::ends, .theirs = "tie_word_embeddings", .type = boolean, .fallback = "false", .identity = true,
       .help = "Uses the embedding matrix as the output head too."},
      {KEY(model.qk_norm), .read_by = ReadBy::attention, .theirs = "the norm of queries and keys that its model_type has", .type = boolean,
       .fallback = "false", .identity = true, .help = "Normalises queries and keys of each head before the rotation."},
      {KEY(model.wide_qk_norm), .read_by = ReadBy::attention, .theirs = "the width of that norm", .type = boolean, .fallback = "false",
       .identity = true, .silent = true,
       .help = "model.qk_norm over the features of all query heads together, and over those of all key heads (OLMo 2)."},
      {KEY(model.qkv_bias), .read_by = ReadBy::attention, .theirs = "the bias of queries, keys and values that its model_type has",
       .type = boolean, .fallback = "false", .identity = true, .help = "Adds a bias to the query, key and value projections."},
      {KEY(model.attention_out_bias), .read_by = ReadBy::attention, .theirs = "the bias of the attention's output that its model_type has",
       .type = boolean, .fallback = "false", .identity = true, .silent = true, .help = "Adds a bias to the attention's output projection."},
      {KEY(model.attention_sinks), .read_by = ReadBy::attention, .theirs = "the sinks that its model_type has", .type = boolean,
       .fallback = "false", .identity = true, .silent = true,
       .help = "Gives each query head a logit that its queries attend to beside their keys, and that has no value (GPT-OSS)."},
      {KEY(model.norm_eps), .read_by = ReadBy::block, .theirs = "rms_norm_eps", .type = real, .limits = {.above = 0, .below = 1},
       .fallback = "1e-05", .identity = true, .help = "Epsilon of RMSNorm, inside the square root."},
      {KEY(model.norm_placement), .read_by = ReadBy::block, .theirs = "where the norms of its model_type stand", .type = text,
       .fallback = "\"pre\"", .identity = true, .silent = true,
       .help = "Where a layer's attention and feed-forward block have their norm: \"pre\" on what they read of the residual stream, "
               "\"post\" on what they add to it (OLMo 2), \"both\" (Gemma). With \"parallel\" they stand side by side: both read one norm "
               "of the stream, and what they make joins it together (Command R)."},
      {KEY(model.norm_form), .read_by = ReadBy::block, .theirs = "what the norms of its model_type scale by", .type = text,
       .fallback = "\"weight\"", .identity = true, .silent = true,
       .help = "What norms are: RMSNorm that scales by its \"weight\" or by \"one_plus_weight\" (Gemma), whose weights begin at zero; "
               "\"layer_norm\" takes the mean off too and adds a bias, \"layer_norm_no_bias\" (Command R) takes it off alone; norms of "
               "queries and keys are RMSNorm with both."},
      {KEY(model.embedding_scale), .read_by = ReadBy::ends, .theirs = "the scale of its embedding", .type = real,
       .limits = {.above = 0, .most = 1e6}, .zero = "sqrt_width", .fallback = "1.0", .identity = true, .silent = true,
       .help = "What the embedding's rows are multiplied with where the residual stream begins, rounded to precision.compute; "
               "\"sqrt_width\" is the root of model.width (Gemma)."},
      {KEY(model.residual_scale), .read_by = ReadBy::block, .theirs = "residual_multiplier", .type = real,
       .limits = {.above = 0, .most = 1e6}, .fallback = "1.0", .identity = true, .silent = true,
       .help = "What attention and feed-forward blocks make is multiplied with where it joins the residual stream (Granite)."},
      {KEY(model.attention_scale), .read_by = ReadBy::attention, .theirs = "the scale of its attention", .type = real,
       .limits = {.least = 0, .most = 1e6}, .fallback = "0.0", .identity = true, .silent = true,
       .help = "What products of queries and keys are multiplied with; 0: 1 / sqrt(model.head_dim)."},
      {KEY(model.attention_softcap), .read_by = ReadBy::attention, .theirs = "attn_logit_softcapping", .type = real,
       .limits = {.least = 0, .most = 1e6}, .fallback = "0.0", .identity = true, .silent = true,
       .help = "Soft cap c of attention's scores: a score x counts as c tanh(x / c) (Gemma 2); 0: none."},
      {KEY(model.head_bias), .read_by = ReadBy::ends, .theirs = "the bias that the head of its model_type has", .type = boolean,
       .fallback = "false", .identity = true, .silent = true, .help = "Adds a bias to the logits, before they are scaled (Phi-1, Phi-2)."},
      {KEY(model.logit_scale), .read_by = ReadBy::ends, .theirs = "the scale of its logits", .type = real,
       .limits = {.above = 0, .most = 1e6}, .fallback = "1.0", .identity = true, .silent = true,
       .help = "What logits are multiplied with."},
      {KEY(model.logit_softcap), .read_by = ReadBy::ends, .theirs = "final_logit_softcapping", .type = real,
       .limits = {.least = 0, .most = 1e6}, .fallback = "0.0", .identity = true, .silent = true,
       .help = "Soft cap c of the logits: a logit x, scaled, counts as c tanh(x / c) (Gemma 2); 0: none."},
      {KEY(model.init_std), .type = real, .limits = {.above = 0, .most = 10}, .fallback = "0.02", .identity = true,
       .help = "Standard deviation of the initial weights."},
      {KEY(model.rope_theta), .read_by = ReadBy::angles, .theirs = "rope_theta", .type = real, .limits = {.above = 1, .most = 1e12},
       .fallback = "10000.0", .identity = true, .help = "Base of the rotary frequencies."},
      {KEY(model.rope_scaling), .read_by = ReadBy::angles, .theirs = "rope_type", .type = text, .fallback = "\"none\"", .identity = true,
       .help = "Scaling of the rotary frequencies for long contexts, as Hugging Face's classes do it."},
      {KEY(model.rope_factor), .read_by = ReadBy::angles, .theirs = "factor of the rotation", .type = real, .unit = "ratio",
       .limits = {.least = 1, .most = 1e6}, .fallback = "8.0", .identity = true,
       .help = "Scaling: factor by which frequencies are slowed, with llama3 and yarn the low ones alone; by longrope cosines and sines "
               "grow with it."},
      {KEY(model.rope_low_freq_factor), .read_by = ReadBy::angles, .theirs = "low_freq_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1e6}, .fallback = "1.0", .identity = true,
       .help = "llama3 scaling: wavelengths longer than rope_original_context divided by this are slowed by the whole factor."},
      {KEY(model.rope_high_freq_factor), .read_by = ReadBy::angles, .theirs = "high_freq_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1e6}, .fallback = "4.0", .identity = true,
       .help = "llama3 scaling: wavelengths shorter than rope_original_context divided by this are left as they are."},
      {KEY(model.rope_original_context), .read_by = ReadBy::angles, .theirs = "original_max_position_embeddings", .type = integer,
       .unit = "tokens", .limits = {.least = 1, .most = max_dim}, .fallback = "8192", .identity = true,
       .help = "llama3, yarn, dynamic and longrope scaling: context length that the unscaled frequencies were made for."},
      {KEY(model.rope_beta_fast), .read_by = ReadBy::angles, .theirs = "beta_fast", .type = real, .unit = "turns",
       .limits = {.above = 0, .most = 1e6}, .fallback = "32.0", .identity = true, .silent = true,
       .help = "yarn scaling: waves that turn more often within rope_original_context are left as they are."},
      {KEY(model.rope_beta_slow), .read_by = ReadBy::angles, .theirs = "beta_slow", .type = real, .unit = "turns",
       .limits = {.above = 0, .most = 1e6}, .fallback = "1.0", .identity = true, .silent = true,
       .help = "yarn scaling: waves that turn less often are slowed by the whole factor."},
      {KEY(model.rope_attention_factor), .read_by = ReadBy::angles, .theirs = "attention_factor", .type = real, .unit = "ratio",
       .limits = {.least = 0, .most = 1e3}, .fallback = "0.0", .identity = true, .silent = true,
       .help = "yarn and longrope scaling: what cosines and sines are multiplied with; 0: by yarn 0.1 ln(rope_factor) + 1, by longrope "
               "sqrt(1 + ln(rope_factor) / ln(rope_original_context))."},
      {KEY(model.rope_short_factors), .read_by = ReadBy::angles, .theirs = "short_factor", .type = reals,
       .limits = {.above = 0, .most = 1e6}, .fallback = "[]", .identity = true, .silent = true,
       .help =
           "longrope scaling: by what each pair of features is slowed where sequences have up to rope_original_context tokens, a number "
           "for each."},
      {KEY(model.rope_long_factors), .read_by = ReadBy::angles, .theirs = "long_factor", .type = reals, .limits = {.above = 0, .most = 1e6},
       .fallback = "[]", .identity = true, .silent = true,
       .help = "longrope scaling: the same where they are longer: batch.sequence_length, with data.document_mask the longest document of a "
               "step's "
               "batch, in tessera generate the text so far."},
      {KEY(model.rope_truncate), .read_by = ReadBy::angles, .theirs = "truncate", .type = boolean, .fallback = "true", .identity = true,
       .silent = true,
       .help = "yarn scaling: the waves between rope_beta_fast and rope_beta_slow begin and end at whole pairs of features; false: between "
               "pairs (GPT-OSS)."},
      {KEY(model.rotary_fraction), .read_by = ReadBy::rotation, .theirs = "partial_rotary_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1}, .fallback = "1.0", .identity = true, .silent = true,
       .help = "Features of each head that are rotated, its first ones, as a part of model.head_dim that is an even number of features "
               "(partial_rotary_factor)."},
      {KEY(model.rope_pairs), .read_by = ReadBy::rotation, .theirs = "the pairs of features that its model_type rotates", .type = text,
       .fallback = "\"halves\"", .identity = true, .silent = true,
       .help = "Which of those features are rotated together: \"halves\" feature i and the one half of them further on; \"neighbours\" 2i "
               "and 2i + 1 (GLM-4)."},
      {KEY(model.window), .read_by = ReadBy::layers, .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim},
       .fallback = "0", .identity = true, .silent = true,
       .help = "Keys that a query sees at most, its own and those right before it (sliding-window attention); 0: all before it."},
      {KEY(model.positions), .read_by = ReadBy::layers, .type = text, .fallback = "\"rope\"", .identity = true, .silent = true,
       .help = "How queries and keys know their positions: \"rope\" rotates them; \"none\" leaves them as they are (NoPE)."},
      {KEY(model.learned_positions), .read_by = ReadBy::ends, .theirs = "n_positions", .type = integer, .unit = "tokens",
       .limits = {.least = 0, .most = max_dim}, .fallback = "0", .identity = true, .silent = true,
       .help = "Positions that have a learned vector, which the stream begins with beside the token's row of the embedding (GPT-2, with "
               "model.positions = \"none\"), counted from the begin of a token's document; no text is longer. 0: none has."},
      {KEY(model.pattern), .read_by = ReadBy::layers, .type = text, .fallback = "\"\"", .identity = true, .silent = true,
       .help =
           "Kinds of the layers in their order, a letter of model.kinds each, again and again until all have one: \"LLLLLG\" is five of L "
           "and one of G. Empty: all layers are as [model] says."},
      {KEY(model.kinds), .read_by = ReadBy::layers, .type = kinds, .fallback = "[]", .identity = true, .silent = true,
       .help =
           "Kinds of layers, a table [[model.kinds]] each: `name` (a letter of model.pattern), and what differs from [model] of `window`, "
           "`positions`, `rope_theta` and `rope_scaling` (\"none\", where the others are scaled), and `experts = false` where its layers "
           "have "
           "one feed-forward block of model.ff_width in the place of the model's experts."},
      {KEY(model.max_context), .type = integer, .unit = "tokens", .limits = {.least = 0, .most = max_dim}, .fallback = "0",
       .help = "Context length that exports declare (max_position_embeddings); 0: batch.sequence_length."},

      {KEY(model.experts), .read_by = ReadBy::router, .theirs = "the number of experts", .type = integer, .unit = "experts",
       .limits = {.least = 0, .most = 4096}, .fallback = "0", .identity = true,
       .help = "Experts of each layer, feed-forward blocks of which a router gives each token some; 0: one feed-forward block takes every "
               "token."},
      {KEY(model.dense_layers), .read_by = ReadBy::layers, .type = integer, .unit = "layers", .limits = {.least = 0, .most = max_dim},
       .fallback = "0", .identity = true, .silent = true,
       .help = "Layers before the first with experts: they have one feed-forward block of model.ff_width, which takes every token "
               "(first_k_dense_replace)."},
      {KEY(model.experts_per_token), .read_by = ReadBy::router, .theirs = "num_experts_per_tok", .type = integer, .unit = "experts",
       .limits = {.least = 1, .most = 4096}, .fallback = "2", .identity = true,
       .help = "Experts that take a token: those of the largest router logits, of equal ones the first."},
      {KEY(model.expert_ff_width), .read_by = ReadBy::router, .theirs = "the inner width of an expert", .type = integer, .unit = "features",
       .limits = {.least = 0, .most = max_dim}, .fallback = "\"auto\"", .automatic = Auto::kept, .identity = true,
       .help = "Inner width of an expert; auto is model.ff_width."},
      {KEY(model.shared_ff_width), .read_by = ReadBy::router, .theirs = "shared_expert_intermediate_size", .type = integer,
       .unit = "features", .limits = {.least = 0, .most = max_dim}, .fallback = "0", .identity = true,
       .help = "Inner width of an expert that takes every token beside those of the router, weighed by a gate of its own (Qwen-MoE) where "
               "model.shared_gate says so; 0: none."},
      {KEY(model.shared_gate), .read_by = ReadBy::router, .theirs = "the gate of the shared expert that its model_type has",
       .type = boolean, .fallback = "true", .identity = true, .silent = true,
       .help = "Weighs the expert of model.shared_ff_width by the sigmoid of a logit of its own; false: it counts as it is (DeepSeek-V3, "
               "GLM-4.5, whose several shared experts are one of their widths together)."},
      {KEY(model.normalize_top_k), .read_by = ReadBy::router, .theirs = "norm_topk_prob", .type = boolean, .fallback = "true",
       .identity = true,
       .help = "Divides the weights of a token's experts by their sum (Mixtral); false leaves the probabilities over all experts."},
      {KEY(model.router_scores), .read_by = ReadBy::router, .theirs = "what its model_type scores experts by", .type = text,
       .fallback = "\"softmax\"", .identity = true, .silent = true,
       .help = "What an expert is chosen and weighed by: \"softmax\" its probability among all; \"sigmoid\" the sigmoid of its logit "
               "(DeepSeek-V3, GLM-4.5). model.router_aux_loss takes sigmoids over their sum for probabilities."},
      {KEY(model.router_scale), .read_by = ReadBy::router, .theirs = "routed_scaling_factor", .type = real, .unit = "ratio",
       .limits = {.above = 0, .most = 1e6}, .fallback = "1.0", .identity = true, .silent = true,
       .help = "What the weights of a token's experts are multiplied with, and not the shared expert's (routed_scaling_factor)."},
      {KEY(model.expert_groups), .read_by = ReadBy::router, .theirs = "n_group", .type = integer, .unit = "groups",
       .limits = {.least = 1, .most = most_expert_groups}, .fallback = "1", .identity = true, .silent = true,
       .help = "Equal groups of a layer's experts, with model.router_scores = \"sigmoid\": a token's experts are those of "
               "model.groups_per_token of them, whose two best scores are largest together (n_group)."},
      {KEY(model.groups_per_token), .read_by = ReadBy::router, .theirs = "topk_group", .type = integer, .unit = "groups",
       .limits = {.least = 1, .most = most_expert_groups}, .fallback = "1", .identity = true, .silent = true,
       .help = "Groups that a token's experts are chosen from (topk_group)."},
      {KEY(model.expert_bias), .read_by = ReadBy::router, .theirs = "the biases of experts that its model_type has", .type = boolean,
       .fallback = "false", .identity = true, .silent = true,
       .help = "Adds biases to the router's projection and to those of the experts (GPT-OSS)."},
      {KEY(model.router_aux_loss), .read_by = ReadBy::balance, .type = real, .limits = {.least = 0, .most = 1000}, .fallback = "0.0",
       .identity = true,
       .help = "Coefficient of the loss that balances experts: for each layer, experts x the sum over them of their share of choices times "
               "their mean probability, 1 where all have the same; of each micro-batch, averaged over those of a step. 0.01 is usual."},
      {KEY(model.router_z_loss), .read_by = ReadBy::balance, .type = real, .limits = {.least = 0, .most = 1000}, .fallback = "0.0",
       .identity = true, .help = "Coefficient of the mean square of the log-sum-exp of router logits, for each layer. 0.001 is usual."},
      {KEY(model.router_balance), .read_by = ReadBy::balance, .type = text, .fallback = "\"loss\"", .identity = true,
       .help = "What balances experts: \"loss\" model.router_aux_loss alone; \"bias\" a bias of each expert, which joins its probability "
               "where a "
               "token's experts are chosen and not in what they count for, and which each step moves by its load (arXiv:2408.15664, "
               "DeepSeek-V3). model.router_aux_loss counts beside it as it says."},
      {KEY(model.router_bias_rate), .read_by = ReadBy::balance, .type = real, .limits = {.least = 0, .most = 1}, .fallback = "0.001",
       .identity = true,
       .help = "With model.router_balance = \"bias\": what a step adds to the bias of an expert that had less than the mean of the step's "
               "choices, and takes from one that had more; 0: they stay as they are."},
      {KEY(model.freeze), .type = texts, .fallback = "[]", .identity = true, .silent = true,
       .help = "Patterns (`*` any run of characters, `?` any one) of tensors that training leaves as they are, by the names that `tessera "
               "inspect` shows, for example [\"embedding.*\", \"layers.0.*\"]. They lie in the compute type alone and have no gradient, "
               "moments "
               "or fp32 copy. Tensors that one product makes are frozen together. A pattern of no tensor is refused."},

      // [lora]
      {MODEL_KEY(lora.rank), .type = integer, .limits = {.least = 0, .most = 4096}, .fallback = "0", .identity = true, .silent = true,
       .help = "Rank of low-rank adapters (LoRA): two small matrices beside each of lora.targets, which alone are trained. All else of the "
               "model "
               "lies in the compute type, without gradients, moments or fp32 copy. 0: none."},
      {MODEL_KEY(lora.alpha), .type = real, .limits = {.above = 0, .most = 1e6}, .fallback = "16.0", .identity = true, .silent = true,
       .help = "What adapters add is multiplied with lora.alpha / lora.rank."},
      {MODEL_KEY(lora.targets), .type = texts, .fallback = "[]", .identity = true, .silent = true,
       .help =
           "Matrices that have adapters: wq, wk, wv, wo, w_gate, w_up, w_down, or as Hugging Face calls them (q_proj, self_attn.q_proj, "
           "layers.3.self_attn.q_proj), or patterns of tensors' names (\"layers.1?.attention.*\", "
           "\"experts.*\"); [] is all seven of every layer, but for experts, which are named."},
      {MODEL_KEY(lora.scaling), .type = text, .fallback = "\"standard\"", .identity = true, .silent = true,
       .help = "standard divides lora.alpha by the rank, rslora by its square root, which suits large ranks (arXiv:2312.03732)."},
      {MODEL_KEY(lora.init), .type = text, .unit = "path", .fallback = "\"\"", .identity = true, .silent = true,
       .help = "Folder of an adapter as PEFT writes it, which training begins with, beside the model of run.init that it was made for; its "
               "adapter_config.json must say this section. Empty: A is drawn from run.seed, and B is zero."},

      // [experts]
      {KEY(experts.capacity_factor), .type = real, .unit = "ratio", .limits = {.above = 0, .most = 1e6}, .zero = "dropless",
       .fallback = "\"dropless\"", .identity = true,
       .help =
           "Tokens that an expert takes of a micro-batch at most, over those that it would have if all had the same; choices beyond are "
           "dropped and counted, the last tokens first. With mesh.tp or mesh.cp of a rank's part of a micro-batch. dropless drops none. "
           "Texts of generate are never dropped."},

      // [reference]
      {KEY(reference.model), .type = text, .fallback = "\"none\"",
       .help = "A frozen model that runs beside the training model and computes its loss on the same batches, `reference_loss` of "
               "metrics.jsonl. \"start\": a copy of the weights that the run begins with. \"none\": there is no reference."}};
}

}  // namespace tessera::schema
